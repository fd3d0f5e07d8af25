package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// difference is where two messages differ, "" if nowhere: numbers by more than a billionth, for shards and bins may be
// added up in another order.
func difference(a, b protoreflect.Message) (where string) {
	fields := a.Descriptor().Fields()
	for i := 0; i < fields.Len() && where == ""; i++ {
		fd := fields.Get(i)
		v, w := a.Get(fd), b.Get(fd)
		switch {
		// what a key that is not there may have held; nothing of a namespace that has never had a key in this shard
		case a.Descriptor().Name() == "Summary" && (fd.Name() == "total" || fd.Name() == "bins") && !a.Get(fields.ByName("found")).Bool() &&
			!b.Get(fields.ByName("found")).Bool():
		case fd.Name() == "shard" || fd.Name() == "coverage" || fd.Name() == "bytes": // of another shard
		case fd.Name() == "bins" && !fd.IsList(): // stored bins may have faded
		// no question says as of when
		case fd.Name() == "as_of_us" && (a.Descriptor().Name() == "BitmapAnswer" || a.Descriptor().Name() == "Matches"):
		case fd.IsList() && v.List().Len() != w.List().Len():
			return fmt.Sprintf("%s: %d and %d", fd.Name(), v.List().Len(), w.List().Len())
		case fd.IsList():
			for i := 0; where == "" && i < v.List().Len(); i++ {
				where = differentValues(fd, v.List().Get(i), w.List().Get(i))
			}
		// of memory
		case fd.Name() == "memory_bytes":
		case a.Descriptor().Name() == "Property" && strings.Contains(a.Get(fields.ByName("name")).String(), "bytes"):
		case a.Has(fd) != b.Has(fd) && fd.Name() != "other":
			where = fmt.Sprintf("%s: %v and %v", fd.Name(), v, w)
		case a.Has(fd) || b.Has(fd):
			where = differentValues(fd, v, w)
		}
	}
	return where
}

func differentValues(fd protoreflect.FieldDescriptor, v, w protoreflect.Value) string {
	same := false
	switch {
	case fd.Message() != nil:
		if where := difference(v.Message(), w.Message()); where != "" {
			return fmt.Sprintf("%s.%s", fd.Name(), where)
		}
		return ""
	case fd.Kind() == protoreflect.DoubleKind && fd.Name() != "other":
		x, y := v.Float(), w.Float()
		same = math.Abs(x-y) <= 1e-9*max(1, math.Abs(x), math.Abs(y))
	case fd.Name() == "other": // less than compact values are rounded by
		same = math.Abs(v.Float()-w.Float()) <= 1e-5
	case fd.Name() == "fades_us":
		same = math.Abs(float64(v.Int()-w.Int())) <= 1e6
	default:
		same = v.Equal(w)
	}
	if same {
		return ""
	}
	return fmt.Sprintf("%s: %v and %v", fd.Name(), v, w)
}

// questionsOf are those that tell what keys hold.
func questionsOf(ns string, keys map[string]ebb.Kind, at time.Time, trends bool) (out []*ebbv1.Question) {
	us := at.UnixMicro()
	ask := func(q *ebbv1.Question) {
		q.Namespace = ns
		out = append(out, q)
	}
	var all [][]byte
	for key, kind := range keys {
		name := []byte(key)
		ask(&ebbv1.Question{Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: name, AsOfUs: us}}})
		s := &ebbv1.SummaryQuestion{Keys: [][]byte{name}, AsOfUs: us}
		switch kind {
		case ebb.KindDistribution:
			all = append(all, name)
			ask(&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
				Keys: [][]byte{name}, Select: &ebbv1.DistributionQuestion_All{All: true}, AsOfUs: us,
			}}})
			continue
		case ebb.KindBitmap:
			ask(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{
				Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: name}}, Select: &ebbv1.BitmapQuestion_Ids{Ids: &ebbv1.BitmapPage{Limit: 100_000}},
			}}})
			continue
		case ebb.KindPhrases:
			ask(&ebbv1.Question{Ask: &ebbv1.Question_Match{Match: &ebbv1.MatchQuestion{
				Key:  name,
				Text: []byte("bin-1 or bin-2 and bin-7"),
			}}})
			continue
		case ebb.KindTopK, ebb.KindCountMin, ebb.KindBloom:
			s.Bins = [][]byte{[]byte("bin-1"), []byte("bin-2"), []byte("never")}
			if kind == ebb.KindTopK {
				s.Top = 10
			}
		case ebb.KindQuantile:
			s.Quantiles = []float64{0, 0.5, 0.99}
		case ebb.KindSet, ebb.KindLinear:
			s.Members = true
		}
		ask(&ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: s}})
	}
	if len(all) > 0 {
		ask(&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys:   all,
			Select: &ebbv1.DistributionQuestion_All{All: true}, AsOfUs: us,
		}}})
	}
	if len(all) > 0 && trends {
		ask(&ebbv1.Question{Ask: &ebbv1.Question_Trend{Trend: &ebbv1.TrendQuestion{
			Keys: all,
			Bins: [][]byte{[]byte("bin-1")}, Top: 100, AsOfUs: us,
		}}})
	}
	return out
}

// sameAnswers compares what two namespaces answer.
func sameAnswers(t *testing.T, c *ebb.Client, from, to string, keys map[string]ebb.Kind, at time.Time) {
	t.Helper()
	list, err := c.Namespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	trends := slices.ContainsFunc(list, func(n ebb.Namespace) bool { return n.Name == to && *n.SlowHalfLife > 0 })
	questions := questionsOf(from, keys, at, trends)
	var others []*ebbv1.Question
	for _, q := range questions {
		other := &ebbv1.Question{Namespace: to, Ask: q.Ask}
		others = append(others, other)
	}
	here, err := c.Ask(t.Context(), questions)
	there, err2 := c.Ask(t.Context(), others)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	for i := range here {
		if d := here[i].GetDistribution(); d.GetDecay() == ebb.DecayLinear &&
			len(proto.QuestionKeys(questions[i])) > 1 {
			continue // a sum of buckets that leak depends on which of them lie in one shard
		}
		if where := difference(here[i].ProtoReflect(), there[i].ProtoReflect()); where != "" {
			t.Errorf("asked %v: %s", questions[i], where)
		}
	}
}

// randomNamespace makes a namespace and keys of all kinds that it may have. Some keys expire.
func randomNamespace(t *testing.T, c *ebb.Client, rng *rand.Rand, name string) (keys map[string]ebb.Kind) {
	t.Helper()
	ctx := t.Context()
	one := func(n int) bool { return rng.IntN(n) == 0 }
	ns := ebb.Namespace{
		Name: name, HalfLife: time.Duration(5+rng.IntN(100)) * time.Minute, HashSeed: rng.Uint64(), Threshold: 1e-6,
		Decay:     []ebb.Decay{ebb.DecayHalfLife, ebb.DecayHalfLife, ebb.DecayLinear, ebb.DecayNone}[rng.IntN(4)],
		Clock:     []ebb.Clock{ebb.ClockWall, ebb.ClockEvent}[rng.IntN(2)],
		Precision: []ebb.Precision{ebb.PrecisionDefault, ebb.PrecisionCompact}[rng.IntN(2)],
		Floor:     []ebb.Floor{ebb.FloorPrune, ebb.FloorClamp, ebb.FloorPrior}[rng.IntN(3)],
	}
	if ns.Decay == ebb.DecayHalfLife && !one(3) {
		ns.SlowHalfLife = new(ns.HalfLife * 10)
	}
	if ns.Decay != ebb.DecayLinear && one(3) {
		ns.Window = new(20 * time.Minute)
	}
	if ns.SlowHalfLife == nil && one(3) {
		ns.AllowNegative = new(true)
	}
	if _, err := c.CreateNamespace(ctx, ns); err != nil {
		t.Fatal(err)
	}
	kinds := []ebb.Kind{ebb.KindDistribution, ebb.KindDistribution}
	if ns.Decay != ebb.DecayLinear {
		kinds = append(kinds, ebb.KindDistinct, ebb.KindCountMin, ebb.KindQuantile, ebb.KindTopK, ebb.KindLinear,
			ebb.KindMorris, ebb.KindBloom, ebb.KindSet,
			ebb.KindString, ebb.KindPhrases, ebb.KindBitmap)
	}
	keys = map[string]ebb.Kind{}
	for i := range 40 { // ids of bitmaps bring no time, and a shard that has seen no event has none yet
		key := fmt.Sprintf("clock/%d", i)
		keys[key] = ebb.KindDistribution
		if err := c.Increment(ctx, name, ebb.Increment{Key: key, Bin: "b", Amount: 1e6, Time: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 60 {
		kind := kinds[rng.IntN(len(kinds))]
		key := fmt.Sprintf("key/%d", rng.IntN(40))
		if was, there := keys[key]; there {
			kind = was
		}
		keys[key] = kind
		var err error
		switch in := (ebb.Increment{Key: key, Kind: kind, Amount: 1, Time: time.Now()}); kind {
		case ebb.KindBitmap:
			ids := make([]uint64, 1+rng.IntN(300))
			for i := range ids {
				ids[i] = rng.Uint64N(1 << 40)
			}
			_, err = c.SetBits(ctx, name, key, ids...)
		case ebb.KindString:
			in.Text = fmt.Sprint("text ", i)
			err = c.Increment(ctx, name, in)
		default:
			var list []ebb.Increment
			for range 1 + rng.IntN(30) {
				in.Bin, in.Value = fmt.Sprintf("bin-%d", rng.IntN(12)), rng.Float64()*100
				if kind == ebb.KindDistribution && one(5) {
					in.Amount = rng.Float64() * 10
				}
				list = append(list, in)
			}
			err = c.Increment(ctx, name, list...)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rng.IntN(200)) * time.Second)
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if one(8) {
			if _, err := c.Expire(ctx, name, time.Duration(100+rng.IntN(100))*time.Hour, key); err != nil {
				t.Fatal(err)
			}
		}
	}
	return keys
}

// The copy of a namespace answers as it does, whatever its settings and whatever its keys hold.
func TestCopiesOfNamespacesAnswerTheSame(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				c := w.connect()
				rng := rand.New(rand.NewPCG(seed, 1))
				keys := randomNamespace(t, c, rng, "one")
				result, err := c.CopyNamespace(t.Context(), "one", "two", ebb.CopyOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if result.Keys+result.Gone > len(keys) || result.Keys == 0 || result.Bytes == 0 ||
					result.Namespace.Name != "two" {
					t.Errorf("of %d keys: %+v", len(keys), result)
				}
				at := time.Now().Add(time.Minute)
				sameAnswers(t, c, "one", "two", keys, at)
				sameAnswers(t, c, "one", "two", keys, at.Add(10*time.Minute))
				if _, err := c.CopyNamespace(t.Context(), "one", "two", ebb.CopyOptions{Resume: true}); err != nil {
					t.Fatalf("once more: %v", err)
				}
				sameAnswers(t, c, "one", "two", keys, at)
			})
		})
	}
}

// Bitmaps that fit no command are copied by their ids, and so are those that lie by slice or stand for strings.
func TestCopiesOfBitmaps(t *testing.T) {
	for name, ns := range map[string]ebb.Namespace{
		"by key": {}, "by slice": {BitmapPlacement: ebb.PlaceBySlice}, "dictionary": {Dictionary: true}, "dictionary by slice": {Dictionary: true, BitmapPlacement: ebb.PlaceBySlice},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 3)
				c := w.connect()
				ctx := t.Context()
				ns.Name = "one"
				if _, err := c.CreateNamespace(ctx, ns); err != nil {
					t.Fatal(err)
				}
				b := func(ns, key string) ebb.Bitmap { return c.Bitmap(ns, ebb.Bits(key)) }
				var err error
				if ns.Dictionary {
					var names []string
					for i := range 12_000 {
						names = append(names, fmt.Sprintf("user-%d", i))
					}
					_, err = c.SetNames(ctx, "one", "large", names...)
				} else {
					ids := make([]uint64, 0, 200_000)
					for i := range uint64(150_000) {
						ids = append(ids, i*977)
					}
					if _, err = c.SetBits(ctx, "one", "large", ids...); err == nil {
						_, err = c.SetBitRange(ctx, "one", "large", 1<<33, 1<<33+99_999)
					}
				}
				if err != nil {
					t.Fatal(err)
				}
				expires := time.Now().Add(time.Hour).Truncate(time.Microsecond)
				if _, err := c.ExpireAt(ctx, "one", expires, "large"); err != nil {
					t.Fatal(err)
				}
				result, err := c.CopyNamespace(ctx, "one", "two", ebb.CopyOptions{})
				if err != nil || result.Keys != 1 {
					t.Fatalf("%v, %+v", err, result)
				}
				same := func() {
					t.Helper()
					if ns.Dictionary {
						got := map[string]bool{}
						for name, err := range b("two", "large").Names(ctx) {
							if err != nil {
								t.Fatal(err)
							}
							got[name] = true
						}
						if len(got) != 12_000 || !got["user-0"] || !got["user-11999"] {
							t.Errorf("%d strings", len(got))
						}
						return
					}
					here, there := idsOf(t, c, "one", "large"), idsOf(t, c, "two", "large")
					if len(here) != 250_000 || fmt.Sprint(here) != fmt.Sprint(there) {
						t.Errorf("%d ids, and %d in the copy", len(here), len(there))
					}
				}
				same()
				d, err := c.Describe(ctx, "two", "large")
				if err != nil || !d.Expires.Equal(expires) {
					t.Errorf("expires %v, not %v: %v", d.Expires, expires, err)
				}
				// What an interrupted copy has left there, and was taken out since, is not there when it is resumed.
				if ns.Dictionary {
					_, err = c.SetNames(ctx, "two", "large", "other")
				} else {
					_, err = c.SetBits(ctx, "two", "large", 1)
				}
				if _, again := c.CopyNamespace(ctx, "one", "two", ebb.CopyOptions{Resume: true}); again != nil ||
					err != nil {
					t.Fatal(again, err)
				}
				same()
			})
		})
	}
}

// What cannot be copied is refused before anything is made.
func TestCopiesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		ctx := t.Context()
		for _, ns := range []ebb.Namespace{
			{Name: "one", Decay: ebb.DecayNone},
			{Name: "there"},
			{Name: "large", Decay: ebb.DecayNone, Kind: ebb.KindPhrases},
			{Name: "periods", BitmapPlacement: ebb.PlaceBySlice, Rollups: []ebb.Period{ebb.PeriodMonth}},
		} {
			if _, err := c.CreateNamespace(ctx, ns); err != nil {
				t.Fatal(err)
			}
		}
		var bins, phrases []ebb.Increment
		for i := range 3_000 {
			bins = append(bins, ebb.One("wide", fmt.Sprintf("%s-%d", strings.Repeat("b", 100), i)))
			phrases = append(phrases, ebb.Increment{
				Key: "phrases",
				Bin: fmt.Sprintf("%s-%d", strings.Repeat("p", 100), i), Amount: 1, Kind: ebb.KindPhrases,
			})
		}
		for i := range bins {
			bins[i].Kind = ebb.KindDistribution
		}
		w.setVersion(proto.VersionGoneBack) // which has no pieces
		c = w.connect()
		small := ebb.Increment{Key: "small", Bin: "x", Amount: 1, Kind: ebb.KindDistribution}
		for _, list := range [][]ebb.Increment{bins, phrases, {small}} {
			if err := c.Increment(ctx, "large", list...); err != nil {
				t.Fatal(err)
			}
		}
		for _, tt := range []struct {
			from, to string
			opts     ebb.CopyOptions
			want     error
		}{
			{"one", "one", ebb.CopyOptions{}, ebb.ErrBadNamespace},
			{"none", "two", ebb.CopyOptions{}, ebb.ErrNamespaceNotFound},
			{"one", "not a name", ebb.CopyOptions{}, ebb.ErrBadNamespace},
			{"one", "there", ebb.CopyOptions{}, ebb.ErrNamespaceExists},
			{"one", "default", ebb.CopyOptions{}, ebb.ErrNamespaceExists},
			{"one", "there", ebb.CopyOptions{Resume: true}, ebb.ErrBadNamespace},
			{"large", "two", ebb.CopyOptions{}, ebb.ErrKeyTooLarge},
			{"periods", "two", ebb.CopyOptions{}, ebb.ErrBadNamespace},
		} {
			if _, err := c.CopyNamespace(ctx, tt.from, tt.to, tt.opts); !errors.Is(err, tt.want) {
				t.Errorf("%s to %s: %v", tt.from, tt.to, err)
			}
		}
		all, err := c.Namespaces(ctx)
		if err != nil || len(all) != 5 {
			t.Errorf("%d namespaces: %v", len(all), err)
		}
		result, err := c.CopyNamespace(ctx, "large", "two", ebb.CopyOptions{SkipTooLarge: true})
		if err != nil || result.Keys != 1 || result.LeftOut != 2 || len(result.Left) != 2 ||
			!errors.Is(result.Left[0].Err, ebb.ErrKeyTooLarge) {
			t.Errorf("%v, %+v", err, result)
		}
		sameAnswers(t, c, "large", "two", map[string]ebb.Kind{"small": ebb.KindDistribution},
			time.Now().Add(time.Minute))
	})
}

// A copy that is interrupted can be resumed where it was, and ends as one that was not.
func TestCopiesResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3)
		c := w.connect()
		rng := rand.New(rand.NewPCG(7, 7))
		keys := randomNamespace(t, c, rng, "one")
		for i := range 5_000 {
			key := fmt.Sprintf("many/%04d", i)
			keys[key] = ebb.KindDistribution
		}
		var list []ebb.Increment
		for key := range keys {
			if strings.HasPrefix(key, "many/") {
				list = append(list, ebb.Increment{
					Key: key, Bin: "bin-1", Amount: 1, Kind: ebb.KindDistribution,
					Time: time.Now(),
				})
			}
		}
		if err := c.Increment(t.Context(), "one", list...); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		result, err := c.CopyNamespace(ctx, "one", "two", ebb.CopyOptions{Progress: func(p ebb.CopyProgress) {
			if p.Keys > 2_500 {
				cancel()
			}
		}})
		if err == nil || result.Keys < 2_500 || result.Keys >= len(keys) || result.After == "" {
			t.Fatalf("%v, %+v", err, result)
		}
		// Commands are refused now and then, and answers are lost.
		c = w.connect(ebb.WithAttemptTimeout(30*time.Millisecond),
			ebb.WithBackoff(ebb.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}))
		w.setFault(func(string, *ebbv1.ShardCommand) (*proto.Error, bool) {
			switch rng.IntN(200) {
			case 0:
				return proto.ErrOverloaded.Errorf("busy"), false
			case 1:
				return nil, true
			case 2:
				return proto.ErrBadTime.Errorf("the clock is behind"), false
			}
			return nil, false
		})
		rest, err := c.CopyNamespace(t.Context(), "one", "two", ebb.CopyOptions{Resume: true, After: result.After})
		if err != nil || rest.Total >= len(keys) || rest.Keys == 0 || rest.After <= result.After {
			t.Fatalf("%v, %+v", err, rest)
		}
		w.setFault(nil)
		some := map[string]ebb.Kind{}
		for key, kind := range keys {
			if !strings.HasPrefix(key, "many/") || rng.IntN(30) == 0 {
				some[key] = kind
			}
		}
		sameAnswers(t, c, "one", "two", some, time.Now().Add(time.Minute))
		count := func(ns string) float64 {
			n, err := c.CountKeys(t.Context(), ns)
			if err != nil {
				t.Fatal(err)
			}
			return n.Value
		}
		if here, there := count("one"), count("two"); here != there {
			t.Errorf("%v keys, and %v in the copy", here, there)
		}
	})
}
