// Package ebbtest runs a real cluster inside a test. The nodes, logs and elections are those of production; the network
// and the disks are in memory, and the test moves the clock.
//
//	func TestTrends(t *testing.T) {
//		c := ebbtest.New(t)
//		client := c.Client()
//		client.Increment(t.Context(), "default", ebb.One("link", "de"))
//		c.Advance(time.Hour) // a half-life passes
//		...
//	}
//
// It works in any test. Inside a testing/synctest bubble the cluster uses the bubble's time, where an outage of a
// minute costs milliseconds. Outside a bubble a call that waits for an election takes a second or two.
package ebbtest
