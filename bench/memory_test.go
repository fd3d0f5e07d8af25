package bench

import (
	"errors"
	"testing"
	"time"
)

// A small run measures something of everything.
func TestMemory(t *testing.T) {
	m := Memory{N: 20_000, Shape: ShapePareto, Compact: true, Shards: 3, Load: 100 * time.Millisecond, Rate: 100_000}
	r, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.BinsEach < 8 || r.BinsEach > 10 {
		t.Errorf("%.2f bins each: the mix has a mean of about 9", r.BinsEach)
	}
	if least := int64(r.Bins) * 8; r.Mapped < least || r.Serialised < least/2 { // the heap may shrink by what other tests left
		t.Errorf("%d bins: %+v", r.Bins, r)
	}
	if l := r.Load; l == nil || l.Read.N == 0 || l.ReadSnapshots.N == 0 || l.Snapshots == 0 || l.PerSecond == 0 || l.GCShare < 0 || l.GCShare > 1 {
		t.Errorf("load: %+v", r.Load)
	}
}

func TestShape(t *testing.T) {
	for _, s := range []Shape{"", "0", "-1", "10001", "x", "Pareto"} {
		if _, err := s.sizes(1); err == nil {
			t.Errorf("shape %q is taken", s)
		}
	}
	for i, n := range mustSizes(t, "7", 3) {
		if n != 7 {
			t.Errorf("distribution %d has %d bins", i, n)
		}
	}
	total := 0
	sizes := mustSizes(t, ShapePareto, 100_000)
	for _, n := range sizes {
		total += int(n)
		if n < 3 || n > paretoBinsMax {
			t.Fatalf("%d bins", n)
		}
	}
	if mean := float64(total) / float64(len(sizes)); mean < 8.5 || mean > 9.5 {
		t.Errorf("mean %.2f", mean)
	}
}

func mustSizes(t *testing.T, s Shape, n int) []uint16 {
	t.Helper()
	sizes, err := s.sizes(n)
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}

func TestMemoryNames(t *testing.T) {
	if k := string(memoryKey(nil, 1234567)); k != "link/0001234567" {
		t.Errorf("%q", k)
	}
	if a, b := string(memoryBin(nil, 3, 0, 260)), string(memoryBin(nil, 3, 259, 260)); a == b || len(a) != 15 || len(b) != 15 {
		t.Errorf("%q, %q", a, b)
	}
}

func TestRedisMemory(t *testing.T) {
	bytes, err := RedisMemory(t.Context(), Memory{N: 10_000, Shape: "8"})
	switch {
	case errors.Is(err, ErrNoRedis):
		t.Log(err)
	case err != nil:
		t.Fatal(err)
	case bytes < 10_000*8*8:
		t.Errorf("%d bytes for 10,000 distributions of 8 bins", bytes)
	}
}
