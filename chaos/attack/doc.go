// Command attack attacks a cluster of this build over every port, as an outsider would, and says what held.
//
//	go run ./chaos/attack            every attempt, against clusters that it starts itself: open, with tokens, with TLS
//	go run ./chaos/attack --short    those that take seconds
//	go run ./chaos/attack --only gossip --binary ./ebb
//
// An attempt holds if the cluster refuses it or is none the worse for it, no node ends, the memory of the node grows by
// no more than the
// attempt's bound, the attempt ends within its time, and the node answers probes of its health afterwards. The exit
// status is 1 if an attempt
// did not hold, or could not be made. The load goes to loopback addresses of processes that the command has started,
// and to nothing else.
// It is no part of the binary ebb.
package main
