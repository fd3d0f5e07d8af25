package swarm

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/node/wal"
	"github.com/ebbdb/ebb/proto"
)

// logWriters are clients whose commands can be found in the log. Each command has its own bin, and its entry contains
// the name of the bin. At the end, the run reads the logs from the disks of the nodes: they show the order of commands,
// which answers do not.
type logWriters struct {
	w *world

	mu      sync.Mutex // guards what follows
	written []written
}

// written is a command of a logWriter.
type written struct {
	mark     string // the bin
	key      string
	behind   uint64 // an index that was applied before it was sent: its own index is higher
	from, to time.Duration
	outcome  outcome
}

type logWriter struct {
	*logWriters
	rng *rand.Rand
}

// logWriterKeys is how many keys logWriters count in.
const logWriterKeys = 2

func newLogWriters(w *world) []client {
	s := &logWriters{w: w}
	w.autopsies = append(w.autopsies, s.readLogs)
	return []client{&logWriter{s, w.rng(8100)}, &logWriter{s, w.rng(8101)}}
}

func (s *logWriter) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(s.rng, 500, 6000))
	defer cancel()
	s.mu.Lock()
	n := len(s.written)
	one := written{mark: fmt.Sprintf("<scribe-%d>", n), key: fmt.Sprintf("scribed-%d", s.rng.IntN(logWriterKeys)), from: s.w.now(), outcome: unknown}
	one.behind = s.w.appliedOf(s.shardOf(one))
	s.written = append(s.written, one)
	s.mu.Unlock()
	err := c.Increment(ctx, countsNamespace, ebb.One(one.key, one.mark))
	o := outcomeOf(err)
	s.w.done(o)
	s.mu.Lock()
	s.written[n].to, s.written[n].outcome = s.w.now(), o
	s.mu.Unlock()
}

func (s *logWriters) shardOf(one written) uint32 {
	return proto.ShardOf(countsNamespace, []byte(one.key), s.w.plan.Shards)
}

// settle checks that every acknowledged command counts once, every other at most once, and a failed one not at all.
func (s *logWriters) settle(ctx context.Context, c *ebb.Client) {
	for k := range logWriterKeys {
		key := fmt.Sprintf("scribed-%d", k)
		d, err := c.Distribution(ctx, countsNamespace, key)
		if !s.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", key, err) {
			return
		}
		for _, one := range s.written {
			if one.key != key {
				continue
			}
			b, _ := d.Bin(one.mark)
			s.w.hold("command-once", b.Count == 1 || b.Count == 0 && one.outcome != acked, "%s is counted %v times in %s, and its outcome was %s", one.mark, b.Count, key, one.outcome)
			s.w.hold("command-once", b.Count == 0 || one.outcome != failed, "%s is counted in %s, and was not applied, says the SDK", one.mark, key)
		}
	}
}

func (o outcome) String() string { return [...]string{"acknowledged", "unknown", "failed"}[o] }

// readLogs stops all nodes and reads the log of each up to the index that the node has applied: so far the log is
// committed.
func (s *logWriters) readLogs() {
	applied := make([]map[uint32]uint64, s.w.c.Nodes()) // by node and shard
	for i := range applied {
		applied[i] = map[uint32]uint64{}
		if n := s.w.c.Node(i); n != nil {
			for shard := uint32(1); shard <= s.w.plan.Shards; shard++ {
				if index, _, ok := n.Checksum(shard); ok {
					applied[i][shard] = index
				}
			}
		}
	}
	s.w.c.Stop()
	logs, ends := make([]committed, s.w.plan.Shards+1), make([]uint64, s.w.plan.Shards+1)
	for i := range applied {
		if len(applied[i]) > 0 {
			s.readLog(i, applied[i], logs)
		}
		for shard, index := range applied[i] {
			ends[shard] = max(ends[shard], index)
		}
	}
	for shard := uint32(1); shard <= s.w.plan.Shards; shard++ {
		s.judgeLog(shard, logs[shard], ends[shard])
	}
}

// committed has the committed entries of all replicas of a shard, by index.
type committed map[uint64]entry

type entry struct {
	term uint64
	kind raft.LogType
	data []byte
	node string
}

// readLog reads the log of one node, and checks that its entries equal those of the other nodes.
func (s *logWriters) readLog(i int, applied map[uint32]uint64, logs []committed) {
	log, err := wal.Open(wal.Config{FS: s.w.c.Disk(i), Dir: "/data/wal", Existing: true, SegmentBytes: s.w.plan.Segment, Fatal: func(error) {}})
	if !s.w.hold("logs-agree", err == nil, "the log of %s cannot be read: %v", s.w.c.Name(i), err) {
		return
	}
	defer log.Close() //nolint:errcheck // it was read
	for shard := uint32(1); shard <= s.w.plan.Shards; shard++ {
		group := log.Group(shard)
		first, _ := group.FirstIndex() // it has no error
		if logs[shard] == nil {
			logs[shard] = committed{}
		}
		for index := max(first, 1); first > 0 && index <= applied[shard]; index++ {
			var l raft.Log
			err := group.GetLog(index, &l)
			if err == raft.ErrLogNotFound {
				continue // the log has a gap where a snapshot was installed
			}
			if !s.w.hold("logs-agree", err == nil, "entry %d of shard %d of %s cannot be read: %v", index, shard, s.w.c.Name(i), err) {
				continue
			}
			s.agree(shard, logs[shard], index, entry{l.Term, l.Type, bytes.Clone(l.Data), s.w.c.Name(i)})
		}
	}
}

// agree checks that an entry equals the entry of another replica at the same index, if one is known.
func (s *logWriters) agree(shard uint32, log committed, index uint64, e entry) {
	other, known := log[index]
	if !known {
		log[index] = e
		return
	}
	s.w.hold("logs-agree", other.term == e.term && other.kind == e.kind && bytes.Equal(other.data, e.data), "entry %d of shard %d is of term %d and %d bytes at %s, and of term %d and %d bytes at %s",
		index, shard, other.term, len(other.data), other.node, e.term, len(e.data), e.node)
}

// judgeLog checks the log of a shard, which was applied up to end. It must have every acknowledged command, behind all
// commands that were acknowledged before it was sent. Terms must never fall. A command that was sent twice may be in
// the log twice: only its first position counts, if that is known. If entries are missing, the first position of a
// command may be among them. This holds for commands that were sent before the last missing entry was applied. A
// position that is found may then be that of a second, later copy.
func (s *logWriters) judgeLog(shard uint32, log committed, end uint64) {
	indexes := make([]uint64, 0, len(log))
	for index := range log {
		indexes = append(indexes, index)
	}
	slices.Sort(indexes)
	at := map[string]uint64{}
	term, last, missing := uint64(0), uint64(0), uint64(0) // missing is the highest missing index
	for _, index := range indexes {
		e := log[index]
		if index > last+1 {
			missing = index - 1
		}
		last = index
		s.w.hold("log-in-order", e.term >= term, "entry %d of shard %d is of term %d, and one before it of term %d", index, shard, e.term, term)
		term = e.term
		for data := string(e.data); ; {
			_, rest, more := strings.Cut(data, "<scribe-")
			if !more {
				break
			}
			number, rest, _ := strings.Cut(rest, ">")
			if mark := "<scribe-" + number + ">"; at[mark] == 0 {
				at[mark] = index
			}
			data = rest
		}
	}
	if last < end {
		missing = end
	}
	var there []written
	for _, one := range s.written {
		if one.outcome == acked && s.shardOf(one) == shard {
			there = append(there, one)
		}
	}
	for _, one := range there {
		var early []string
		s.w.hold("log-in-order", one.behind < missing || at[one.mark] > 0, "%s was acknowledged, sent behind entry %d, and is not in the log of shard %d, which has all from there to %d", one.mark, one.behind, shard, end)
		for _, later := range there {
			if later.from > one.to && one.behind >= missing && at[later.mark] > 0 && at[one.mark] > at[later.mark] {
				early = append(early, sprint("%s, sent at %v, is entry %d", later.mark, later.from, at[later.mark]))
			}
		}
		s.w.hold("log-in-order", len(early) == 0, "%s was acknowledged at %v, and is entry %d of shard %d; before it %v", one.mark, one.to, at[one.mark], shard, early)
	}
}
