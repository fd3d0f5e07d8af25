package shard

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// The files in testdata are scenarios, each a story in prose and commands:
//
//	new [sessions=n window=n expiry=d sources=n keys=n key-window=d changes=n body-bytes=n bitmap-bytes=n result-bytes=n]
//	    an empty shard, with smaller limits if named
//	apply at=d
//	    one log entry, stamped at d after the scenario's beginning; a command a line:
//	      define NAME [version=n] [half-life=d] [slow=d] [decay=..] [floor=..] [clock=..] [threshold=x] [prior=x] [bins-max=n] [negative] [kind=..] [window=d] [size.NAME=x]...
//	      inc NAME KEY BIN[=amount][@time][#offset]... [kind=..] [values=(x,y)] [text=..] [session=#i/sequence] [source=name/epoch] [key=hi/issued]
//	      open-session | close-session #i | open-source NAME token=n | drop-source NAME | behaviour n | tick
//	      del NAME KEY... | expire NAME KEY... [ttl=d | at=d] | move NAME FROM TO [overwrite] | put NAME KEY of=NAME/KEY [overwrite] [replace]
//	ask NAME KEY... [top=n] [bins=(a,b)] [pattern=p] [as-of=d] [rate=x] [view]
//	summary NAME KEY... [bins=(a,b)] [quantiles=(x,y)] [members] [limit=n] [pattern=p] [window=d] [as-of=d] [view]
//	overlap NAME KEY... [as-of=d] [view]
//	graph NAME KEY... [links=n] [min-jaccard=x] [as-of=d] [view]
//	match NAME KEY
//	    finds phrases in the text below
//	trend NAME KEY... [top=n] [bins=(a,b)] [as-of=d] [view]
//	count NAME
//	keys NAME [pattern] [kind=..] [order=name|total|recent] [limit=n] [after=key] [as-of=d]
//	key NAME KEY
//	    what is known of a key
//	describe
//	restart
//	    continues from its own snapshot
//	freeze
//	    for later questions with "view"
//
// Bitmaps are in scenariobits_test.go. In bins and texts _ is a space. Times are durations since 2020-01-01; sessions
// are called #1, #2 in the order of their opening.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		sc := &scenario{t: t, s: New(1, &wiping{})}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			sc.t = t
			out := sc.run(d)
			audit(t, sc.s)
			return out
		})
	})
}

const beginning = 1_577_836_800 * second

type scenario struct {
	t        *testing.T
	s        *State
	view     *View
	index    uint64
	sessions []uint64
}

func (sc *scenario) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "new":
		sc.open(d)
		return ""
	case "apply":
		return sc.apply(d)
	case "ask":
		return sc.ask(d)
	case "summary":
		return sc.summary(d)
	case "overlap":
		return sc.overlap(d)
	case "graph":
		return sc.graph(d)
	case "match":
		return sc.match(d)
	case "trend":
		return sc.trend(d)
	case "count":
		q := &ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}}
		return fmt.Sprintf("%d of %d kept\n", sc.s.Ask(q, 0).GetAnswer().GetCountKeys().GetKeys(), sc.s.Keys())
	case "keys":
		return sc.keys(d)
	case "key":
		return sc.key(d)
	case "bits":
		return sc.bits(d)
	case "groups":
		return sc.groups(d)
	case "cohort":
		return sc.cohort(d)
	case "describe":
		return described(sc.s)
	case "restart":
		before := sc.s.Checksum()
		sc.s = reopen(sc.t, sc.s)
		if sc.s.Checksum() != before {
			sc.t.Fatal("the state changed by a restart")
		}
		return "restored\n"
	case "freeze":
		sc.view = sc.s.Freeze()
		return ""
	}
	sc.t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	return ""
}

func (sc *scenario) open(d *datadriven.TestData) {
	*sc = scenario{t: sc.t, s: New(1, &wiping{})}
	l := DefaultLimits()
	for _, arg := range d.CmdArgs {
		v := arg.Vals[0]
		switch arg.Key {
		case "sessions":
			l.Sessions = int(sc.number(v))
		case "window":
			l.SessionWindow = uint64(sc.number(v))
		case "expiry":
			l.SessionExpiry = sc.duration(v)
		case "sources":
			l.Sources = int(sc.number(v))
		case "keys":
			l.IdempotencyKeys = int(sc.number(v))
		case "key-window":
			l.IdempotencyWindow = sc.duration(v)
		case "changes":
			l.HalfLifeChanges = int(sc.number(v))
		case "body-bytes":
			l.BodyBytes = int(sc.number(v))
		case "bitmap-bytes":
			l.BitmapBytes = uint64(sc.number(v))
		case "result-bytes":
			l.SessionResultBytes = int(sc.number(v))
		default:
			sc.t.Fatalf("%s: limit %q", d.Pos, arg.Key)
		}
	}
	sc.s.SetLimits(l)
}

func (sc *scenario) apply(d *datadriven.TestData) string {
	var at string
	d.ScanArgs(sc.t, "at", &at)
	var commands []*ebbv1.Command
	for line := range strings.Lines(d.Input) {
		commands = append(commands, sc.command(strings.Fields(line)))
	}
	sc.index++
	var out strings.Builder
	for _, r := range sc.s.Apply(sc.index, encodeEntry(sc.t, beginning+int64(sc.duration(at)), commands), nil) {
		sc.result(&out, r)
	}
	return out.String()
}

func (sc *scenario) result(out *strings.Builder, r *ebbv1.CommandResult) {
	var says []string
	if r.Error != nil {
		says = append(says, says1(r.Error))
	}
	if r.Session != 0 {
		sc.sessions = append(sc.sessions, r.Session)
		says = append(says, fmt.Sprintf("session #%d", len(sc.sessions)))
	}
	if r.Epoch != 0 {
		says = append(says, fmt.Sprintf("epoch %d, last offset %d", r.Epoch, r.LastOffset))
	}
	if r.Applied > 0 {
		says = append(says, fmt.Sprintf("applied %d", r.Applied))
	}
	if r.Changed > 0 {
		says = append(says, fmt.Sprintf("changed %d", r.Changed))
	}
	if r.Duplicates > 0 {
		says = append(says, fmt.Sprintf("duplicates %d", r.Duplicates))
	}
	if len(says) == 0 && len(r.Refused) == 0 {
		says = append(says, "ok")
	}
	if len(says) > 0 {
		fmt.Fprintln(out, strings.Join(says, ", "))
	}
	for _, x := range r.Refused {
		fmt.Fprintf(out, "refused %d: %s\n", x.Index, says1(x.Error))
	}
}

func says1(e *ebbv1.Error) string {
	return fmt.Sprintf("%s: %s", strings.TrimPrefix(e.Code.String(), "CODE_"), e.Message)
}

func (sc *scenario) command(words []string) *ebbv1.Command {
	switch words[0] {
	case "define":
		return &ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: sc.definition(words[1], words[2:])}}
	case "inc":
		return sc.increments(words[1], words[2], words[3:])
	case "open-session":
		return &ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}
	case "close-session":
		return &ebbv1.Command{Body: &ebbv1.Command_CloseSession{CloseSession: &ebbv1.CloseSession{Session: sc.session(words[1])}}}
	case "open-source":
		return &ebbv1.Command{Body: &ebbv1.Command_OpenSource{OpenSource: &ebbv1.OpenSource{Name: words[1], Token: uint64(sc.number(value(words[2])))}}}
	case "drop-source":
		return &ebbv1.Command{Body: &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: words[1]}}}
	case "behaviour":
		return &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: uint32(sc.number(words[1]))}}}
	case "tick":
		return &ebbv1.Command{Body: &ebbv1.Command_Tick{Tick: &ebbv1.Tick{}}}
	case "set", "clear", "flip":
		return sc.bitEdits(words[0], words[1], words[2], words[3:])
	case "store":
		return sc.storing(words[1], words[2], words[3], words[4:])
	case "del", "expire", "move", "put":
		return sc.aboutKeys(words[0], words[1], words[2:])
	}
	sc.t.Fatalf("what is %q?", words)
	return nil
}

func (sc *scenario) definition(name string, options []string) *ebbv1.Namespace {
	def := &ebbv1.Namespace{Name: name, Version: 1}
	for _, o := range options {
		v := value(o)
		key, _, _ := strings.Cut(o, "=")
		if size, ok := strings.CutPrefix(key, "size."); ok {
			if def.Sizes == nil {
				def.Sizes = new(ebbv1.Sizes)
			}
			if err := proto.SetSize(def.Sizes, size, sc.number(v)); err != nil {
				sc.t.Fatal(err)
			}
			continue
		}
		switch key {
		case "kind":
			def.Kind, _ = proto.KindNamed(v)
		case "version":
			def.Version = uint64(sc.number(v))
		case "half-life":
			def.HalfLifeUs = int64(sc.duration(v))
		case "slow":
			def.SlowHalfLifeUs = new(int64(sc.duration(v)))
		case "decay":
			def.Decay = map[string]ebbv1.Decay{"half-life": 1, "linear": 2, "none": 3}[v]
		case "floor":
			def.Floor = map[string]ebbv1.Floor{"prune": 1, "clamp": 2, "prior": 3}[v]
		case "clock":
			def.Clock = map[string]ebbv1.Clock{"wall": 1, "event": 2}[v]
		case "threshold":
			def.Threshold = sc.number(v)
		case "prior":
			def.Prior = sc.number(v)
		case "bins-max":
			def.BinsMax = uint32(sc.number(v))
		case "negative":
			def.AllowNegative = new(true)
		case "window":
			def.WindowUs = new(int64(sc.duration(v)))
		default:
			sc.t.Fatalf("option %q", o)
		}
	}
	return def
}

func (sc *scenario) increments(namespace, key string, words []string) *ebbv1.Command {
	c := &ebbv1.Command{Namespace: namespace}
	batch := &ebbv1.Increments{}
	kind := ebbv1.Kind(0)
	for _, w := range words {
		who, n, _ := strings.Cut(value(w), "/")
		switch {
		case strings.HasPrefix(w, "kind="):
			kind, _ = proto.KindNamed(who)
		case strings.HasPrefix(w, "text="):
			batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Text: []byte(strings.ReplaceAll(value(w), "_", " "))})
		case strings.HasPrefix(w, "values="):
			for v := range strings.SplitSeq(strings.Trim(who, "()"), ",") {
				batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Value: new(sc.number(v))})
			}
		case strings.HasPrefix(w, "session="):
			c.Identity = &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: sc.session(who), Sequence: uint64(sc.number(n))}}
		case strings.HasPrefix(w, "source="):
			c.Identity = &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: who, Epoch: uint64(sc.number(n))}}
		case strings.HasPrefix(w, "key="):
			c.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: &ebbv1.IdempotencyKey{Hi: uint64(sc.number(who)), IssuedAtUs: beginning + int64(sc.duration(n))}}
		default:
			batch.Increments = append(batch.Increments, sc.increment(key, w))
		}
	}
	for _, in := range batch.Increments {
		in.Kind = kind
	}
	c.Body = &ebbv1.Command_Increments{Increments: batch}
	return c
}

func (sc *scenario) aboutKeys(what, namespace string, words []string) *ebbv1.Command {
	c := &ebbv1.Command{Namespace: namespace}
	expire, put := &ebbv1.ExpireKeys{}, &ebbv1.PutKey{}
	var keys [][]byte
	for _, w := range words {
		name, v, _ := strings.Cut(w, "=")
		switch name {
		case "ttl":
			expire.Until = &ebbv1.ExpireKeys_TtlUs{TtlUs: int64(sc.duration(v))}
		case "at":
			expire.Until = &ebbv1.ExpireKeys_AtUs{AtUs: beginning + int64(sc.duration(v))}
		case "overwrite":
			put.Overwrite = true
		case "of":
			ns, key, _ := strings.Cut(v, "/")
			put.What = &ebbv1.PutKey_Image{Image: sc.image(ns, key).Image}
		case "replace":
			put.Replace = new(sc.image(namespace, string(keys[0])).Checksum)
		default:
			keys = append(keys, []byte(w))
		}
	}
	switch what {
	case "del":
		c.Body = &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: keys}}
	case "expire":
		expire.Keys = keys
		c.Body = &ebbv1.Command_Expire{Expire: expire}
	case "move":
		put.Key, put.What = keys[1], &ebbv1.PutKey_From{From: keys[0]}
		c.Body = &ebbv1.Command_Put{Put: put}
	default:
		put.Key = keys[0]
		c.Body = &ebbv1.Command_Put{Put: put}
	}
	return c
}

// image is that of a key as it is before the entry.
func (sc *scenario) image(namespace, key string) *ebbv1.KeyExport {
	q := &ebbv1.Question{Namespace: namespace, Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{Key: []byte(key)}}}
	return sc.s.Ask(&ebbv1.ShardQuestion{Question: q}, 0).GetAnswer().GetExport()
}

func (sc *scenario) keys(d *datadriven.TestData) string {
	q := &ebbv1.KeysQuestion{}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "kind":
			q.Kind, _ = proto.KindNamed(arg.Vals[0])
		case "order":
			q.Order = ebbv1.KeyOrder(ebbv1.KeyOrder_value["KEY_ORDER_"+strings.ToUpper(arg.Vals[0])])
		case "limit":
			q.Limit = uint32(sc.number(arg.Vals[0]))
		case "after":
			q.After = []byte(arg.Vals[0])
		case "as-of":
			q.AsOfUs = beginning + int64(sc.duration(arg.Vals[0]))
		default:
			q.Pattern = []byte(arg.Key)
		}
	}
	question := &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Keys{Keys: q}}
	a := sc.s.Ask(&ebbv1.ShardQuestion{Question: question}, 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	list := a.GetAnswer().GetKeys()
	part := sc.s.Ask(&ebbv1.ShardQuestion{Question: question, Partial: true}, 0)
	if merged, err := Merge(question, []*ebbv1.ShardAnswer{part}); err != nil || !pb.Equal(merged.GetKeys(), list) {
		sc.t.Fatalf("as a part: %v, %v", merged, err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d of %d, as of %s\n", len(list.Keys), list.Matched, since(list.AsOfUs))
	for _, k := range list.Keys {
		sc.keyInfo(&out, k)
	}
	return out.String()
}

func (sc *scenario) keyInfo(out *strings.Builder, k *ebbv1.KeyInfo) {
	fmt.Fprintf(out, "  %s %s total=%.6g bins=%d", k.Key, proto.KindName(k.Kind), k.GetTotal().GetValue(), k.Bins)
	for _, t := range []struct {
		what string
		at   int64
	}{{"last", k.LastEventUs}, {"fades", k.FadesUs}, {"expires", k.ExpiresUs}} {
		if t.at != 0 {
			fmt.Fprintf(out, " %s=%s", t.what, since(t.at))
		}
	}
	fmt.Fprintln(out)
}

func (sc *scenario) key(d *datadriven.TestData) string {
	q := &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: []byte(d.CmdArgs[1].Key)}}}
	k := sc.s.Ask(&ebbv1.ShardQuestion{Question: q}, 0).GetAnswer().GetDescribe()
	if !k.Found {
		return fmt.Sprintf("not found, as of %s\n", since(k.AsOfUs))
	}
	var out strings.Builder
	sc.keyInfo(&out, k.Key)
	fmt.Fprintf(&out, "  %d bytes, %s %s, %s, as of %s\n  %s\n ", k.Bytes, strings.ToLower(k.Decay.String()), time.Duration(k.HalfLifeUs)*time.Microsecond, strings.ToLower(k.Clock.String()), since(k.AsOfUs), k.Accuracy)
	for _, p := range k.Properties {
		fmt.Fprintf(&out, " %s=%g", p.Name, p.Value)
	}
	return out.String() + "\n"
}

func (sc *scenario) increment(key, w string) *ebbv1.Increment {
	in := &ebbv1.Increment{Key: []byte(key)}
	w, offset, _ := strings.Cut(w, "#")
	w, at, _ := strings.Cut(w, "@")
	bin, amount, _ := strings.Cut(w, "=")
	in.Bin = []byte(strings.ReplaceAll(bin, "_", " "))
	if offset != "" {
		in.Offset = uint64(sc.number(offset))
	}
	if amount != "" {
		in.Amount = new(sc.number(amount))
	}
	if at != "" {
		in.TimeUs = beginning + int64(sc.duration(at))
	}
	return in
}

func (sc *scenario) ask(d *datadriven.TestData) string {
	q := &ebbv1.DistributionQuestion{}
	f := &sc.s.frame
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "top":
			q.Select = &ebbv1.DistributionQuestion_Top{Top: uint32(sc.number(arg.Vals[0]))}
		case "bins":
			list := &ebbv1.BinList{}
			for _, b := range arg.Vals {
				list.Bins = append(list.Bins, []byte(b))
			}
			q.Select = &ebbv1.DistributionQuestion_Bins{Bins: list}
		case "as-of":
			q.AsOfUs = beginning + int64(sc.duration(arg.Vals[0]))
		case "rate":
			q.Rate = new(sc.number(arg.Vals[0]))
		case "view":
			f = &sc.view.frame
		case "pattern":
			for _, p := range arg.Vals {
				q.Patterns = append(q.Patterns, []byte(p))
			}
		default:
			q.Keys = append(q.Keys, []byte(arg.Key))
		}
	}
	a := f.Ask(question(d.CmdArgs[0].Key, q), 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	return sc.distribution(a.GetAnswer().GetDistribution())
}

func (sc *scenario) trend(d *datadriven.TestData) string {
	q := &ebbv1.TrendQuestion{}
	f := &sc.s.frame
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "top":
			q.Top = uint32(sc.number(arg.Vals[0]))
		case "bins":
			q.Bins = named(arg.Vals...)
		case "as-of":
			q.AsOfUs = beginning + int64(sc.duration(arg.Vals[0]))
		case "view":
			f = &sc.view.frame
		default:
			q.Keys = append(q.Keys, []byte(arg.Key))
		}
	}
	a := f.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Trend{Trend: q}}}, 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	w := a.GetAnswer().GetTrend()
	var out strings.Builder
	if !w.Found {
		fmt.Fprint(&out, "not found, ")
	}
	if w.Warming {
		fmt.Fprint(&out, "warming, ")
	}
	fmt.Fprintf(&out, "%s against %s since %s, as of %s\n", text(sketch.Tick(w.FastHalfLifeUs)), text(sketch.Tick(w.SlowHalfLifeUs)), since(w.SinceUs), since(w.AsOfUs))
	show := func(what string, changes ...*ebbv1.Change) {
		for _, c := range changes {
			fmt.Fprintf(&out, "  %s %s: %.4g/s, usually %.4g/s, %+.3f +- %.3f bits [%.3f, %.3f], z %.2f, p %.2g\n", what, c.Bin, c.FastRate, c.SlowRate, c.Bits, c.StdErrorBits,
				c.LowBits, c.HighBits, c.ZScore, c.PValue)
		}
	}
	show("total", w.Total)
	show("rises", w.Rising...)
	show("falls", w.Falling...)
	show("asked", w.Bins...)
	return out.String()
}

func (sc *scenario) summary(d *datadriven.TestData) string {
	q := &ebbv1.SummaryQuestion{}
	f := &sc.s.frame
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "bins":
			for _, b := range arg.Vals {
				q.Bins = append(q.Bins, []byte(b))
			}
		case "quantiles":
			for _, v := range arg.Vals {
				q.Quantiles = append(q.Quantiles, sc.number(v))
			}
		case "top":
			q.Top = uint32(sc.number(arg.Vals[0]))
		case "members":
			q.Members = true
		case "window":
			q.WindowUs = int64(sc.duration(arg.Vals[0]))
		case "limit":
			q.Limit = uint32(sc.number(arg.Vals[0]))
		case "as-of":
			q.AsOfUs = beginning + int64(sc.duration(arg.Vals[0]))
		case "view":
			f = &sc.view.frame
		case "pattern":
			for _, p := range arg.Vals {
				q.Patterns = append(q.Patterns, []byte(p))
			}
		default:
			q.Keys = append(q.Keys, []byte(arg.Key))
		}
	}
	a := f.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Summary{Summary: q}}}, 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	s := a.GetAnswer().GetSummary()
	if !s.Found {
		return fmt.Sprintf("not found, as of %s\n", since(s.AsOfUs))
	}
	var out strings.Builder
	show := func(name string, e *ebbv1.Estimate) {
		fmt.Fprintf(&out, "  %s %.6g +- %.3g [%.6g, %.6g]\n", name, e.Value, e.StdError, e.Low, e.High)
	}
	fmt.Fprintf(&out, "%s, as of %s\n", proto.KindName(s.Kind), since(s.AsOfUs))
	show("total", s.Total)
	for i, e := range s.Bins {
		show(string(q.Bins[i]), e)
	}
	for i, e := range s.Quantiles {
		show(fmt.Sprint(q.Quantiles[i]), e)
	}
	for _, item := range s.Items {
		show("top "+string(item.Bin), item.Count)
	}
	for i, m := range s.Memberships {
		if !m.Contained {
			fmt.Fprintf(&out, "  %s was not there\n", q.Bins[i])
			continue
		}
		fmt.Fprintf(&out, "  %s was there, as would be said of %.2g of others\n", q.Bins[i], m.FalseRate)
	}
	if len(s.Members) > 0 {
		fmt.Fprintf(&out, "  members %s\n", s.Members)
	}
	if s.Text != nil {
		fmt.Fprintf(&out, "  text %q\n", s.Text)
	}
	if s.Over {
		fmt.Fprintln(&out, "  over")
	}
	return out.String()
}

func (sc *scenario) overlap(d *datadriven.TestData) string {
	q := &ebbv1.OverlapQuestion{}
	f := &sc.s.frame
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "as-of":
			q.AsOfUs = beginning + int64(sc.duration(arg.Vals[0]))
		case "view":
			f = &sc.view.frame
		default:
			q.Keys = append(q.Keys, []byte(arg.Key))
		}
	}
	a := f.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Overlap{Overlap: q}}}, 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	o := a.GetAnswer().GetOverlap()
	var out strings.Builder
	fmt.Fprintf(&out, "as of %s\n", since(o.AsOfUs))
	for _, s := range o.Sets {
		fmt.Fprintf(&out, "  %s found=%t %.6g +- %.3g\n", s.Key, s.Found, s.Size.Value, s.Size.StdError)
	}
	for _, e := range []struct {
		name string
		*ebbv1.Estimate
	}{{"union", o.Union}, {"intersection", o.Intersection}, {"difference", o.Difference}, {"jaccard", o.Jaccard}} {
		fmt.Fprintf(&out, "  %s %.6g +- %.3g [%.6g, %.6g]\n", e.name, e.Value, e.StdError, e.Low, e.High)
	}
	return out.String()
}

func (sc *scenario) graph(d *datadriven.TestData) string {
	q := &ebbv1.GraphQuestion{}
	f := &sc.s.frame
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "links":
			q.Links = uint32(sc.number(arg.Vals[0]))
		case "min-jaccard":
			q.MinJaccard = sc.number(arg.Vals[0])
		case "as-of":
			q.AsOfUs = beginning + int64(sc.duration(arg.Vals[0]))
		case "view":
			f = &sc.view.frame
		default:
			q.Keys = append(q.Keys, []byte(arg.Key))
		}
	}
	a := f.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Graph{Graph: q}}}, 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	g := a.GetAnswer().GetGraph()
	var out strings.Builder
	fmt.Fprintf(&out, "as of %s\n", since(g.AsOfUs))
	for _, n := range g.Nodes {
		fmt.Fprintf(&out, "  %s found=%t %.6g\n", n.Set.Key, n.Set.Found, n.Set.Size.Value)
		for _, l := range n.Links {
			fmt.Fprintf(&out, "    %s %.4g +- %.3g\n", g.Nodes[l.To].Set.Key, l.Jaccard.Value, l.Jaccard.StdError)
		}
	}
	return out.String()
}

func (sc *scenario) match(d *datadriven.TestData) string {
	q := &ebbv1.MatchQuestion{Key: []byte(d.CmdArgs[1].Key), Text: []byte(d.Input)}
	a := sc.s.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: d.CmdArgs[0].Key, Ask: &ebbv1.Question_Match{Match: q}}}, 0)
	if a.Error != nil {
		return says1(a.Error) + "\n"
	}
	m := a.GetAnswer().GetMatch()
	if !m.Found {
		return fmt.Sprintf("not found, as of %s\n", since(m.AsOfUs))
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d matches, as of %s\n", len(m.Matches), since(m.AsOfUs))
	for _, x := range m.Matches {
		fmt.Fprintf(&out, "  %d to %d: %s\n", x.Begin, x.End, x.Phrase)
	}
	return out.String()
}

func (sc *scenario) distribution(a *ebbv1.Distribution) string {
	var out strings.Builder
	if !a.Found {
		fmt.Fprintf(&out, "not found, as of %s\n", since(a.AsOfUs))
	} else {
		fmt.Fprintf(&out, "z=%.6g other=%.6g n=%.4g entropy=%.4g bins=%d, as of %s, last event %s\n",
			a.Z, a.Other, a.EffectiveN, a.EntropyBits, a.BinsTotal, since(a.AsOfUs), since(a.LastEventUs))
	}
	for _, b := range a.Bins {
		fmt.Fprintf(&out, "  %s %.6g p=%.4g [%.4g, %.4g]\n", b.Bin, b.Count, b.P, b.PLow, b.PHigh)
	}
	return out.String()
}

func since(us int64) string { return (time.Duration(us-beginning) * time.Microsecond).String() }

func value(option string) string {
	_, v, _ := strings.Cut(option, "=")
	return v
}

func (sc *scenario) session(name string) uint64 {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "#"))
	if err != nil || i > len(sc.sessions) {
		return 12345 // no session has it
	}
	return sc.sessions[i-1]
}

func (sc *scenario) number(text string) float64 {
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		sc.t.Fatal(err)
	}
	return x
}

func (sc *scenario) duration(text string) sketch.Tick {
	x, err := time.ParseDuration(text)
	if err != nil {
		sc.t.Fatal(err)
	}
	return sketch.Tick(x.Microseconds())
}
