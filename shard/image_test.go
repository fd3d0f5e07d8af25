package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

func exported(f *frame, namespace, key string) *ebbv1.KeyExport {
	q := &ebbv1.Question{
		Namespace: namespace,
		Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{
			Key:  []byte(key),
			Both: f.behaviour >= BehaviourDeletion,
		}},
	}
	return f.Ask(&ebbv1.ShardQuestion{Question: q}, 0).GetAnswer().GetExport()
}

// What a key holds, of whatever kind, is the same in another shard: it answers the same, and has the same image and
// checksum.
func TestImagesTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		script := newScript(t)
		script.kinds = rapid.Bool().Draw(t, "kinds")
		one, two := New(1, Heap{}), New(2, Heap{})
		index := uint64(0)
		for range rapid.IntRange(1, 15).Draw(t, "entries") {
			index++
			stamp, commands := script.entry()
			one.Apply(index, encodeEntry(t, stamp, commands), nil)
		}
		index = 0
		for _, ns := range one.namespaces {
			define := &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: ns.definition}}
			index++
			two.Apply(index, encodeEntry(t, int64(one.now), []*ebbv1.Command{define}), nil)
		}
		if rapid.Bool().Draw(t, "both half-lives") {
			version := rapid.SampledFrom([]uint32{BehaviourDeletion, BehaviourSlowKeys}).Draw(t, "behaviour")
			behave := []*ebbv1.Command{{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: version}}}}
			one.Apply(one.applied+1, encodeEntry(t, int64(one.now), behave), nil)
			index++
			two.Apply(index, encodeEntry(t, int64(one.now), behave), nil)
		}
		for key := range one.summaries.keys.all {
			ns := one.namespaces[one.summary(key).space]
			name, space := string(one.keys.bytesOf(key)), ns.definition.Name
			export := exported(&one.frame, space, name)
			if !export.Found {
				continue
			}
			index++
			put := &ebbv1.Command{Namespace: space, Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte(name), What: &ebbv1.PutKey_Image{Image: export.Image}}}}
			r := two.Apply(index, encodeEntry(t, int64(one.now), []*ebbv1.Command{put, put}), nil)
			if r[0].Error != nil || r[1].Error != nil {
				t.Fatalf("key %s of %s: %v", name, space, r)
			}
			audit(t, two)
			back := exported(&two.frame, space, name)
			if back.Checksum != export.Checksum || !bytes.Equal(back.Image, export.Image) {
				t.Fatalf("key %s of %s: %d bytes went, %d came:\n%x\n%x", name, space, len(export.Image), len(back.Image), export.Image, back.Image)
			}
			q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: space, Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: []byte(name), AsOfUs: int64(one.now)}}}}
			here, there := one.Ask(q, 0).GetAnswer().GetDescribe(), two.Ask(q, 0).GetAnswer().GetDescribe()
			there.Key.Shard = here.Key.Shard
			here.Bytes, there.Bytes = 0, 0             // of ids, which differ
			here.MemoryBytes, there.MemoryBytes = 0, 0 // room to grow depends on how a key came to be
			if !pb.Equal(here, there) {
				t.Fatalf("here %v\nthere %v", here, there)
			}
		}
		if again := reopen(t, two); again.Checksum() != two.Checksum() {
			t.Fatalf("the state changed by a restart")
		}
	})
}

// An image of a time that the other shard has not reached is refused, and nothing is put.
func TestImagesOfTheFuture(t *testing.T) {
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second}
	one, two := definedAt(t, def, beginning+second), definedAt(t, def, beginning)
	one.Apply(2, encodeEntry(t, beginning+second, []*ebbv1.Command{increments("k", "a")}), nil)
	export := exported(&one.frame, "", "k")
	put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Image{Image: export.Image}}}}
	if r := two.Apply(2, encodeEntry(t, beginning, []*ebbv1.Command{put}), nil); r[0].GetError().GetCode() != ebbv1.Code_CODE_BAD_TIME || two.Keys() != 0 {
		t.Fatalf("put: %v, and %d keys", r, two.Keys())
	}
	if r := two.Apply(3, encodeEntry(t, beginning+second, []*ebbv1.Command{put}), nil); r[0].Error != nil || two.Keys() != 1 {
		t.Fatalf("put: %v, and %d keys", r, two.Keys())
	}
}

func putImage(namespace, key string, img []byte) *ebbv1.Command {
	return &ebbv1.Command{Namespace: namespace, Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{
		Key: []byte(key), What: &ebbv1.PutKey_Image{Image: img},
	}}}
}

// An image of another half-life means what it did also in a namespace without events, whose settings begin at a time of
// the machine that its event clock has not reached.
func TestImagesOfOtherSettingsWithoutEvents(t *testing.T) {
	def := &ebbv1.Namespace{
		Name: "default", Version: 1, HalfLifeUs: 10 * second, Clock: ebbv1.Clock_CLOCK_EVENT,
	}
	const past = beginning - 400*86_400*second
	minutely := pb.CloneOf(def)
	minutely.HalfLifeUs = 60 * second
	one, two := definedAt(t, def, beginning), definedAt(t, minutely, beginning)
	one.setBehaviour(BehaviourMax)
	two.setBehaviour(BehaviourMax)
	event := increments("k", "a")
	event.GetIncrements().Increments[0].TimeUs = past
	one.Apply(2, encodeEntry(t, beginning, []*ebbv1.Command{event}), nil)
	put := putImage("", "k", exported(&one.frame, "", "k").Image)
	if r := two.Apply(2, encodeEntry(t, beginning, []*ebbv1.Command{put}), nil); r[0].Error != nil {
		t.Fatal(r[0].Error)
	}
	d := two.Ask(question("", &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte("k")}, Select: &ebbv1.DistributionQuestion_All{All: true},
	}), 0).GetAnswer().GetDistribution()
	if got := d.GetZ(); got < 0.999 || got > 1.001 {
		t.Errorf("an event of weight 1 weighs %v after it went to another shard", got)
	}
}

// A put goes over a key only if it may.
func TestPutReplaces(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, beginning)
	index := uint64(1)
	apply := func(commands ...*ebbv1.Command) ebbv1.Code {
		t.Helper()
		index++
		r := s.Apply(index, encodeEntry(t, beginning, commands), nil)
		audit(t, s)
		return r[0].GetError().GetCode()
	}
	apply(increments("a", "x"), increments("b", "y", "z"))
	a, b := exported(&s.frame, "", "a"), exported(&s.frame, "", "b")
	put := func(edit func(*ebbv1.PutKey)) *ebbv1.Command {
		p := &ebbv1.PutKey{Key: []byte("b"), What: &ebbv1.PutKey_Image{Image: a.Image}}
		edit(p)
		return &ebbv1.Command{Body: &ebbv1.Command_Put{Put: p}}
	}
	if code := apply(put(func(*ebbv1.PutKey) {})); code != ebbv1.Code_CODE_KEY_EXISTS {
		t.Errorf("over another: %v", code)
	}
	if code := apply(put(func(p *ebbv1.PutKey) { p.Replace = &a.Checksum })); code != ebbv1.Code_CODE_KEY_EXISTS {
		t.Errorf("over another than it expects: %v", code)
	}
	if code := apply(put(func(p *ebbv1.PutKey) { p.Replace = &b.Checksum })); code != 0 || exported(&s.frame, "", "b").Checksum != a.Checksum {
		t.Errorf("over what it expects: %v", code)
	}
	if n := s.bins.names.live; n != 1 {
		t.Errorf("%d bins are left of the one that both have", n)
	}
	del := func(checksum uint64) *ebbv1.Command {
		return &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("a")}, Checksum: &checksum}}}
	}
	if apply(del(b.Checksum)); s.Keys() != 2 {
		t.Errorf("deleted a key that is another by now")
	}
	if apply(del(a.Checksum)); s.Keys() != 1 {
		t.Errorf("%d keys are kept", s.Keys())
	}
}

// Deleted keys leave nothing behind. The memory of many large ones comes back bit by bit as entries are applied.
func TestDeletedKeysLeave(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}, beginning)
	index, names := uint64(1), [][]byte{}
	for k := range 40 {
		var bins []string
		for b := range 2000 {
			bins = append(bins, string(binary.BigEndian.AppendUint32(nil, uint32(b))))
		}
		name := string(rune('a' + k))
		names = append(names, []byte(name))
		index++
		s.Apply(index, encodeEntry(t, beginning, []*ebbv1.Command{increments(name, bins...)}), nil)
	}
	index++
	s.Apply(index, encodeEntry(t, beginning, []*ebbv1.Command{{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: names}}}}), nil)
	if s.Keys() == 0 || s.Keys() > 39 {
		t.Errorf("after the delete %d keys are kept: some leave at once, and not all", s.Keys())
	}
	count := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}}, 0)
	if n := count.GetAnswer().GetCountKeys().GetKeys(); n != 0 {
		t.Errorf("%d deleted keys are counted", n)
	}
	for range 40 {
		index++
		s.Apply(index, encodeEntry(t, beginning, []*ebbv1.Command{{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}}}), nil)
		audit(t, s)
	}
	if s.Keys() != 0 || s.bins.names.live != 0 || s.cleanups.n != 0 {
		t.Errorf("%d keys, %d bins and %d cleanups are left", s.Keys(), s.bins.names.live, s.cleanups.n)
	}
}

// Whatever bytes are put: they are refused, or make a key that holds up.
func FuzzPutImage(f *testing.F) {
	base := func(t fataler) *State {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second}, beginning)
		s.Apply(2, encodeEntry(t, beginning, []*ebbv1.Command{increments("k", "a", "b")}), nil)
		return s
	}
	s := base(f)
	f.Add(exported(&s.frame, "", "k").Image)
	for kind := ebbv1.Kind_KIND_DISTINCT; kind <= proto.EventKindMax; kind++ {
		c := increments("other", "a", "b")
		for _, in := range c.GetIncrements().Increments {
			in.Kind = kind
			if kind == ebbv1.Kind_KIND_QUANTILE {
				in.Value = new(0.5)
			}
			if kind == ebbv1.Kind_KIND_STRING {
				in.Text = []byte("text")
			}
		}
		s := base(f)
		s.Apply(3, encodeEntry(f, beginning, []*ebbv1.Command{c}), nil)
		f.Add(exported(&s.frame, "", "other").Image)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s := base(t)
		before := s.Checksum()
		s.Apply(3, encodeEntry(t, beginning, nil), nil)
		put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("new"), What: &ebbv1.PutKey_Image{Image: raw}}}}
		r := s.Apply(4, encodeEntry(t, beginning, []*ebbv1.Command{put}), nil)[0]
		audit(t, s)
		s.Apply(5, encodeEntry(t, beginning+second, []*ebbv1.Command{increments("new", "a")}), nil)
		if reopen(t, s); r.Error == nil && s.Checksum() == before {
			t.Errorf("put, and nothing is there")
		}
		// merged with what came before, and with a distribution
		behave := &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourSketches}}}
		commands := []*ebbv1.Command{behave}
		for _, key := range []string{"new", "k"} {
			put := &ebbv1.PutKey{Key: []byte(key), What: &ebbv1.PutKey_Image{Image: raw}, Merge: true}
			commands = append(commands, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}})
		}
		s.Apply(6, encodeEntry(t, beginning+2*second, commands), nil)
		audit(t, s)
		s.Apply(7, encodeEntry(t, beginning+3*second, []*ebbv1.Command{increments("new", "a"), increments("k", "a")}), nil)
		if again := reopen(t, s); again.Checksum() != s.Checksum() {
			t.Errorf("the state changed by a restart")
		}
	})
}

// Parts of lists from elsewhere are refused, or make a list of keys and numbers.
func FuzzMergeKeys(f *testing.F) {
	s := definedAt(f, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second}, beginning)
	s.Apply(2, encodeEntry(f, beginning, []*ebbv1.Command{increments("link/a", "x"), increments("link/b", "x", "y")}), nil)
	q := &ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Limit: 3}}}
	own := s.Ask(&ebbv1.ShardQuestion{Question: q, Partial: true}, 0)
	f.Add(own.GetPart(), int32(0))
	f.Add([]byte{partKeys}, int32(ebbv1.KeyOrder_KEY_ORDER_TOTAL))
	f.Fuzz(func(t *testing.T, raw []byte, order int32) {
		q := &ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Limit: 3, Order: ebbv1.KeyOrder(order)}}}
		part := &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Part{Part: raw}}
		a, err := Merge(q, []*ebbv1.ShardAnswer{own, part})
		if err != nil {
			return
		}
		for _, info := range a.GetKeys().GetKeys() {
			if len(info.Key) == 0 || !number(info.GetTotal().GetValue()) {
				t.Fatalf("listed %v", info)
			}
		}
		if n := len(a.GetKeys().GetKeys()); n > 3 {
			t.Fatalf("%d keys of 3", n)
		}
	})
}

// What it takes to list the hottest of many keys, and to look through their names.
func BenchmarkKeys(b *testing.B) {
	const keys = 100_000
	s := definedAt(b, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 3600 * second}, beginning)
	for i := range keys / 1000 {
		var commands []*ebbv1.Command
		for k := range 1000 {
			commands = append(commands, increments(fmt.Sprintf("link/%d/%06d", i%10, 1000*i+k), "a", "b", "c", "d"))
		}
		s.Apply(uint64(i)+2, encodeEntry(b, beginning, commands), nil)
	}
	for name, q := range map[string]*ebbv1.KeysQuestion{
		"by name":    {Limit: 100},
		"of pattern": {Pattern: []byte("link/3/*"), Limit: 100},
		"hottest":    {Order: ebbv1.KeyOrder_KEY_ORDER_TOTAL, Limit: 20},
	} {
		b.Run(name, func(b *testing.B) {
			question := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: q}}, Partial: true}
			for b.Loop() {
				if a := s.Ask(question, 0); a.GetError() != nil {
					b.Fatal(a)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/keys, "ns/key")
		})
	}
}

// A key that is too large to travel is not written down to find that out, whoever asks for its image or guesses its
// checksum.
func TestTooLargeForAnImage(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE, BinsMax: 100_000}, beginning)
	const bins = comparableMax/leastBin + 1
	for first := 0; first < bins; first += 10_000 {
		var names []string
		for b := first; b < min(first+10_000, bins); b++ {
			names = append(names, string(binary.BigEndian.AppendUint32(nil, uint32(b))))
		}
		s.Apply(s.applied+1, encodeEntry(t, beginning, []*ebbv1.Command{increments("k", names...)}), nil)
	}
	q := &ebbv1.Question{Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: []byte("k")}}}
	checksum := uint64(1)
	del := &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}, Checksum: &checksum}}}
	var many []*ebbv1.Command
	for range 100 {
		many = append(many, del)
	}
	entry := encodeEntry(t, beginning, many)
	allocated := testing.AllocsPerRun(1, func() {
		if a := s.Ask(&ebbv1.ShardQuestion{Question: q}, 0); a.GetError().GetCode() != ebbv1.Code_CODE_KEY_TOO_LARGE {
			t.Fatalf("%v", a)
		}
		for _, r := range s.Apply(s.applied+1, entry, nil) {
			if r.Error != nil || r.Applied != 0 {
				t.Fatalf("%v", r)
			}
		}
	})
	if allocated > bins/10 {
		t.Errorf("%.0f allocations for a key of %d bins", allocated, bins)
	}
}

// A few bytes that claim a large and nearly empty summary are refused before memory is taken for it, unless the
// namespace makes such ones.
func TestImageTakesNoMoreThanItsNamespaceAllows(t *testing.T) {
	hash := func(ns *namespace) sketch.Hash { return sketch.Hash{ID: sketch.HashXXH3, Seed: ns.seed} }
	for name, claim := range map[string]func(ns *namespace) (body, error){
		"countmin": func(ns *namespace) (body, error) {
			c, err := sketch.NewCountMin(sketch.CountMinParams{Epsilon: 1e-5, Delta: 0.1, HalfLife: 10 * second, Hash: hash(ns)})
			return &countMin{c}, err
		},
		"bloom": func(ns *namespace) (body, error) {
			f, err := sketch.NewBloomScalable(sketch.BloomParams{Capacity: 20_000_000, FalseRate: 0.01, Hash: hash(ns)})
			return &bloom{f}, err
		},
		"bloom of a half-life": func(ns *namespace) (body, error) {
			f, err := sketch.NewBloomExpiring(sketch.BloomExpiringParams{Capacity: 10_000_000, FalseRate: 0.01, Window: 10 * second, Hash: hash(ns)})
			return &bloomExpiring{f}, err
		},
		"bloom of a half-life that grows": func(ns *namespace) (body, error) {
			f, err := sketch.NewBloomTimed(sketch.BloomTimedParams{
				Capacity: 10_000_000, FalseRate: 0.01, Window: 10 * second, Hash: hash(ns),
			})
			return &bloomTimed{f}, err
		},
	} {
		s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 10 * second}, beginning)
		s.setBehaviour(BehaviourMax)
		ns := s.lookup(nil)
		b, err := claim(ns)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.add(&event{now: beginning, at: beginning, bin: []byte("x"), seed: ns.seed, amount: 1}); err != nil {
			t.Fatal(err)
		}
		raw := binary.AppendUvarint([]byte{imageMagic, imageVersion}, uint64(beginning))
		raw = b.appendBinary(append(raw, 0, byte(b.form())))
		if len(raw) > 200 || b.Reserved() < 1<<20 {
			t.Fatalf("%s: %d bytes for %d of memory", name, len(raw), b.Reserved())
		}
		put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Image{Image: raw}}}}
		entry := encodeEntry(t, beginning, []*ebbv1.Command{put})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := s.Apply(2, entry, nil)[0]
		runtime.ReadMemStats(&after)
		if r.GetError().GetCode() != ebbv1.Code_CODE_BAD_REQUEST || s.Keys() != 0 {
			t.Errorf("%s: %v, and %d keys", name, r, s.Keys())
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("%s: %d bytes of memory for %d", name, took, len(raw))
		}
	}
}

// What the commands of an entry compare with checksums is bounded together: a few bytes must not have a large key
// written down each time.
func TestComparisonsOfAnEntryAreBounded(t *testing.T) {
	s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE, BinsMax: 100_000}, beginning)
	for first := 0; first < 15_000; first += 5_000 {
		var names []string
		for b := range 5_000 {
			names = append(names, string(binary.BigEndian.AppendUint32(nil, uint32(first+b))))
		}
		s.Apply(s.applied+1, encodeEntry(t, beginning, []*ebbv1.Command{increments("k", names...)}), nil)
	}
	wrong := uint64(1)
	del := &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{[]byte("k")}, Checksum: &wrong}}}
	put := &ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_From{From: []byte("small")}, Replace: &wrong}}}
	commands := []*ebbv1.Command{increments("small", "x")}
	for range 20 {
		commands = append(commands, del, put)
	}
	compared := 0
	for _, r := range s.Apply(s.applied+1, encodeEntry(t, beginning, commands), nil)[1:] {
		if r.GetError().GetCode() != ebbv1.Code_CODE_OVERLOADED {
			compared++
		}
	}
	if most := comparedMax / (15_000 * 7); compared == 0 || compared > most {
		t.Errorf("%d comparisons in one entry: the budget is good for %d", compared, most)
	}
	right := exported(&s.frame, "", "k").Checksum
	del.GetDelete().Checksum = &right
	if r := s.Apply(s.applied+1, encodeEntry(t, beginning, []*ebbv1.Command{del}), nil)[0]; r.GetApplied() != 1 {
		t.Errorf("in an entry of its own: %v", r)
	}
	audit(t, s)
}
