// Package ebbtest runs a real cluster inside a test: the nodes, logs and
// elections of production on a network and disks in memory, with a clock that
// the test moves.
//
//	func TestTrends(t *testing.T) {
//		c := ebbtest.New(t)
//		client := c.Client()
//		client.Increment(t.Context(), "default", ebb.One("link", "de"))
//		c.Advance(time.Hour) // a half-life passes
//		...
//	}
//
// It works in any test. Inside a testing/synctest bubble the cluster lives in
// the bubble's time, where a minute's outage costs milliseconds; outside of one,
// what waits for an election waits for a second or two.
package ebbtest
