// Package cluster knows who owns a key, and asks them.
//
//	            Increment, Apply                     Ask
//	                  |                               |
//	               Router                        Coordinator        shells: they wait
//	                  |  \                         /  |
//	                  |   Leaders (hints)---------'   |
//	                  |                               |
//	        Backend: a local replica, a peer over gRPC, a map in a test
//
//	Control ---> Table        pure: the state machine of group 0 and its immutable result
//	Ring ------> Table        pure: who should hold what
//	Gossip                    hints about liveness and addresses; it never decides anything
//
// Truth is replicated: the Table comes out of the control group's log and is
// the same on every node. Leaders and Gossip are hints; acting on a wrong one
// costs a round trip and nothing else.
package cluster
