package shard

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// smallLimits are soon reached.
func smallLimits() Limits {
	l := DefaultLimits()
	l.Sessions, l.SessionWindow, l.SessionExpiry = 3, 4, 10_000_000
	l.Sources = 2
	l.IdempotencyKeys, l.IdempotencyWindow = 4, 5_000_000
	return l
}

const second = 1_000_000

// script draws entries for a shard, some of them nonsense, many of them repetitions.
type script struct {
	t        *rapid.T
	now      int64
	versions uint64
	sessions []uint64
	sequence uint64
	epoch    uint64 // the newest of a source
	offset   uint64
	past     []*ebbv1.Command
	kinds    bool // keys of all kinds, not only distributions
	owners   bool // BehaviourNamespaces is in force, or is to be
	clocks   bool // event clocks follow each other, and are set
	setting  *ebbv1.ClockSetting
}

func newScript(t *rapid.T) *script {
	return &script{t: t, now: 1_700_000_000 * second}
}

func (d *script) entry() (stamp int64, commands []*ebbv1.Command) {
	d.now += rapid.SampledFrom([]int64{0, 1, 1000, second, 3 * second, 11 * second, 200 * second, -second}).Draw(d.t, "step")
	for range rapid.IntRange(1, 4).Draw(d.t, "commands") {
		commands = append(commands, d.command())
	}
	d.past = append(d.past, commands...)
	return d.now, commands
}

func (d *script) command() *ebbv1.Command {
	if d.clocks && rapid.IntRange(0, 9).Draw(d.t, "advance") == 0 {
		return &ebbv1.Command{Namespace: "history", Body: &ebbv1.Command_EventClock{EventClock: &ebbv1.EventClock{
			Epoch: d.setting.GetEpoch() - min(d.setting.GetEpoch(), rapid.Uint64Range(0, 1).Draw(d.t, "earlier epoch")),
			NowUs: d.now + rapid.SampledFrom([]int64{-40 * second, 0, 5 * second, 4000 * second}).Draw(d.t, "elsewhere"),
		}}}
	}
	switch kind := rapid.IntRange(0, 19).Draw(d.t, "kind"); {
	case kind < 4 && len(d.past) > 0:
		return rapid.SampledFrom(d.past[max(0, len(d.past)-20):]).Draw(d.t, "again")
	case kind < 6:
		return &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: d.namespace()}}
	case kind < 7 && !d.owners && rapid.IntRange(0, 3).Draw(d.t, "owners") == 0:
		d.owners = true
		return &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourNamespaces}}}
	case kind < 7:
		return &ebbv1.Command{Namespace: d.owner(), Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{Secret: d.secret()}}}
	case kind < 8:
		return &ebbv1.Command{Namespace: d.owner(), Body: &ebbv1.Command_CloseSession{
			CloseSession: &ebbv1.CloseSession{Session: d.session(), Secret: d.secret()},
		}}
	case kind < 9:
		return &ebbv1.Command{Namespace: d.owner(), Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: d.source(), Token: rapid.Uint64Range(1, 3).Draw(d.t, "token")}}}
	case kind < 10 && rapid.IntRange(0, 4).Draw(d.t, "drop") == 0:
		return &ebbv1.Command{Namespace: d.owner(), Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: d.source()}}}
	case kind < 11:
		return &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}}
	case kind < 13:
		return d.aboutKeys()
	}
	return d.increments()
}

// owner is the namespace of what a command opens or closes: mostly the same one, so that the next command finds it.
func (d *script) owner() string {
	return rapid.SampledFrom([]string{"", "default", "", "signed", "absent"}).Draw(d.t, "owner")
}

func (d *script) secret() uint64 {
	return rapid.SampledFrom([]uint64{7, 7, 7, 8, 0}).Draw(d.t, "secret")
}

// aboutKeys deletes keys, gives them a time to live, or moves one.
func (d *script) aboutKeys() *ebbv1.Command {
	c := &ebbv1.Command{Namespace: rapid.SampledFrom([]string{"", "history", "plain", "signed", "absent"}).Draw(d.t, "namespace of keys")}
	if rapid.Bool().Draw(d.t, "in a session") {
		d.sequence++
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
			Session:  d.session(),
			Sequence: d.sequence, Secret: d.secret(),
		}}
	}
	key := func(label string) []byte {
		return []byte(rapid.SampledFrom([]string{"k1", "k2", "k3", "k4"}).Draw(d.t, label))
	}
	switch rapid.IntRange(0, 4).Draw(d.t, "about keys") {
	case 0:
		c.Body = &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: [][]byte{key("deleted"), key("deleted too")}}}
	case 1:
		c.Body = &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{key("lasting")}}}
	case 2:
		at := d.now + rapid.SampledFrom([]int64{-second, 0, 1, 2 * second, 15 * second}).Draw(d.t, "until")
		c.Body = &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{key("expiring")}, Until: &ebbv1.ExpireKeys_AtUs{AtUs: at}}}
	case 3:
		ttl := rapid.SampledFrom([]int64{0, 1, second, 12 * second, 400 * second}).Draw(d.t, "ttl")
		c.Body = &ebbv1.Command_Expire{Expire: &ebbv1.ExpireKeys{Keys: [][]byte{key("living"), key("living too")}, Until: &ebbv1.ExpireKeys_TtlUs{TtlUs: ttl}}}
	default:
		c.Body = &ebbv1.Command_Put{Put: &ebbv1.PutKey{
			Key: key("to"), What: &ebbv1.PutKey_From{From: key("from")}, Overwrite: rapid.Bool().Draw(d.t, "overwrite"),
		}}
	}
	return c
}

func (d *script) increments() *ebbv1.Command {
	c := &ebbv1.Command{Namespace: rapid.SampledFrom([]string{"", "default", "history", "plain", "signed", "signed", "absent"}).Draw(d.t, "namespace")}
	switch rapid.IntRange(0, 4).Draw(d.t, "identity") {
	case 0, 1:
		d.sequence += rapid.SampledFrom([]uint64{0, 0, 1, 2, 9, 100}).Draw(d.t, "gap")
		c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
			Session: d.session(), Secret: d.secret(),
			Sequence: d.sequence + 1 - min(d.sequence, rapid.SampledFrom([]uint64{0, 0, 0, 1, 2, 3}).Draw(d.t, "back")),
		}}
	case 2:
		c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{
			IssuedAtUs: d.now + rapid.SampledFrom([]int64{0, -second, -4 * second, -6 * second, 400_000, 600_000}).Draw(d.t, "issued"),
			Hi:         rapid.Uint64Range(1, 3).Draw(d.t, "hi"), Lo: 9,
		}}
	case 3:
		c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: d.source(), Epoch: d.epoch - min(d.epoch, rapid.Uint64Range(0, 3).Draw(d.t, "older"))}}
	}
	batch := &ebbv1.Increments{}
	for range rapid.IntRange(0, 5).Draw(d.t, "size") {
		batch.Increments = append(batch.Increments, d.increment())
	}
	c.Body = &ebbv1.Command_Increments{Increments: batch}
	return c
}

func (d *script) increment() *ebbv1.Increment {
	d.offset += rapid.SampledFrom([]uint64{1, 1, 1, 5, 0}).Draw(d.t, "offset")
	in := &ebbv1.Increment{
		Key:    []byte(rapid.SampledFrom([]string{"k1", "k2", "k3", "k1", "k2", "k3", "", strings.Repeat("k", 513)}).Draw(d.t, "key")),
		Bin:    []byte(rapid.SampledFrom([]string{"a", "b", "c", "d", "a", "b", "c", "d", "", strings.Repeat("b", 257)}).Draw(d.t, "bin")),
		Offset: d.offset,
	}
	if t := rapid.SampledFrom([]int64{0, 0, -1, -second, -40 * second, -4000 * second, 300_000, 700_000, math.MinInt64}).Draw(d.t, "time"); t != 0 {
		in.TimeUs = d.now + t
	}
	if n := rapid.SampledFrom([]float64{1, 1, 2, 0.5, 0.25, 0, -0.5, -2, -1, math.NaN(), 2e15}).Draw(d.t, "amount"); n != 1 {
		in.Amount = &n
	}
	if d.kinds {
		in.Kind = ebbv1.Kind(rapid.IntRange(0, int(proto.KindMax)+1).Draw(d.t, "kind of the key"))
		if v := rapid.SampledFrom([]float64{0.5, 0.5, 3, -7, 0, 1e300, math.NaN()}).Draw(d.t, "value"); v != 0 {
			in.Value = &v
		}
		if rapid.Bool().Draw(d.t, "with a text") {
			in.Text = []byte(rapid.SampledFrom([]string{"", "a", "another"}).Draw(d.t, "text"))
		}
	}
	return in
}

func (d *script) namespace() *ebbv1.Namespace {
	d.versions++
	def := proto.DefaultNamespaceSettings()
	def.Version = d.versions - rapid.Uint64Range(0, 1).Draw(d.t, "stale")
	def.Threshold = 0.00100007
	def.AllowNegative = new(false)
	def.HalfLifeUs = rapid.SampledFrom([]int64{second, 7 * second, 3600 * second}).Draw(d.t, "half-life")
	def.Name = rapid.SampledFrom([]string{"default", "history", "plain", "signed"}).Draw(d.t, "defined")
	switch def.Name {
	case "history":
		def.Clock = ebbv1.Clock_CLOCK_EVENT
		if d.clocks {
			d.setClock(def)
		}
	case "signed":
		def.BinsMax, def.AllowNegative = 3, new(rapid.Bool().Draw(d.t, "negative"))
	case "plain":
		def.Decay, def.BinsMax, def.AllowNegative = ebbv1.Decay_DECAY_NONE, 3, new(true)
	}
	if def.Decay == ebbv1.Decay_DECAY_HALF_LIFE && !def.GetAllowNegative() && def.BinsMax > 4 {
		if us := rapid.SampledFrom([]int64{0, 0, 20 * second, 60 * second}).Draw(d.t, "second half-life"); us >= 2*def.HalfLifeUs {
			def.SlowHalfLifeUs = new(us)
		}
	}
	return def
}

// setClock sets the clock of a definition, mostly back, or leaves it as it is.
func (d *script) setClock(def *ebbv1.Namespace) {
	def.MaxJumpUs = new(rapid.SampledFrom([]int64{0, second, 100 * second}).Draw(d.t, "max jump"))
	back := rapid.SampledFrom([]int64{-1, 0, second, 60 * second, 4000 * second}).Draw(d.t, "set back by")
	if back >= 0 {
		d.setting = &ebbv1.ClockSetting{Epoch: def.Version, TimeUs: d.now - back}
	}
	def.ClockSetting = d.setting
}

// session draws one that may exist.
func (d *script) session() uint64 {
	if len(d.sessions) == 0 {
		return 7
	}
	return rapid.SampledFrom(d.sessions[max(0, len(d.sessions)-3):]).Draw(d.t, "session")
}

func (d *script) source() string {
	return rapid.SampledFrom([]string{"s1", "s2", "s3"}).Draw(d.t, "source")
}

func (d *script) learn(results []*ebbv1.CommandResult) {
	for _, r := range results {
		if r.Session != 0 {
			d.sessions = append(d.sessions, r.Session)
		}
		d.epoch = max(d.epoch, r.Epoch)
	}
}

// A state does what the naive model does. It does so whether or not it is
// restored or frozen on the way; its views stay what they were; and whatever
// path a replica took, its bytes are the same.
func TestStateAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		script, m := newScript(t), newModel(smallLimits())
		one, two := New(1, &wiping{}), New(1, Heap{})
		one.SetLimits(m.limits)
		two.SetLimits(m.limits)
		var view *View
		var seen []byte
		entries := uint64(rapid.IntRange(1, 40).Draw(t, "entries"))
		for index := uint64(1); index <= entries; index++ {
			stamp, commands := script.entry()
			entry := encodeEntry(t, stamp, commands)
			got := one.Apply(index, entry, nil)
			script.learn(got)
			want := m.apply(stamp, commands)
			for i := range want {
				if verdict(got[i]) != verdict(want[i]) {
					t.Fatalf("entry %d, command %d (%v):\n got %s\nwant %s", index, i, commands[i], verdict(got[i]), verdict(want[i]))
				}
			}
			for i, r := range two.Apply(index, entry, nil) {
				if !pb.Equal(r, got[i]) {
					t.Fatalf("entry %d: replicas answer differently: %v, %v", index, got[i], r)
				}
			}
			audit(t, one)
			checkAnswers(t, one, m)
			if view != nil && rapid.Bool().Draw(t, "look") {
				if !bytes.Equal(snapshot(t, view), seen) {
					t.Fatalf("a view has changed")
				}
				view = nil
			}
			switch rapid.IntRange(0, 5).Draw(t, "then") {
			case 0:
				two = reopen(t, two)
			case 1:
				view, seen = one.Freeze(), snapshot(t, one)
			case 2:
				if again := one.Apply(index, entry, nil); len(again) != 0 {
					t.Fatalf("an entry was applied twice")
				}
			}
			if a, b := one.Checksum(), two.Checksum(); a != b {
				t.Fatalf("entry %d: replicas differ:\n%s\n%s", index, described(one), described(two))
			}
		}
	})
}

// Replicas agree also where results are forgotten for the memory they take.
func TestReplicasForgetAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		script := newScript(t)
		script.kinds = rapid.Bool().Draw(t, "kinds")
		one, two := New(1, &wiping{}), New(1, Heap{})
		if script.clocks = rapid.Bool().Draw(t, "clocks"); script.clocks {
			script.owners = true
			all := []uint32{BehaviourEventClocks, BehaviourSlowKeys, BehaviourGoneBack, BehaviourAdds}
			behaviour := rapid.SampledFrom(all).Draw(t, "behaviour")
			one.setBehaviour(behaviour)
			two.setBehaviour(behaviour)
		}
		limits := DefaultLimits()
		limits.SessionResultBytes, limits.IdempotencyResultBytes, limits.SourceRefusals = 40, 60, 3
		one.SetLimits(limits)
		two.SetLimits(limits)
		var view *View
		var seen []byte
		for index := uint64(1); index <= 30; index++ {
			stamp, commands := script.entry()
			entry := encodeEntry(t, stamp, commands)
			script.learn(one.Apply(index, entry, nil))
			if view != nil && !bytes.Equal(snapshot(t, view), seen) {
				t.Fatalf("entry %d: a view has changed", index)
			}
			if rapid.IntRange(0, 5).Draw(t, "freeze") == 0 {
				view, seen = one.Freeze(), snapshot(t, one)
			}
			two.Apply(index, entry, nil)
			audit(t, one)
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				two = reopen(t, two)
			}
			if one.Checksum() != two.Checksum() {
				t.Fatalf("entry %d: replicas differ:\n%s\n%s", index, described(one), described(two))
			}
		}
		for _, w := range one.sessions.all {
			if w.extraBytes > limits.SessionResultBytes && len(w.extras) > 1 {
				t.Fatalf("a session remembers %d bytes", w.extraBytes)
			}
		}
		for _, src := range one.sources.all {
			if len(src.refused) > limits.SourceRefusals {
				t.Fatalf("source %s remembers %d refused rows", src.name, len(src.refused))
			}
		}
	})
}

func encodeEntry(t fataler, stamp int64, commands []*ebbv1.Command) []byte {
	t.Helper()
	var raws [][]byte
	for _, c := range commands {
		raw, err := pb.Marshal(c)
		if err != nil {
			t.Fatalf("%v", err)
		}
		raws = append(raws, raw)
	}
	return entryOf(stamp, raws...)
}

func described(s *State) string {
	var b bytes.Buffer
	s.Describe(&b)
	return b.String()
}

func question(namespace string, d *ebbv1.DistributionQuestion) *ebbv1.ShardQuestion {
	return &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Distribution{Distribution: d}}}
}

// checkAnswers asks for everything, now and later.
func checkAnswers(t *rapid.T, s *State, m *model) {
	later := sketch.Tick(rapid.SampledFrom([]int64{0, 5 * second, 80 * second}).Draw(t, "later"))
	for namespace, ns := range m.namespaces {
		at := ns.clock(m.now) + later
		alive := uint64(0)
		for _, key := range []string{"k1", "k2", "k3", "k4"} {
			q := question(namespace, &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, AsOfUs: int64(at)})
			d := s.Ask(q, 0).GetAnswer().GetDistribution()
			bins, counts, z, found := m.ask(namespace, key, at)
			if d.Found != found || int(d.BinsTotal) != len(bins) || !near(d.Z, z) || d.AsOfUs != int64(at) && later > 0 {
				t.Fatalf("%s of %s at %d: got %v, want %v %v z=%g found=%v", key, namespace, at, d, bins, counts, z, found)
			}
			if !slices.EqualFunc(d.Bins, counts, func(b *ebbv1.Bin, n float64) bool { return near(b.Count, n) }) {
				t.Fatalf("%s of %s: got %v, want %v %v", key, namespace, d, bins, counts)
			}
			if _, _, _, ok := m.ask(namespace, key, ns.clock(m.now)); ok {
				alive++
			}
		}
		count := s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{
			Namespace: namespace, Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}},
		}}, 0).GetAnswer().GetCountKeys().GetKeys()
		if count != alive {
			t.Fatalf("namespace %s counts %d keys, want %d", namespace, count, alive)
		}
	}
}

func near(a, b float64) bool {
	return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1e-6)
}

// Whatever is repeated and reordered within the window counts once.
func TestExactlyOnceInSession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 8
		s := New(1, &wiping{})
		limits := DefaultLimits()
		limits.SessionWindow = window
		s.SetLimits(limits)
		now := int64(1_700_000_000 * second)
		index := uint64(0)
		apply := func(c *ebbv1.Command) *ebbv1.CommandResult {
			index++
			return s.Apply(index, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]
		}
		def := &ebbv1.Namespace{Name: "default", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
		apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
		session := apply(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}).Session

		total := rapid.IntRange(1, 60).Draw(t, "commands")
		answers := map[int]*ebbv1.CommandResult{}
		sent := 0
		for len(answers) < total {
			// The oldest unanswered command is never a whole window behind.
			low := 0
			for answers[low] != nil {
				low++
			}
			next := rapid.IntRange(low, min(low+window-1, total-1)).Draw(t, "next")
			if rapid.Bool().Draw(t, "old") {
				next = rapid.IntRange(max(0, low-window), next).Draw(t, "repeated")
			}
			c := increments("k", fmt.Sprint(next), "bad", strings.Repeat("x", 257))
			c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: session, Sequence: uint64(next) + 1}}
			r := apply(c)
			sent++
			switch {
			case r.GetError().GetCode() == ebbv1.Code_CODE_SEQUENCE_TOO_OLD && answers[next] != nil:
			case answers[next] == nil:
				answers[next] = r
			case !pb.Equal(answers[next], r):
				t.Fatalf("command %d: first %v, then %v", next, answers[next], r)
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				s = reopen(t, s)
			}
		}
		d := s.Ask(question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("k")}}), 0).GetAnswer().GetDistribution()
		if d.Z != float64(2*total) || int(d.BinsTotal) != total+1 {
			t.Fatalf("%d commands, sent %d times, count %g in %d bins", total, sent, d.Z, d.BinsTotal)
		}
		for _, b := range d.Bins[1:] {
			if b.Count != 1 {
				t.Fatalf("command %s counted %g times", b.Bin, b.Count)
			}
		}
	})
}

// The order of a batch that commutes (events at or before the clock) does not
// change an answer.
func TestOrderOfBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := int64(1_700_000_000 * second)
		var batch []*ebbv1.Increment
		for range rapid.IntRange(1, 40).Draw(t, "size") {
			batch = append(batch, &ebbv1.Increment{
				Key:    []byte(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "key")),
				Bin:    []byte(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "bin")),
				TimeUs: now - rapid.Int64Range(0, 3600*second).Draw(t, "age"),
			})
		}
		other := rapid.Permutation(batch).Draw(t, "order")
		var answers []*ebbv1.Distribution
		for _, b := range [][]*ebbv1.Increment{batch, other} {
			s := definedAt(t, &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: 1800 * second}, now)
			c := &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: b}}}
			if r := s.Apply(2, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Applied != uint64(len(b)) {
				t.Fatalf("%v", r)
			}
			q := question("", &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte("x"), []byte("y")}})
			answers = append(answers, s.Ask(q, 0).GetAnswer().GetDistribution())
		}
		if !nearDistributions(answers[0], answers[1]) {
			t.Fatalf("orders differ:\n%v\n%v", answers[0], answers[1])
		}
	})
}

func definedAt(t fataler, def *ebbv1.Namespace, now int64) *State {
	t.Helper()
	s := New(1, &wiping{})
	c := &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}}
	if r := s.Apply(1, encodeEntry(t, now, []*ebbv1.Command{c}), nil)[0]; r.Error != nil {
		t.Fatalf("%v", r.Error)
	}
	return s
}

// nearDistributions compares all but the order among bins that are nearly equal.
func nearDistributions(a, b *ebbv1.Distribution) bool {
	if a.Found != b.Found || len(a.Bins) != len(b.Bins) || a.AsOfUs != b.AsOfUs || !near(a.Z, b.Z) || !near(a.Z2, b.Z2) ||
		!near(a.EffectiveN, b.EffectiveN) || !near(a.EntropyBits, b.EntropyBits) || math.Abs(a.Other-b.Other) > 1e-9 {
		return false
	}
	counts := map[string]float64{}
	for _, x := range a.Bins {
		counts[string(x.Bin)] = x.Count
	}
	for _, x := range b.Bins {
		if !near(counts[string(x.Bin)], x.Count) {
			return false
		}
	}
	return true
}
