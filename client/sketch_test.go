package client_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// throughFile is a sketch as it comes out of a file.
func throughFile(t testing.TB, s *ebb.Sketch) *ebb.Sketch {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(&b)
	back, err := ebb.ReadSketch(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ebb.ReadSketch(r); err != io.EOF {
		t.Errorf("behind the sketch: %v", err)
	}
	if back.String() != s.String() || back.AsOf() != s.AsOf() || back.Kind() != s.Kind() {
		t.Errorf("%v has become %v", s, back)
	}
	return back
}

// What a key of one cluster holds merges into a key of another, once, however often commands are refused or answers are
// lost. A large one goes in pieces.
func TestSketchesMergeInAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, rng := t.Context(), rand.New(rand.NewPCG(20, 1))
		from, to := newWorld(t, 1), newWorld(t, 3)
		one := from.connect()
		two := to.connect(ebb.WithAttemptTimeout(30*time.Millisecond), ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
		if _, err := one.CreateNamespace(ctx, ebb.Namespace{Name: "n", Decay: ebb.DecayNone}); err != nil {
			t.Fatal(err)
		}
		const bins = 6_000
		var list []ebb.Increment
		for i := range bins {
			list = append(list, ebb.One("wide", fmt.Sprintf("%s-%d", strings.Repeat("b", 100), i)))
		}
		list = append(list, ebb.One("small", "x"))
		for i := range list {
			list[i].Kind = ebb.KindDistribution
		}
		if err := one.Increment(ctx, "n", list...); err != nil {
			t.Fatal(err)
		}
		pieces := 0
		to.setFault(func(_ string, cmd *ebbv1.ShardCommand) (*proto.Error, bool) {
			if _, field, _ := proto.CommandBody(cmd.GetCommand()); field == proto.FieldCommandPutPiece {
				pieces++
			}
			switch rng.IntN(6) {
			case 0:
				return proto.ErrOverloaded.Errorf("busy"), false
			case 1:
				return nil, true
			}
			return nil, false
		})
		for _, c := range []struct {
			key        string
			bins, want int // how often it is imported
		}{{"wide", bins, 3}, {"small", 1, 3}} {
			exported, err := one.ExportSketch(ctx, "n", c.key)
			if err != nil {
				t.Fatal(err)
			}
			sketch := throughFile(t, exported)
			for range c.want {
				if err := two.ImportSketch(ctx, sketch, ebb.ImportOptions{Namespace: "other", Create: true}); err != nil {
					t.Fatal(err)
				}
			}
			d, err := two.Top(ctx, "other", c.key, 3)
			if err != nil || d.Z != float64(c.bins*c.want) {
				t.Errorf("%s: %v of %d bins, each %d times, %v", c.key, d.Z, c.bins, c.want, err)
			}
		}
		if pieces < 6 {
			t.Errorf("%d pieces", pieces)
		}
	})
}

// A sketch does not become something else: namespaces with other settings refuse it, and so do keys of another kind.
func TestSketchesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c := newWorld(t, 1).connect()
		for _, ns := range []ebb.Namespace{{Name: "hour", HalfLife: time.Hour}, {Name: "day", HalfLife: 24 * time.Hour}, {Name: "none", Decay: ebb.DecayNone}} {
			if _, err := c.CreateNamespace(ctx, ns); err != nil {
				t.Fatal(err)
			}
		}
		for key, kind := range map[string]ebb.Kind{"dist": ebb.KindDistribution, "set": ebb.KindSet} {
			if err := c.Increment(ctx, "hour", ebb.Increment{Key: key, Bin: "x", Amount: 1, Kind: kind}); err != nil {
				t.Fatal(err)
			}
		}
		sketches := map[string]*ebb.Sketch{}
		for _, key := range []string{"dist", "set"} {
			s, err := c.ExportSketch(ctx, "hour", key)
			if err != nil {
				t.Fatal(err)
			}
			sketches[key] = s
		}
		if _, err := c.ExportSketch(ctx, "hour", "nothing"); !errors.Is(err, ebb.ErrKeyNotFound) {
			t.Errorf("no key: %v", err)
		}
		for _, tt := range []struct {
			key  string
			opts ebb.ImportOptions
			want error
		}{
			{"dist", ebb.ImportOptions{Namespace: "day"}, ebb.ErrBadNamespace},
			{"dist", ebb.ImportOptions{Namespace: "none"}, ebb.ErrBadNamespace},
			{"set", ebb.ImportOptions{Namespace: "day"}, ebb.ErrBadNamespace},
			{"set", ebb.ImportOptions{Namespace: "unknown"}, ebb.ErrNamespaceNotFound},
			{"set", ebb.ImportOptions{Key: "dist"}, ebb.ErrWrongKind},
			{"dist", ebb.ImportOptions{Key: "set", Replace: true}, nil},
		} {
			if err := c.ImportSketch(ctx, sketches[tt.key], tt.opts); !errors.Is(err, tt.want) {
				t.Errorf("%s with %+v: %v", tt.key, tt.opts, err)
			}
		}
	})
}

// FuzzReadSketch reads files of sketches as anybody may write them.
func FuzzReadSketch(f *testing.F) {
	f.Add([]byte("EBBSKETCH\x01\x00"))
	f.Add([]byte("EBBSKETCH\x02"))
	f.Add([]byte("EBBSKETCH\x01\xff\xff\xff\xff\x0f"))
	f.Add([]byte("words"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bufio.NewReader(bytes.NewReader(b))
		for {
			s, err := ebb.ReadSketch(r)
			if err == io.EOF {
				return
			}
			if err != nil {
				if !errors.Is(err, ebb.ErrCorrupt) {
					t.Errorf("%v", err)
				}
				return
			}
			throughFile(t, s)
		}
	})
}
