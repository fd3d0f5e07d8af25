// Package transport carries the Raft groups of a node to the other nodes over a few gRPC streams.
//
// The node that asks opens the streams, the other answers on them:
//
//	       session (the asking side of a pair of nodes)
//	Mux ── peer ─┬─ control stream   heartbeats, votes, TimeoutNow, read barriers, pings
//	             ├─ append streams   log entries; a group stays on one of them
//	             └─ snapshot streams one per snapshot
//
// A session lives and dies as a whole: when one of its streams breaks, or its
// control stream is silent for PingTimeout, every call that waits on it fails
// at once, and the next session is tried after a pause. A call made while
// there is no session waits for one until its own deadline.
//
// In the clear a connection carries gRPC in records with checksums: see Checks.
//
// # Frames
//
// A stream carries Frames, whose body is at most 512 KiB and holds messages
// back to back. Many requests are outstanding on a stream and answers come in
// any order; whatever waits for a stream goes into its next frame. On the
// control stream heartbeats and their answers wait a few milliseconds for
// others. All other messages leave at once, with the ones that wait.
//
//	message  word(kind<<24 | len) payload[len]      little-endian
//	hello    version oldest session stream from to cluster
//	welcome  version oldest cluster
//	append, vote, prevote, timeoutnow
//	         id group replica ttl command           replica: whom it is meant for
//	answer   id kind ok, then response if ok, else code text
//	ping     sent cluster                           the sender's monotonic time
//	pong     sent held wall cluster                 the answerer's wall clock
//	ask      round n (group replica term)*n         is your term exactly this?
//	askreply round n bits
//	install  group replica command                  first on a snapshot stream
//	chunk    bytes
//	end      size
//
// Integers are varints, byte strings have their length in front.
//
// # Read barriers
//
// ReadIndex counts a voter only if it was asked after the call began, is the
// replica that the address names, and was in exactly the caller's term when it
// answered. Why that is enough: had another leader been elected in a later term
// before the call began, a majority would have left the caller's term before it;
// two majorities share a voter, and terms never fall.
//
// # Faults contained here
//
//	hashicorp/raft #695  heartbeats handled off the main goroutine: SetHeartbeatHandler is ignored
//	hashicorp/raft #612  rejected pipelined appends wedge: no pipelines
//	hashicorp/raft #696  hung calls hang leadership transfers: every call has a deadline
//	hashicorp/raft #503  a leader with a hanging disk keeps its lease: Mute
//	stale VerifyLeader   late acks and acks of non-voters: ReadIndex
//	silent loss of pre-vote: Group implements raft.WithPreVote
//
// Nothing here holds a mutex across a wait, so all of it runs in virtual time.
package transport
