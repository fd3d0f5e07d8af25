// Package transport carries the Raft groups of a node to the other nodes over a few gRPC streams.
//
// The node that sends requests opens the streams; the other node answers on them:
//
//	       session (the asking side of a pair of nodes)
//	Mux ── peer ─┬─ control stream   heartbeats, votes, TimeoutNow, read barriers, pings
//	             ├─ append streams   log entries; a group stays on one of them
//	             └─ snapshot streams one per snapshot
//
// All streams of a session end together. When one of them breaks, or its control stream is silent for PingTimeout,
// every call that waits for it fails at once, and the next session is tried after a pause. A call made while there is
// no session waits for one until its own deadline.
//
// A connection without TLS carries gRPC in records with checksums: see Checks.
//
// # Frames
//
// A stream carries Frames. The body of a Frame is at most 512 KiB and holds messages back to back. Many requests may be
// outstanding on a stream, and answers come in any order. All messages that wait for a stream go into its next frame.
// On the control stream, heartbeats and their answers wait a few milliseconds for others. All other messages are sent
// at once, together with the waiting ones.
//
//	message  word(kind<<24 | len) payload[len]      little-endian
//	hello    version oldest session stream from to cluster
//	welcome  version oldest cluster
//	append, vote, prevote, timeoutnow
//	         id group replica ttl command           replica: the receiver
//	answer   id kind ok, then response if ok, else code text
//	ping     sent cluster                           the sender's monotonic time
//	pong     sent held wall cluster                 the answerer's wall clock
//	ask      round n (group replica term)*n         is your term exactly this?
//	askreply round n bits
//	install  group replica command                  first on a snapshot stream
//	chunk    bytes
//	end      size
//
// Integers are varints; byte strings are preceded by their length.
//
// # Read barriers
//
// ReadIndex counts a voter only if three conditions hold. It was asked after the call began, it is the replica that the
// address names, and it was in exactly the caller's term when it answered. This is enough: had another leader been
// elected in a later term before the call began, a majority would have left the caller's term by then. Two majorities
// share a voter, and terms never fall.
//
// # Faults of hashicorp/raft contained here
//
//	hashicorp/raft #695  heartbeats handled off the main goroutine: SetHeartbeatHandler is ignored
//	hashicorp/raft #612  rejected pipelined appends wedge: no pipelines
//	hashicorp/raft #696  hung calls hang leadership transfers: every call has a deadline
//	hashicorp/raft #503  a leader with a hanging disk keeps its lease: Mute
//	stale VerifyLeader   late acks and acks of non-voters: ReadIndex
//	silent loss of pre-vote: Group implements raft.WithPreVote
//
// No mutex is held across a wait, so all of it runs in virtual time.
package transport
