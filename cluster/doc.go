// Package cluster finds the shard that holds a key, sends it commands and questions, and merges the answers.
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
// The replicated state decides: the Table is computed from the control group's log and is the same on every node.
// Leaders and Gossip are hints: a wrong hint costs a round trip and nothing else.
package cluster
