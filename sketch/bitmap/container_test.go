package bitmap

import (
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

// TestReading: every question about a container is answered as its sorted lows say.
func TestReading(t *testing.T) {
	eachShape(t, func(t *testing.T, o *oracle, c Container, r *rand.Rand) {
		lows := o.lows()
		below := func(low int) int { return sort.Search(len(lows), func(i int) bool { return int(lows[i]) >= low }) }
		for i := range 3000 {
			low := uint16(r.Uint32())
			switch {
			case i < 5:
				low = []uint16{0, 1, 63, SliceLen - 2, SliceLen - 1}[i]
			case i%2 == 0 && len(lows) > 0:
				low = lows[r.IntN(len(lows))]
			}
			if c.Contains(low) != o[low] {
				t.Fatalf("contains %d: %v", low, c.Contains(low))
			}
			if got, want := c.Rank(low), below(int(low)); got != want {
				t.Fatalf("rank of %d is %d, want %d", low, got, want)
			}
			hi := uint16(r.Uint32())
			want := max(0, below(int(hi)+1)-below(int(low)))
			if got := c.CountRange(low, hi); got != want {
				t.Fatalf("%d from %d to %d, want %d", got, low, hi, want)
			}
			rest := lows[below(int(low)):]
			limit := r.IntN(100)
			if got := c.AppendLows(nil, low, limit); !slices.Equal(got, rest[:min(limit, len(rest))]) {
				t.Fatalf("%d lows from %d: %v", limit, low, got)
			}
		}
		for position := range len(lows) {
			if low, ok := c.Select(position); !ok || low != lows[position] {
				t.Fatalf("low %d is %d, want %d", position, low, lows[position])
			}
			if c.Form == Dense && position > 200 {
				break
			}
		}
		for _, position := range []int{-1, len(lows), len(lows) + 1} {
			if _, ok := c.Select(position); ok {
				t.Errorf("a low at %d", position)
			}
		}
		lowest, ok1 := c.Min()
		highest, ok2 := c.Max()
		if ok1 != (len(lows) > 0) || ok2 != ok1 || ok1 && (lowest != lows[0] || highest != lows[len(lows)-1]) {
			t.Errorf("from %d to %d, %v %v", lowest, highest, ok1, ok2)
		}
		runs := 0
		for i, low := range lows {
			if i == 0 || lows[i-1]+1 != low {
				runs++
			}
		}
		if c.Runs() != runs || len(c.Words) != WordsFor(c.Form, int(c.Count), runs) {
			t.Errorf("%d runs, %d words", c.Runs(), len(c.Words))
		}
	})
}

// TestViewOfABlock: a container is found again in a longer block by its form and count.
func TestViewOfABlock(t *testing.T) {
	eachShape(t, func(t *testing.T, o *oracle, c Container, _ *rand.Rand) {
		for _, more := range []int{0, 1, 5, 300} {
			block := make([]uint64, len(c.Words)+more)
			copy(block, c.Words)
			v := View(c.Form, c.Count, block)
			o.check(t, v)
			if cap(v.Words) != len(block) {
				t.Errorf("capacity of %d in a block of %d", cap(v.Words), len(block))
			}
		}
	})
}

func TestValidate(t *testing.T) {
	array := func(n uint32, words ...uint64) Container { return Container{Form: Array, Count: n, Words: words} }
	run := func(n uint32, words ...uint64) Container { return Container{Form: Run, Count: n, Words: words} }
	many := make([]uint64, DenseWords)
	for i := range many {
		many[i] = 0x5555555555555555
	}
	for _, c := range []struct {
		c    Container
		says string
	}{
		{array(3, 9<<32|5<<16|2), ""},
		{run(4, 8<<16|5), ""},
		{Container{Form: Dense, Count: SliceLen / 2, Words: many}, ""},
		{Container{}, "0 lows"},
		{array(1<<16+1, 0), "65537 lows"},
		{array(1), "without words"},
		{array(5, 1), "5 lows in 1 words"},
		{array(1, 1, 0), "1 lows in 2 words"},
		{array(2049, many[:513]...), "2049 lows"},
		{array(3, 9<<32|9<<16|2), "9 behind 9"},
		{array(2, 1<<16|2), "1 behind 2"},
		{array(2, 7<<32|5<<16|2), "behind its end"},
		{array(4, 8<<48|7<<32|6<<16|5), "must be run"},
		{run(3, 7<<16|5), "must be array"},
		{run(5, 8<<16|5), "of 4 lows says 5"},
		{run(4, 5<<16|8), "from 8 to 5"},
		{run(8, (12<<16|9)<<32|8<<16|5), "from 9 to 12 behind 8"},
		{run(4, 8<<16|5, 0), "from 0 to 0"},
		{run(4, many[:513]...), "513 words"},
		{Container{Form: Dense, Count: SliceLen / 2, Words: many[:1023]}, "1023 words"},
		{Container{Form: Dense, Count: 9, Words: many}, "says 9"},
		{Container{Form: Dense, Count: 1, Words: append([]uint64{1}, make([]uint64, DenseWords-1)...)}, "must be array"},
		{Container{Form: 4, Count: 1, Words: many}, "form 4"},
		{Container{Form: 0, Count: 1, Words: many}, "form 0"},
	} {
		err := Validate(c.c)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

// TestNames: forms and operations print as words.
func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		Form(0).String(): "absent", Array.String(): "array", Dense.String(): "dense", Run.String(): "run",
		Op(0).String(): "unknown", Set.String(): "set", Clear.String(): "clear", Flip.String(): "flip",
		AtLeast.String(): "at-least", Logic(99).String(): "operation 99",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestRangeContainer: a range is the container that it is when it comes about by edits.
func TestRangeContainer(t *testing.T) {
	for _, c := range [][2]uint16{{0, 0}, {9, 11}, {9, 12}, {65535, 65535}, {65532, 65535}, {0, 65535}} {
		var o oracle
		o.editRange(Set, c[0], c[1])
		var room [1]uint64
		got, want := RangeContainer(room[:], c[0], c[1]), o.container()
		if got.Form != want.Form || got.Count != want.Count || !slices.Equal(got.Words, want.Words) {
			t.Errorf("%d to %d: %+v, want %+v", c[0], c[1], got, want)
		}
	}
}
