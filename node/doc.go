// Package node is one process of the cluster: it opens a data directory, runs
// this node's replicas of the Raft groups, and serves them.
//
//	          gRPC 7070        HTTP 7080      admin 7081     gossip 7071
//	              |                |              |               |
//	           rpc edges  ------ router, coordinator ------   membership
//	                               |
//	+------------- replica (one a shard, and group 0) ---------------+
//	| proposer: collect, stamp, one entry     reader: read barrier   |
//	| raft.Raft -> machine (FSM) -> shard.State behind one RWMutex   |
//	+----------------------------------------------------------------+
//	   transport.Mux          wal.Log             snap stores
//	 (all groups, peers)  (all groups, one fsync)
//
// Open wires these once, in order; Close undoes it in reverse. Clock, network,
// file system and failpoints are injected, so that the same Node runs in a
// test's bubble, in the demo and as a server.
package node
