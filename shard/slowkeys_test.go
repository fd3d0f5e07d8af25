package shard

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// slowCase is a shard in which the first half-life has forgotten key a/k, while the second one knows much of it,
// and b/k is alive under both.
type slowCase struct {
	*State
	t   *testing.T
	now int64
}

func newSlowCase(t *testing.T, clock ebbv1.Clock) *slowCase {
	c := &slowCase{State: definedAt(t, slowDefinition(clock), beginning), t: t, now: beginning}
	c.must(behaving(BehaviourSlowKeys))
	for range 100 {
		c.now += 10 * second
		c.add("a/k", "x", "x", "y")
	}
	for range 100 {
		c.now += 10 * second
		c.add("b/k", "x")
	}
	if key, ok := c.findKey(c.lookup(nil), []byte("a/k")); ok {
		t.Fatalf("key %d has not left", key)
	}
	if by, _ := usageOf(c.State); by["default"].Keys != 2 || c.Keys() != 2 {
		t.Fatalf("2 keys are said to be %d, and in the shard %d", by["default"].Keys, c.Keys())
	}
	return c
}

func behaving(version uint32) *ebbv1.Command {
	return &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}}
}

// imagePut puts an image under a key.
func imagePut(key string, image []byte) *ebbv1.PutKey {
	return &ebbv1.PutKey{Key: []byte(key), What: &ebbv1.PutKey_Image{Image: image}}
}

// mergePut merges an image into a key.
func mergePut(key string, image []byte) *ebbv1.PutKey {
	put := imagePut(key, image)
	put.Merge = true
	return put
}

func slowDefinition(clock ebbv1.Clock) *ebbv1.Namespace {
	return &ebbv1.Namespace{
		Name: "default", Version: 1, HalfLifeUs: 10 * second, SlowHalfLifeUs: new(int64(1000 * second)), Clock: clock,
	}
}

func (c *slowCase) apply(cmd *ebbv1.Command) *ebbv1.CommandResult {
	c.t.Helper()
	r := c.Apply(c.applied+1, encodeEntry(c.t, c.now, []*ebbv1.Command{cmd}), nil)[0]
	audit(c.t, c.State)
	return r
}

func (c *slowCase) must(cmd *ebbv1.Command) *ebbv1.CommandResult {
	c.t.Helper()
	r := c.apply(cmd)
	if r.Error != nil || len(r.Refused) > 0 {
		c.t.Fatalf("%v", r)
	}
	return r
}

func (c *slowCase) add(key string, bins ...string) {
	c.t.Helper()
	cmd := increments(key, bins...)
	for _, in := range cmd.GetIncrements().Increments {
		in.TimeUs = c.now
	}
	c.must(cmd)
}

func (c *slowCase) ask(q *ebbv1.Question) *ebbv1.ShardAnswer {
	return c.Ask(&ebbv1.ShardQuestion{Question: q}, sketch.Tick(c.now))
}

func (c *slowCase) put(p *ebbv1.PutKey) *ebbv1.CommandResult {
	c.t.Helper()
	return c.apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: p}})
}

// rate is the usual rate of a bin of a key, 0 if nothing is known of it.
func (c *slowCase) rate(key string) float64 {
	return c.ask(trendOf(key)).GetAnswer().GetTrend().GetTotal().GetSlowRate()
}

func (c *slowCase) names(pattern string) string {
	var names []string
	q := &ebbv1.KeysQuestion{Pattern: []byte(pattern), Kind: ebbv1.Kind_KIND_DISTRIBUTION}
	list := c.ask(&ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: q}}).GetAnswer().GetKeys()
	for _, info := range list.GetKeys() {
		names = append(names, string(info.Key))
	}
	return fmt.Sprintf("%d %s", list.GetMatched(), names)
}

func (c *slowCase) keyCount() uint64 {
	q := &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}
	return c.ask(q).GetAnswer().GetCountKeys().GetKeys()
}

// A key that has faded under the first half-life only is there at every door, and what is done to it is done to both
// counts.
func TestSlowKeysAtEveryDoor(t *testing.T) {
	ttl := func(us int64, keys ...string) *ebbv1.Command {
		return &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{
			Keys: named(keys...), Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: us},
		}}}
	}
	image := func(c *slowCase) []byte { return exported(&c.frame, "", "a/k").Image }
	for name, try := range map[string]func(t *testing.T, c *slowCase){
		"lists": func(t *testing.T, c *slowCase) { // trends by pattern are made of them
			for pattern, want := range map[string]string{"**": "2 [a/k b/k]", "a/*": "1 [a/k]", "c*": "0 []"} {
				if got := c.names(pattern); got != want {
					t.Errorf("%s: keys %s, not %s", pattern, got, want)
				}
			}
			if n := c.keyCount(); n != 2 {
				t.Errorf("%d keys", n)
			}
			q := &ebbv1.KeysQuestion{Order: ebbv1.KeyOrder_KEY_ORDER_TOTAL}
			list := c.ask(&ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: q}}).GetAnswer().GetKeys().GetKeys()
			if len(list) != 2 || list[1].GetTotal().GetValue() != 0 || list[1].LastEventUs != beginning+1000*second ||
				list[1].FadesUs < c.now+1000*second {
				t.Errorf("%v", list)
			}
		},
		"describe": func(t *testing.T, c *slowCase) {
			ask := &ebbv1.DescribeQuestion{Key: []byte("a/k")}
			d := c.ask(&ebbv1.Question{Ask: &ebbv1.Question_Describe{Describe: ask}}).GetAnswer().GetDescribe()
			if !d.GetFound() || d.GetMemoryBytes() == 0 || d.GetKey().GetTotal().GetValue() != 0 {
				t.Errorf("%v", d)
			}
		},
		"missing": func(t *testing.T, c *slowCase) {
			dist := &ebbv1.DistributionQuestion{Keys: named("a/k"), Patterns: named("a/*")}
			dist.Select = &ebbv1.DistributionQuestion_Top{Top: 1}
			a := c.ask(&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: dist}})
			d := a.GetAnswer().GetDistribution()
			if len(a.Missing) > 0 || d.Found || d.Z != 0 || d.Matched != 1 || d.Lost == 0 || d.Lost > 0.002 {
				t.Errorf("%v", a)
			}
			dist.Keys = nil
			part := c.Ask(&ebbv1.ShardQuestion{
				Question: &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: dist}}, Partial: true,
			}, 0)
			merged, err := Merge(&ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: dist}},
				[]*ebbv1.ShardAnswer{part, part})
			if d := merged.GetDistribution(); err != nil || d.GetMatched() != 2 || d.GetLost() == 0 {
				t.Errorf("%v, %v", merged, err)
			}
			if a := c.ask(trendOf("a/k")); len(a.Missing) > 0 || !a.GetAnswer().GetTrend().GetFound() {
				t.Errorf("%v", a)
			}
		},
		"del": func(t *testing.T, c *slowCase) {
			r := c.must(deletionOf("a/k", "no"))
			if got := c.names("**"); r.Applied != 1 || got != "1 [b/k]" || c.rate("a/k") != 0 {
				t.Errorf("%v, then %s", r, got)
			}
			if r := c.must(deletionOf("a/k")); r.Applied != 0 {
				t.Errorf("once more: %v", r)
			}
		},
		"del if unchanged": func(t *testing.T, c *slowCase) {
			sum := exported(&c.frame, "", "a/k").Checksum
			for _, del := range []struct{ sum, applied uint64 }{{sum + 1, 0}, {sum, 1}, {sum, 0}} {
				cmd := deletionOf("a/k")
				cmd.GetDelete().Checksum = new(del.sum)
				if r := c.must(cmd); r.Applied != del.applied {
					t.Errorf("%v: %v", del, r)
				}
			}
		},
		"a key that fades between the steps of a rename": func(t *testing.T, c *slowCase) {
			for late, applied := range []uint64{1, 0} {
				c.add("c", "x")
				old := exported(&c.frame, "", "c")
				c.now += 300 * second
				c.add("b/k", "x")
				if late > 0 { // it counts under the second half-life only
					in := increments("c", "x")
					in.GetIncrements().Increments[0].TimeUs = c.now - 200*second
					c.must(in)
				}
				r := c.put(imagePut("d", old.Image))
				if r.Error != nil || r.Applied != 1 || exported(&c.frame, "", "d").Checksum != old.Checksum {
					t.Errorf("put: %v", r)
				}
				cmd := deletionOf("c")
				cmd.GetDelete().Checksum = new(old.Checksum)
				if r := c.must(cmd); r.Applied != applied {
					t.Errorf("late %d: %v", late, r)
				}
				c.must(deletionOf("d"))
			}
		},
		"expire": func(t *testing.T, c *slowCase) {
			if r := c.must(ttl(50*second, "a/k", "no")); r.Applied != 1 {
				t.Errorf("%v", r)
			}
			c.now += 40 * second
			c.add("a/k", "z") // it begins anew, and keeps its time to live
			if got := c.names("a/*"); got != "1 [a/k]" {
				t.Errorf("before: %s", got)
			}
			c.State = reopen(t, c.State)
			c.now += 20 * second
			c.add("b/k", "x")
			if got := c.names("a/*"); got != "0 []" || c.rate("a/k") != 0 {
				t.Errorf("after: %s", got)
			}
		},
		"rename": func(t *testing.T, c *slowCase) {
			rate := c.rate("a/k")
			move := func(from, to string, over bool) ebbv1.Code {
				return c.put(&ebbv1.PutKey{
					Key: []byte(to), What: &ebbv1.PutKey_From{From: []byte(from)}, Overwrite: over,
				}).GetError().GetCode()
			}
			code := move("a/k", "c/k", false)
			if got := c.names("**"); code != 0 || got != "2 [b/k c/k]" || c.rate("c/k") != rate {
				t.Errorf("%v, %s", code, got)
			}
			if code := move("b/k", "c/k", false); code != ebbv1.Code_CODE_KEY_EXISTS {
				t.Errorf("onto it: %v", code)
			}
			if code := move("c/k", "c/k", false); code != 0 {
				t.Errorf("onto itself: %v", code)
			}
			code = move("c/k", "b/k", true)
			if got := c.names("**"); code != 0 || got != "1 [b/k]" || c.rate("b/k") != rate {
				t.Errorf("over another: %v, %s", code, got)
			}
			if code := move("c/k", "d/k", true); code != ebbv1.Code_CODE_KEY_NOT_FOUND {
				t.Errorf("what is gone: %v", code)
			}
		},
		"an event": func(t *testing.T, c *slowCase) { // joins what the slow namespace has
			rate := c.rate("a/k")
			c.add("a/k", "x")
			if got := c.rate("a/k"); got <= rate || c.names("**") != "2 [a/k b/k]" || c.keyCount() != 2 {
				t.Errorf("rate %v after %v, %s", got, rate, c.names("**"))
			}
		},
		"snapshot": func(t *testing.T, c *slowCase) {
			again := &slowCase{State: reopen(t, c.State), t: t, now: c.now}
			if again.Checksum() != c.Checksum() || again.names("**") != c.names("**") ||
				again.rate("a/k") != c.rate("a/k") {
				t.Errorf("%s", again.names("**"))
			}
		},
		"image": func(t *testing.T, c *slowCase) {
			to := &slowCase{State: New(2, Heap{}), t: t, now: c.now}
			to.must(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: c.lookup(nil).definition}})
			to.must(behaving(BehaviourSlowKeys - 1))
			c.must(ttl(500*second, "a/k"))
			put := imagePut("a/k", image(c))
			if code := to.put(put).GetError().GetCode(); code != ebbv1.Code_CODE_KEY_NOT_FOUND {
				t.Errorf("into a shard of before: %v", code)
			}
			to.must(behaving(BehaviourSlowKeys))
			r := to.put(put)
			if r.Error != nil || r.Applied != 1 || to.names("**") != "1 [a/k]" || !near(to.rate("a/k"), c.rate("a/k")) {
				t.Fatalf("%v, %s, rate %v of %v", r, to.names("**"), to.rate("a/k"), c.rate("a/k"))
			}
			here, there := exported(&c.frame, "", "a/k"), exported(&to.frame, "", "a/k")
			if here.Checksum != there.Checksum || !bytes.Equal(here.Image, there.Image) {
				t.Error("it has another image there")
			}
			if r := to.put(put); r.Error != nil || r.Applied != 0 {
				t.Errorf("the same again: %v", r)
			}
			to.add("b/k", "x")
			other := imagePut("a/k", exported(&to.frame, "", "b/k").Image)
			if code := to.put(other).GetError().GetCode(); code != ebbv1.Code_CODE_KEY_EXISTS {
				t.Errorf("another in its place: %v", code)
			}
			other.Replace = new(exported(&to.frame, "", "a/k").Checksum)
			if r := to.put(other); r.Error != nil || r.Applied != 1 {
				t.Errorf("another in the place of just this: %v", r)
			}
			to.now += 500 * second
			to.add("b/k", "x")
			if r := to.put(put); r.GetError().GetCode() != ebbv1.Code_CODE_KEY_NOT_FOUND {
				t.Errorf("after its time to live: %v", r)
			}
		},
		"merge": func(t *testing.T, c *slowCase) {
			slow, alive := image(c), exported(&c.frame, "", "b/k").Image
			a, b := c.rate("a/k"), c.rate("b/k")
			for to, brought := range map[string][][]byte{
				"a/k": {alive}, "b/k": {slow}, "c": {slow, alive}, "d": {alive, slow},
			} {
				for _, img := range brought {
					if r := c.put(mergePut(to, img)); r.Error != nil {
						t.Errorf("%s: %v", to, r)
					}
				}
				now := c.ask(trendOf(to)).GetAnswer().GetTrend().GetTotal()
				if !near(now.SlowRate, a+b) || now.FastRate == 0 {
					t.Errorf("%s: %v, not %v + %v", to, now, a, b)
				}
			}
			if r := c.put(mergePut("e", slow)); r.Applied != 1 {
				t.Errorf("%v", r)
			}
			if r := c.put(mergePut("e", slow)); r.Applied != 1 || !near(c.rate("e"), 2*a) || c.names("e") != "1 [e]" {
				t.Errorf("%v, rate %v", r, c.rate("e"))
			}
		},
		"other shards": func(t *testing.T, c *slowCase) {
			for id := ID(1); id <= 3; id++ {
				namespaces := []*ebbv1.Namespace{c.lookup(nil).definition}
				s, err := Rehash(id, 3, Heap{}, []*State{c.State, New(2, Heap{})}, namespaces)
				if err != nil {
					t.Fatal(err)
				}
				audit(t, s)
				to := &slowCase{State: s, t: t, now: c.now}
				if proto.ShardOf("default", []byte("a/k"), 3) != uint32(id) {
					if to.rate("a/k") != 0 {
						t.Errorf("it is in shard %d", id)
					}
					continue
				}
				in := func(s *State) keyCounts {
					return countsAt(s, s.slowOf(s.lookup(nil)), "a/k", sketch.Tick(c.now))
				}
				if to.names("a/*") != "1 [a/k]" || !in(s).like(in(c.State)) {
					t.Errorf("%s, %v of %v", to.names("**"), in(s), in(c.State))
				}
			}
		},
		"the second half-life is turned off": func(t *testing.T, c *slowCase) {
			def := slowDefinition(c.lookup(nil).definition.Clock)
			def.Version, def.SlowHalfLifeUs = 2, new(int64(0))
			c.must(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
			if c.names("**") != "1 [b/k]" || c.keyCount() != 1 {
				t.Errorf("%s", c.names("**"))
			}
		},
	} {
		for _, clock := range []ebbv1.Clock{ebbv1.Clock_CLOCK_WALL, ebbv1.Clock_CLOCK_EVENT} {
			t.Run(fmt.Sprintf("%s, %s", name, clock), func(t *testing.T) { try(t, newSlowCase(t, clock)) })
		}
	}
}

// Shards of before know of no slow keys, and go the same way as ever.
func TestNoSlowKeysBefore(t *testing.T) {
	c := newSlowCase(t, ebbv1.Clock_CLOCK_WALL)
	c.behaviour = BehaviourSlowKeys - 1
	if r := c.must(deletionOf("a/k")); r.Applied != 0 || c.names("**") != "1 [b/k]" || c.keyCount() != 1 {
		t.Errorf("%v, %s", r, c.names("**"))
	}
	if by, _ := usageOf(c.State); by["default"].Keys != 1 || c.Keys() != 1 {
		t.Errorf("usage counts them")
	}
	if len(c.ask(trendOf("a/k")).Missing) != 1 || exported(&c.frame, "", "a/k").Found {
		t.Error("it is there")
	}
}

// A clock that is set back takes slow keys with later events along, also where a shard has not heard of that before its
// keys go to others.
func TestSlowKeysOfAClockSetBack(t *testing.T) {
	c := newSlowCase(t, ebbv1.Clock_CLOCK_EVENT)
	def := slowDefinition(ebbv1.Clock_CLOCK_EVENT)
	def.Version, def.ClockSetting = 2, &ebbv1.ClockSetting{Epoch: 1, TimeUs: beginning + 500*second}
	s, err := Rehash(1, 1, Heap{}, []*State{c.State}, []*ebbv1.Namespace{def})
	if err != nil {
		t.Fatal(err)
	}
	audit(t, s)
	if to := (&slowCase{State: s, t: t, now: c.now}); to.names("**") != "0 []" {
		t.Errorf("%s", to.names("**"))
	}
}

// Whatever happens, the doors agree on which keys are there: those that either half-life counts. So do replicas.
func TestSlowKeysAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := int64(beginning)
		def := slowDefinition(ebbv1.Clock_CLOCK_WALL)
		def.HalfLifeUs, def.SlowHalfLifeUs = 4*second, new(int64(12*second))
		if rapid.Bool().Draw(t, "faster") {
			def.SlowHalfLifeUs = new(int64(2 * second))
		}
		if rapid.Bool().Draw(t, "event time") {
			def.Clock = ebbv1.Clock_CLOCK_EVENT
		}
		s, twin := definedAt(t, def, now), definedAt(t, def, now)
		apply := func(c *ebbv1.Command) *ebbv1.CommandResult {
			entry := encodeEntry(t, now, []*ebbv1.Command{c})
			twin.Apply(twin.applied+1, entry, nil)
			return s.Apply(s.applied+1, entry, nil)[0]
		}
		apply(behaving(BehaviourSlowKeys))
		all := []string{"k", "l", "m"}
		draw := func(label string) string { return rapid.SampledFrom(all).Draw(t, label) }
		// sides are the counts of each half-life, of keys that are there.
		sides := func(at sketch.Tick) map[string][2]bool {
			out := map[string][2]bool{}
			ns := s.lookup(nil)
			for _, name := range all {
				var is [2]bool
				for i, of := range []*namespace{ns, s.slowOf(ns)} {
					key, ok := s.findKey(of, []byte(name))
					is[i] = ok && s.alive(of, key, at)
				}
				if is != [2]bool{} {
					out[name] = is
				}
			}
			return out
		}
		clock := func() sketch.Tick { return s.lookup(nil).clock(s.now) }
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.SampledFrom([]int64{0, second / 2, 20 * second, 60 * second, 200 * second}).Draw(t, "later")
			apply(&ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}})
			before := sides(clock())
			there := func(name string) bool { _, ok := before[name]; return ok }
			switch name := draw("key"); rapid.IntRange(0, 7).Draw(t, "what") {
			case 0:
				if r := apply(deletionOf(name)); r.Applied == 1 != there(name) || sides(clock())[name] != [2]bool{} {
					t.Fatalf("del %s: %v of %v", name, r, before)
				}
			case 1:
				ttl := rapid.SampledFrom([]int64{0, second, 50 * second}).Draw(t, "ttl")
				r := apply(&ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{
					Keys: named(name), Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: ttl},
				}}})
				if r.Applied == 1 != there(name) || len(sides(clock()+sketch.Tick(ttl))) > len(before)-int(r.Applied) {
					t.Fatalf("expire %s: %v of %v", name, r, before)
				}
			case 2:
				to := draw("to")
				r := apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
					Key: []byte(to), What: &ebbv1.PutKey_From{From: []byte(name)}, Overwrite: true,
				}}})
				after := sides(clock())
				left := to != name && after[name] != [2]bool{}
				if r.Applied == 1 != there(name) || there(name) && (after[to] != before[name] || left) {
					t.Fatalf("rename %s to %s: %v, %v and then %v", name, to, r, before, after)
				}
			case 3:
				to := draw("to")
				merge := rapid.Bool().Draw(t, "merge")
				put := imagePut(to, exported(&s.frame, "", name).Image)
				put.Overwrite, put.Merge = !merge, merge
				r := apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}})
				want := before[name]
				if merge {
					want[0], want[1] = want[0] || before[to][0], want[1] || before[to][1]
				}
				if after := sides(clock()); there(name) && (r.Error != nil || after[to] != want) {
					t.Fatalf("image of %s to %s, merged %v: %v, %v and then %v", name, to, merge, r, before, after)
				}
			default:
				c := increments(name, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "bin"))
				age := rapid.SampledFrom([]int64{0, second, 45 * second}).Draw(t, "age")
				c.GetIncrements().Increments[0].TimeUs = now - age
				apply(c)
			}
			audit(t, s)
			if rapid.IntRange(0, 4).Draw(t, "restart") == 0 {
				twin = reopen(t, twin)
			}
			if s.Checksum() != twin.Checksum() {
				t.Fatal("replicas differ")
			}
			at := clock() + sketch.Tick(rapid.SampledFrom([]int64{0, second, 30 * second}).Draw(t, "asked"))
			want := slices.Sorted(maps.Keys(sides(at)))
			list := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{
				Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{AsOfUs: int64(at)}},
			}}, 0)
			var got []string
			for _, info := range list.GetAnswer().GetKeys().GetKeys() {
				got = append(got, string(info.Key))
			}
			missing := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Trend{
				Trend: &ebbv1.TrendQuestion{Keys: named(all...), AsOfUs: int64(at)},
			}}}, 0).Missing
			if !slices.Equal(got, want) || len(missing) != len(all)-len(want) {
				t.Fatalf("keys %v, %v missing, want %v", got, missing, want)
			}
			for _, name := range all {
				d := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Describe{
					Describe: &ebbv1.DescribeQuestion{Key: []byte(name), AsOfUs: int64(at)},
				}}}, 0).GetAnswer().GetDescribe()
				_, here := sides(clock())[name]
				if d.GetFound() != slices.Contains(want, name) || exported(&s.frame, "", name).GetFound() != here {
					t.Fatalf("%s: described %v, there %v", name, d, here)
				}
			}
		}
	})
}
