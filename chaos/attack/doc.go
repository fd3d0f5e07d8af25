// Command attack attacks a cluster of this build over every port, as an outsider would, and reports which attempts
// held.
//
//	go run ./chaos/attack            every attempt, against clusters that it starts itself: open, with tokens, with TLS
//	go run ./chaos/attack --short    those that take seconds
//	go run ./chaos/attack --only gossip --binary ./ebb
//
// An attempt holds if the cluster refuses it or takes no harm from it, and no node ends. The memory of a node may grow
// by no more than the attempt's bound. The attempt must end within its time, and the node must answer health probes
// afterwards. The exit status is 1 if an attempt did not hold, or could not be made. The load goes only to loopback
// addresses of processes that the command has started. The command is not part of the binary ebb.
package main
