package fail_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/node/fail"
)

func TestNilAndZeroNeverFire(t *testing.T) {
	var none *fail.Points
	if err := none.Hit("a"); err != nil {
		t.Fatal(err)
	}
	var zero fail.Points
	if err := zero.Hit("a"); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = zero.Hit("a") }); n != 0 {
		t.Fatalf("an unarmed hit allocates %v times", n)
	}
}

func TestErrorAtNthHitOnce(t *testing.T) {
	var p fail.Points
	boom := errors.New("boom")
	p.Arm("a", 3, fail.Error(boom))
	var got []error
	for range 5 {
		got = append(got, p.Hit("a"))
	}
	if !slices.Equal(got, []error{nil, nil, boom, nil, nil}) {
		t.Fatal(got)
	}
	p.Arm("a", 0, fail.Error(boom))
	if p.Hit("a") != boom || p.Hit("b") != nil || p.Hit("a") != boom {
		t.Fatal("n = 0 fires at every hit of that point only")
	}
	p.Disarm("a")
	if p.Hit("a") != nil {
		t.Fatal("disarmed")
	}
}

func TestKillStopsEveryPoint(t *testing.T) {
	var p fail.Points
	died := 0
	p.Arm("a", 2, fail.Kill(func() { died++ }))
	if p.Hit("a") != nil || p.Killed() {
		t.Fatal("too early")
	}
	if p.Hit("a") != fail.ErrKilled || p.Hit("b") != fail.ErrKilled || p.Hit("a") != fail.ErrKilled {
		t.Fatal("a dead process takes no step")
	}
	if died != 1 || !p.Killed() {
		t.Fatalf("died %d times", died)
	}
}

func TestBlockHoldsNoLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p fail.Points
		reached, release := make(chan struct{}, 1), make(chan struct{})
		p.Arm("a", 1, fail.Block(reached, release))
		done := make(chan error)
		go func() { done <- p.Hit("a") }()
		<-reached
		synctest.Wait()
		if err := p.Hit("a"); err != nil {
			t.Error("others pass meanwhile:", err)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestRecord(t *testing.T) {
	var p fail.Points
	p.Record()
	_, _, _ = p.Hit("b"), p.Hit("a"), p.Hit("b")
	if got := p.Names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatal(got)
	}
	if p.Hits()["b"] != 2 {
		t.Fatal(p.Hits())
	}
}

func BenchmarkHitUnarmed(b *testing.B) {
	var p fail.Points
	for b.Loop() {
		_ = p.Hit("a")
	}
}
