// Package client is the Go SDK of ebb; users import it under the name ebb.
//
//	import ebb "github.com/ebbdb/ebb/client"
//
//	c, err := ebb.Dial(ctx, "10.0.0.1:7070", "10.0.0.2:7070")
//	w := c.Writer(ebb.WriterOptions{})
//	w.Add(ctx, "clicks/abc", "US", 1)
//	top, err := c.Top(ctx, "default", "clicks/abc", 10)
//
// It promises:
//
//   - Dial returns as soon as one node has answered, or an error that lists every address and its cause.
//   - A write travels as (session, sequence), so that a retry counts once. When the client gives up on a write that may
//     have been applied, the error is ErrUnknownOutcome. Any other error of a write means that it was not applied.
//   - Commands go straight to the leaders of their shards. When a leader changes, they go to the new one.
//   - A call ends with its context. A context without a deadline gets the client's own (WithTimeout). The deadline
//     travels to the node.
//   - Answers are values with their error bars and their coverage.
//
// The path of a write:
//
//	Add ─> commandEncoder (one a shard: bytes in wire format, equal increments summed)
//	         │ full, lingered or flushed
//	         v
//	       shardStream (one a shard: session, sequence, window of outstanding commands)
//	         │ identity stamped in front of the bytes
//	         v
//	       sender ─> one ApplyRequest a node, many shards ─> leader
//	         ^                                                 │
//	         └── not leader, overloaded, lost: same identity ──┘
//
// Retries by method: Increment, Writer and Source retry under their identity. Questions, Table, Status and Namespaces
// change nothing and retry on any node. SetNamespace sets the same values again and retries. CreateNamespace retries
// only what was surely not applied.
package client
