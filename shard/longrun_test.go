package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Every kind that forgets, over a thousand half-lives: bursts of a few thousand events, trickles, events that come late
// by hours or days, and silences of up to seventy half-lives. Each is held against an exact account of all events at
// the end of every burst, some time later, and after the silence:
//
//	distribution  each count, less what pruning takes; the sum to nine digits
//	countmin      never below the truth; above by more than 1% of the sum less often than promised
//	topk          no count outside of its bracket
//	quantile      the median and the 99th percentile within 1%
//	distinct      bias below 1%, error within theory; exact while few
//	set           bias below 1%, error within theory; exact while few
//	morris        bias below 1%, error within theory
//
// Three replicas apply the same log: one is never restored, one in the middle, one all the time. Their bytes agree
// throughout.
func TestThousandHalfLives(t *testing.T) {
	const halfLife, halfLives = 20 * second, 1000
	bursts, members := 90, 4000
	if testing.Short() {
		bursts, members = 30, 2500
	}
	run := &longRun{t: t, r: rand.New(rand.NewPCG(1, halfLives)), halfLife: halfLife, now: 1_700_000_000 * second, counts: map[string]*fading{}, lasts: map[string]int64{}}
	def := &ebbv1.Namespace{Name: "default", Version: 1, HalfLifeUs: halfLife}
	for range run.replicas {
		run.replicas = [3]*State{definedAt(t, def, run.now), definedAt(t, def, run.now), definedAt(t, def, run.now)}
	}
	start := run.now
	for burst := range bursts {
		run.burst(200+run.r.IntN(200), members/2+run.r.IntN(members))
		run.check(true)
		run.now += run.r.Int64N(3 * halfLife)
		run.check(false)
		// the silences are as long as it takes to get through a thousand half-lives
		left := start + halfLives*halfLife - run.now
		run.now += min(run.r.Int64N(1+2*max(0, left)/int64(bursts-burst)), 70*halfLife)
		run.check(false)
		if burst == bursts/2 {
			run.replicas[1] = reopen(t, run.replicas[1])
		}
		run.replicas[2] = reopen(t, run.replicas[2])
	}
	if passed := (run.now - start) / halfLife; passed < halfLives*9/10 {
		t.Errorf("only %d half-lives have passed", passed)
	}
	run.verdict()
}

// fading is a sum that halves with each half-life, as of its latest event.
type fading struct {
	sum  float64
	asOf int64
}

func (f *fading) read(at int64, halfLife float64) float64 {
	return f.sum * math.Exp2(-float64(at-f.asOf)/halfLife)
}

func (f *fading) add(at int64, n, halfLife float64) {
	if at < f.asOf {
		f.sum += n * math.Exp2(-float64(f.asOf-at)/halfLife)
		return
	}
	f.sum, f.asOf = f.read(at, halfLife)+n, at
}

// measured are relative errors.
type measured struct{ n, sum, squares float64 }

func (m *measured) see(estimate, truth float64) {
	e := estimate/truth - 1
	m.n++
	m.sum += e
	m.squares += e * e
}

type longRun struct {
	t        *testing.T
	r        *rand.Rand
	halfLife int64
	now      int64
	replicas [3]*State
	// the exact account
	counts map[string]*fading // of the items of the kinds that count, by name
	total  fading
	values []seen           // of the quantile
	lasts  map[string]int64 // when each member was last seen
	first  int              // of the members that come in this burst

	distinct, set, morris measured
	looked, above         int // counts of the countmin, and those above its bound
}

// when draws the time of an event: one in twenty is late by up to thirty half-lives, two by up to three.
func (l *longRun) when() int64 {
	switch l.r.IntN(20) {
	case 0:
		return l.now - l.r.Int64N(30*l.halfLife)
	case 1, 2:
		return l.now - l.r.Int64N(3*l.halfLife)
	}
	return l.now
}

// burst brings so many events to each kind that counts, and so many members within two half-lives: a fifth of them may
// have been there in the burst before, or come twice. The others are new, so that the errors of bursts are independent.
func (l *longRun) burst(events, members int) {
	const perEntry = 500
	l.first += 8000
	step := 2 * l.halfLife / int64(max(events, members)/perEntry+1)
	often := rand.NewZipf(l.r, 1.2, 1, 2000)
	for events > 0 || members > 0 {
		l.now += 1 + l.r.Int64N(step)
		batch := &ebbv1.Increments{}
		put := func(kind ebbv1.Kind, bin string, at int64, amount, value float64) {
			batch.Increments = append(batch.Increments, &ebbv1.Increment{
				Key: []byte(kind.String()), Bin: []byte(bin), TimeUs: at, Amount: &amount, Value: &value, Kind: kind,
			})
		}
		for range min(events, perEntry/5) {
			events--
			at, item, n, value := l.when(), fmt.Sprint(often.Uint64()), float64(1+l.r.IntN(30)), math.Exp(3*l.r.NormFloat64())
			for _, kind := range []ebbv1.Kind{
				ebbv1.Kind_KIND_DISTRIBUTION, ebbv1.Kind_KIND_COUNTMIN, ebbv1.Kind_KIND_TOPK, ebbv1.Kind_KIND_QUANTILE, ebbv1.Kind_KIND_MORRIS,
			} {
				put(kind, item, at, n, value)
			}
			if l.counts[item] == nil {
				l.counts[item] = &fading{}
			}
			l.counts[item].add(at, n, float64(l.halfLife))
			l.total.add(at, n, float64(l.halfLife))
			l.values = append(l.values, seen{at: at, amount: n, value: value})
		}
		for range min(members, perEntry) {
			members--
			at, member := l.when(), fmt.Sprint(l.first+l.r.IntN(10_000))
			put(ebbv1.Kind_KIND_DISTINCT, member, at, 1, 0)
			put(ebbv1.Kind_KIND_SET, member, at, 1, 0)
			l.lasts[member] = max(l.lasts[member], at)
		}
		c := encodeEntry(l.t, l.now, []*ebbv1.Command{{Body: &ebbv1.Command_Increments{Increments: batch}}})
		for _, s := range l.replicas {
			if r := s.Apply(s.Applied()+1, c, nil)[0]; r.Applied != uint64(len(batch.Increments)) {
				l.t.Fatalf("%v", r)
			}
		}
	}
}

func (l *longRun) ask(kind ebbv1.Kind, q *ebbv1.SummaryQuestion) *ebbv1.Summary {
	q.Keys = [][]byte{[]byte(kind.String())}
	a := l.replicas[0].Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: q}}}, sketch.Tick(l.now))
	if a.Error != nil {
		l.t.Fatalf("%v", a.Error)
	}
	return a.GetAnswer().GetSummary()
}

// check holds all kinds against the account. At the end of a burst the errors of the estimates are independent of those
// before, and count.
func (l *longRun) check(fresh bool) {
	l.t.Helper()
	first := l.replicas[0].Checksum()
	for i, s := range l.replicas {
		if s.Checksum() != first {
			l.t.Fatalf("replica %d differs", i)
		}
	}
	total := l.total.read(l.now, float64(l.halfLife))
	l.checkDistribution(total)
	l.checkCounts(total)
	l.checkQuantiles(total)
	l.checkMembers(fresh)
	if m := l.ask(ebbv1.Kind_KIND_MORRIS, &ebbv1.SummaryQuestion{}); fresh && total > 1000 {
		l.morris.see(m.Total.Value, total)
	}
}

// lost is the most that a bin may have lost: each time it was below the threshold it was forgotten, and what was
// forgotten before has faded.
const lost = 0.003

func (l *longRun) checkDistribution(total float64) {
	q := &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(ebbv1.Kind_KIND_DISTRIBUTION.String())}, Select: &ebbv1.DistributionQuestion_All{All: true}}
	d := l.replicas[0].Ask(question("default", q), sketch.Tick(l.now)).GetAnswer().GetDistribution()
	if d.Found && math.Abs(d.Z-total) > 1e-9*total+lost || !d.Found && total > lost {
		l.t.Fatalf("a sum of %v, the truth %v", d.Z, total)
	}
	got := map[string]float64{}
	for _, b := range d.Bins {
		got[string(b.Bin)] = b.Count
	}
	for item, f := range l.counts {
		if want := f.read(l.now, float64(l.halfLife)); got[item] > want*(1+1e-9) || got[item] < want*(1-1e-9)-lost {
			l.t.Fatalf("item %s counts %v, in truth %v", item, got[item], want)
		}
	}
}

// checkCounts: brackets hold up to the rounding of sums, and what has faded for good.
func (l *longRun) checkCounts(total float64) {
	var q ebbv1.SummaryQuestion
	for item := range l.counts {
		q.Bins = append(q.Bins, []byte(item))
	}
	slices.SortFunc(q.Bins, func(a, b []byte) int { return slices.Compare(a, b) })
	min, top := l.ask(ebbv1.Kind_KIND_COUNTMIN, &q), l.ask(ebbv1.Kind_KIND_TOPK, &ebbv1.SummaryQuestion{Bins: q.Bins})
	slack := lost + 1e-9*total
	for i, item := range q.Bins {
		want := l.counts[string(item)].read(l.now, float64(l.halfLife))
		if e := min.Bins[i]; want > e.High+slack {
			l.t.Fatalf("a countmin counts at most %v of item %s, in truth there are %v", e.High, item, want)
		} else if l.looked++; want < e.Low-slack {
			l.above++
		}
		if e := top.Bins[i]; want > e.High+slack || want < e.Low-slack {
			l.t.Fatalf("a topk counts %v of item %s, in truth there are %v", e, item, want)
		}
	}
}

// checkQuantiles, of values that are sorted as they are checked; those that have faded for good are let go of.
func (l *longRun) checkQuantiles(total float64) {
	l.values = slices.DeleteFunc(l.values, func(e seen) bool { return l.now-e.at > 60*l.halfLife })
	got := l.ask(ebbv1.Kind_KIND_QUANTILE, &ebbv1.SummaryQuestion{Quantiles: []float64{0.5, 0.99}})
	if total < 100 {
		return // what is below the threshold in each bucket may be a part that matters
	}
	slices.SortFunc(l.values, func(a, b seen) int { return int(math.Copysign(1, a.value-b.value)) })
	for i, part := range []float64{0.5, 0.99} {
		find := func(target float64) float64 {
			sum := 0.0
			for _, e := range l.values {
				if sum += e.amount * math.Exp2(-float64(l.now-e.at)/float64(l.halfLife)); sum >= target {
					return e.value
				}
			}
			return math.Inf(1)
		}
		// buckets may have lost something, a thousandth of so large a sum
		low, high := find((part-0.002)*total), find((part+0.002)*total)
		if e := got.Quantiles[i]; e.Value < low*0.99 || e.Value > high/0.99 {
			l.t.Fatalf("quantile %g is %v, in truth %v to %v", part, e.Value, low, high)
		}
	}
}

func (l *longRun) checkMembers(fresh bool) {
	var truth float64
	remembered := 0
	for member, at := range l.lasts {
		if l.now-at > 80*l.halfLife {
			delete(l.lasts, member)
			continue
		}
		if l.now-at < 60*l.halfLife {
			remembered++
		}
		truth += math.Exp2(-float64(l.now-at) / float64(l.halfLife))
	}
	for kind, errors := range map[ebbv1.Kind]*measured{ebbv1.Kind_KIND_DISTINCT: &l.distinct, ebbv1.Kind_KIND_SET: &l.set} {
		got := l.ask(kind, &ebbv1.SummaryQuestion{})
		switch {
		case !got.Found && truth > 0.01:
			l.t.Fatalf("no members of %v, in truth %v", kind, truth)
		case got.Found && remembered < 500 && math.Abs(got.Total.Value-truth) > 1e-3+6*got.Total.StdError:
			l.t.Fatalf("%v members of %d in %v, in truth %v", got.Total, remembered, kind, truth)
		case got.Found && fresh && got.Total.StdError > 0:
			errors.see(got.Total.Value, truth)
		}
	}
}

// verdict on what is true of many estimates only.
func (l *longRun) verdict() {
	if part := float64(l.above) / float64(l.looked); part > 0.01 {
		l.t.Errorf("%v of %d counts of a countmin are above their bound", part, l.looked)
	}
	l.t.Logf("countmin: %d of %d counts above the bound", l.above, l.looked)
	for _, c := range []struct {
		name   string
		errors measured
		theory float64
	}{{"distinct", l.distinct, 1.04 / math.Sqrt(2048)}, {"set", l.set, 1 / math.Sqrt(1023)}, {"morris", l.morris, math.Sqrt(0.0005 / 2)}} {
		bias, rmse := c.errors.sum/c.errors.n, math.Sqrt(c.errors.squares/c.errors.n)
		l.t.Logf("%s: %.0f bursts, bias %+.3f%%, rmse %.3f%%, theory %.3f%%", c.name, c.errors.n, 100*bias, 100*rmse, 100*c.theory)
		if math.Abs(bias) > 0.01 || rmse > c.theory*(1.05+4.5/math.Sqrt(2*c.errors.n)) || c.errors.n < 20 {
			l.t.Errorf("%s: bias %v, rmse %v of %.0f bursts, in theory %v", c.name, bias, rmse, c.errors.n, c.theory)
		}
	}
}
