package node_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// said is a log that keeps its lines.
type said struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Write(p)
}

func (s *said) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.lines.String(), text)
}

// A node that ends hands over all of its shards, also those that do not change hands when it first tries.
func TestANodeThatEndsLeadsNothing(t *testing.T) {
	inBubble(t, 3, 12, func(b *bubble) {
		log := &said{}
		b.config[0].Logger = slog.New(slog.NewTextHandler(log, nil))
		b.openAll()
		c := b.client()
		b.plain(c)
		stop := b.writing(c, 40)
		time.Sleep(5 * time.Second)
		n := b.nodes[0]
		for shard := range b.reigns(0) {
			if shard != cluster.ControlShard {
				release := n.HoldLeader(shard)
				time.AfterFunc(3*time.Second, release)
			}
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		b.nodes[0] = nil
		if !log.has("still_led=0") {
			t.Error("leaderships were kept")
		}
		b.verify(c, 40, stop())
	})
}

// The last node of a cluster ends at once: there is none to hand over to.
func TestNodesThatEndTogether(t *testing.T) {
	inBubble(t, 3, 12, func(b *bubble) {
		b.openAll()
		time.Sleep(5 * time.Second)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range b.nodes {
			wg.Go(func() {
				if err := b.nodes[i].Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		clear(b.nodes)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
