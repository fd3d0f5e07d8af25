package swarm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/anishathalye/porcupine"

	"github.com/ebbdb/ebb/chaos/history"
	ebb "github.com/ebbdb/ebb/client"
)

// switches are bits that two clients set, clear and flip together, and strings of several shards that both write. The
// answer to a command on a bit says whether the bit changed. Porcupine judges the whole history of bits and strings.
type switches struct {
	w       *world
	history *history.Switches

	mu       sync.Mutex // guards what follows
	bit      uint64     // the bit in use
	unknowns int        // commands on bit with an unknown outcome
}

const (
	switchKey = "switches"
	// switchUnknowns is how many commands on a bit may have an unknown outcome. Each doubles what porcupine has to try.
	switchUnknowns = 4
	// sharedStrings are how many strings there are in addition to that of texts.
	sharedStrings = 3
	// firstSwitcher is the client number of the first switcher in histories.
	firstSwitcher = 10
)

type switcher struct {
	*switches
	id  int
	rng *rand.Rand
}

func newSwitchers(w *world) []client {
	s := &switches{w: w, history: history.NewSwitches(w.now)}
	w.judges = append(w.judges, s.judge)
	return []client{&switcher{s, firstSwitcher, w.rng(8000)}, &switcher{s, firstSwitcher + 1, w.rng(8001)}}
}

func (s *switcher) work(c *ebb.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), millis(s.rng, 500, 4000))
	defer cancel()
	if s.rng.IntN(3) == 0 {
		s.text(ctx, c, fmt.Sprintf("shared-%d", s.rng.IntN(sharedStrings)))
		return
	}
	s.mu.Lock()
	bit := s.bit
	s.mu.Unlock()
	act := []history.BitOp{history.Set, history.Clear, history.Flip, history.Look, history.Look}[s.rng.IntN(5)]
	op := s.history.Begin(s.id, viaSDK, bit, act)
	if act == history.Look {
		in, err := c.Bitmap(countsNamespace, ebb.Bits(switchKey)).Contains(ctx, bit)
		s.w.read(err == nil)
		if err == nil {
			op.Done(in[0])
		}
		return
	}
	edit := map[history.BitOp]func(context.Context, string, string, ...uint64) (int, error){history.Set: c.SetBits, history.Clear: c.ClearBits, history.Flip: c.FlipBits}[act]
	changed, err := edit(ctx, countsNamespace, switchKey, bit)
	o := outcomeOf(err)
	s.w.done(o)
	switch o {
	case acked:
		op.Done(changed == 1)
	case unknown:
		op.Unknown()
		s.mu.Lock()
		if s.unknowns++; s.unknowns >= switchUnknowns && s.bit == bit {
			s.bit, s.unknowns = bit+1, 0
		}
		s.mu.Unlock()
	}
}

// text writes or reads a string, and records it in the history of texts.
func (s *switcher) text(ctx context.Context, c *ebb.Client, key string) {
	h := s.w.texts.history
	if s.rng.IntN(2) == 0 {
		op := h.Write(s.id, viaSDK, key)
		o := outcomeOf(c.SetString(ctx, countsNamespace, key, op.Value()))
		s.w.done(o)
		switch o {
		case acked:
			op.Done("")
		case unknown:
			op.Unknown()
		}
		return
	}
	op := h.Read(s.id, viaSDK, key)
	v, err := c.String(ctx, countsNamespace, key)
	s.w.read(err == nil)
	if err == nil {
		op.Done(v.Text)
	}
}

// settle reads all bits and strings once more, so that the histories end with their last values.
func (s *switcher) settle(ctx context.Context, c *ebb.Client) {
	if s.id != firstSwitcher {
		return
	}
	for bit := range s.bit + 1 {
		op := s.history.Begin(s.id, viaSDK, bit, history.Look)
		in, err := c.Bitmap(countsNamespace, ebb.Bits(switchKey)).Contains(ctx, bit)
		if !s.w.hold("healed-reads", err == nil, "read bit %d when all was mended: %v", bit, err) {
			return
		}
		op.Done(in[0])
	}
	for i := range sharedStrings {
		key := fmt.Sprintf("shared-%d", i)
		op := s.w.texts.history.Read(s.id, viaSDK, key)
		v, err := c.String(ctx, countsNamespace, key)
		if s.w.hold("healed-reads", err == nil, "read %s when all was mended: %v", key, err) {
			op.Done(v.Text)
		}
	}
}

// judge lets porcupine check the history of the bits. If porcupine cannot decide, the invariant does not hold.
func (s *switches) judge() {
	v := s.w.verdict
	verdict, n := s.history.Check(orderMax)
	if verdict == porcupine.Illegal {
		for _, e := range s.history.Explain(orderMax) {
			v.Story = append(v.Story, Line{e.At, LineOperation, e.Text})
		}
	}
	if verdict == porcupine.Ok {
		v.Tally.Ordered += n
	}
	s.w.holdAt(v.Virtual, "switches-in-order", verdict == porcupine.Ok, "of the %d commands and reads of the bits of %s porcupine says %s", n, switchKey, verdict)
}
