package node

import (
	"log/slog"
	"runtime/metrics"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/node/mapped"
	"github.com/ebbdb/ebb/node/transport"
	"github.com/ebbdb/ebb/proto"
)

const (
	// A node is full when it takes nine tenths of its limit, and until it takes less than 17 of 20: what is left is for
	// garbage, for what is on its way, and for pages that a snapshot holds.
	fullShare, roomShare = 0.90, 0.85
	// fullRetry is what callers are told when there is no memory: it does not come back soon.
	fullRetry = time.Second
	// keptShare is the part of what answers may take that watches may hold besides, to compare their next answer with the last.
	keptShare = 3
)

// room refuses what would make shards larger while a node that holds them has no memory left for it. Otherwise the
// system would end that node, and again each time it has read its log.
type room struct {
	node   string
	limit  int64 // bytes; 0: none
	used   func() int64
	peers  fullness
	logger *slog.Logger

	nodes    atomic.Pointer[[]string] // that are full; nil: none
	refusals atomic.Uint64
}

// fullness is how nodes tell each other that they are full.
type fullness interface {
	SetFull(full bool)
	Full() []string
}

// electorate is a group as far as it is known who votes in it.
type electorate interface {
	voters() (addresses []raft.ServerAddress, nodes []string)
}

var _ fullness = (*transport.Mux)(nil)

func newRoom(node string, limit int64, used func() int64, peers fullness, logger *slog.Logger) *room {
	return &room{node: node, limit: limit, used: used, peers: peers, logger: logger}
}

// full reports whether this node is.
func (r *room) full() bool {
	nodes := r.nodes.Load()
	return nodes != nil && slices.Contains(*nodes, r.node)
}

// look is called every watchEvery.
func (r *room) look() {
	was, share := r.full(), fullShare
	if was {
		share = roomShare
	}
	full := r.limit > 0 && float64(r.used()) >= share*float64(r.limit)
	nodes := r.peers.Full()
	if full {
		nodes = append(nodes, r.node)
	}
	if len(nodes) == 0 {
		r.nodes.Store(nil)
	} else {
		r.nodes.Store(&nodes)
	}
	if full == was {
		return
	}
	r.peers.SetFull(full)
	if full {
		r.logger.Error("no memory left: writes that need more are refused", "used_bytes", r.used(), "limit_bytes", r.limit)
	} else {
		r.logger.Info("there is memory again", "used_bytes", r.used(), "limit_bytes", r.limit)
	}
}

// admit refuses a command that grows a shard of which a voter is full.
func (r *room) admit(shard uint32, of electorate, command []byte) *proto.Error {
	full := r.nodes.Load()
	if full == nil {
		return nil
	}
	_, voters := of.voters()
	i := slices.IndexFunc(*full, func(node string) bool { return slices.Contains(voters, node) })
	if i < 0 || !proto.CommandGrows(command) {
		return nil
	}
	r.refusals.Add(1)
	err := proto.ErrOutOfMemory.Errorf("shard %d: node %s has no memory left for more", shard, (*full)[i]).
		WithHint("forget keys, shorten half-lives, or give the node more memory; what makes room is still taken").WithShard(shard)
	err.RetryAfterUS = fullRetry.Microseconds()
	return err
}

// memoryUsed is what this process takes of its limit: pages in use, and what lived on Go's heap when it was last
// collected. The garbage on it is the collector's concern, which keeps the limit too.
func memoryUsed() int64 {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	return mapped.Used() + int64(live[0].Value.Uint64())
}
