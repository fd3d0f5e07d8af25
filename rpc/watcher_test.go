package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

func distributionOf(count float64, bins ...string) *ebbv1.Answer {
	d := &ebbv1.Distribution{Found: true, Z: count, AsOfUs: int64(count)}
	for _, b := range bins {
		d.Bins = append(d.Bins, &ebbv1.Bin{Bin: []byte(b), Count: count})
	}
	return &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}, Coverage: &ebbv1.Coverage{ShardsTotal: 1, AsOfMaxUs: int64(count)}}
}

func failing(code ebbv1.Code, message string) *ebbv1.Answer {
	return &ebbv1.Answer{Error: &ebbv1.Error{Code: code, Message: message}}
}

func drift(p, distance float64) *ebbv1.Answer {
	return &ebbv1.Answer{Value: &ebbv1.Answer_Surprise{Surprise: &ebbv1.Surprise{Found: true, PValue: p, JensenShannonBits: distance}}}
}

// A watch sends the first answer, and from then on what differs by more than its tolerance from the last one sent:
// small steps add up. Times never count.
func TestWatcherSendsChanges(t *testing.T) {
	lost := distributionOf(100, "a")
	lost.Coverage.ShardsFailed = []uint32{3}
	for _, c := range []struct {
		name    string
		req     *ebbv1.WatchRequest
		answers []*ebbv1.Answer
		sent    []int
	}{
		{"what fades a little", &ebbv1.WatchRequest{}, []*ebbv1.Answer{distributionOf(100, "a"), distributionOf(99.5, "a"), distributionOf(99.1, "a"), distributionOf(98.9, "a"), distributionOf(98.5, "a")}, []int{0, 3}},
		{"every answer", &ebbv1.WatchRequest{Every: true}, []*ebbv1.Answer{distributionOf(100, "a"), distributionOf(100, "a")}, []int{0, 1}},
		{"no tolerance", &ebbv1.WatchRequest{Tolerance: new(0.)}, []*ebbv1.Answer{distributionOf(100, "a"), distributionOf(99.999, "a"), distributionOf(99.999, "a")}, []int{0, 1}},
		{"wide tolerance", &ebbv1.WatchRequest{Tolerance: new(0.5)}, []*ebbv1.Answer{distributionOf(100, "a"), distributionOf(60, "a"), distributionOf(49, "a")}, []int{0, 2}},
		{"a bin more, another bin", &ebbv1.WatchRequest{}, []*ebbv1.Answer{distributionOf(100, "a"), distributionOf(100, "a", "b"), distributionOf(100, "a", "c")}, []int{0, 1, 2}},
		{"a shard less", &ebbv1.WatchRequest{}, []*ebbv1.Answer{distributionOf(100, "a"), lost, lost}, []int{0, 1}},
		{"failures by their code", &ebbv1.WatchRequest{}, []*ebbv1.Answer{
			distributionOf(100, "a"), failing(ebbv1.Code_CODE_NO_LEADER, "1 try"), failing(ebbv1.Code_CODE_NO_LEADER, "2 tries"), failing(ebbv1.Code_CODE_DEADLINE, ""), distributionOf(100, "a"),
		}, []int{0, 1, 3, 4}},
		{"chance that is hardly any", &ebbv1.WatchRequest{}, []*ebbv1.Answer{drift(1e-9, 0.5), drift(1e-30, 0.5), drift(0.02, 0.5)}, []int{0, 2}},
	} {
		w := newWatcher(c.req)
		var sent []int
		unsent := uint64(0)
		for i, a := range c.answers {
			before := proto.CloneOf(a)
			e := w.next(a)
			if !proto.Equal(a, before) {
				t.Errorf("%s: answer %d was written to", c.name, i)
			}
			if e == nil {
				unsent++
				continue
			}
			if e.GetUnsent() != unsent || e.GetAnswer() != a || e.GetRaised() || e.GetCrossed() {
				t.Errorf("%s: event %v after %d", c.name, e, unsent)
			}
			sent, unsent = append(sent, i), 0
		}
		if len(sent) != len(c.sent) {
			t.Errorf("%s: sent %v, not %v", c.name, sent, c.sent)
			continue
		}
		for i := range sent {
			if sent[i] != c.sent[i] {
				t.Errorf("%s: sent %v, not %v", c.name, sent, c.sent)
			}
		}
	}
}

// An alert is raised by what passes all of its thresholds and stays raised until what is weaker is not passed either.
// With an alert, only the first answer, crossings and failures are sent.
func TestWatcherAlerts(t *testing.T) {
	type step struct {
		answer          *ebbv1.Answer
		sent            bool
		raised, crossed bool
	}
	partly := func(a *ebbv1.Answer) *ebbv1.Answer {
		a.Coverage = &ebbv1.Coverage{ShardsTotal: 3, ShardsAnswered: 2, ShardsFailed: []uint32{1}}
		return a
	}
	gone := &ebbv1.Answer{Value: &ebbv1.Answer_Surprise{Surprise: &ebbv1.Surprise{PValue: 1}}}
	for _, c := range []struct {
		name  string
		alert *ebbv1.Alert
		steps []step
	}{
		{"chance and distance", &ebbv1.Alert{PValue: 0.001, JensenShannonBits: 0.1}, []step{
			{drift(0.5, 0.01), true, false, false},
			{drift(0.0001, 0.09), false, false, false},
			{drift(0.01, 0.5), false, false, false},
			{drift(0.001, 0.1), true, true, true},
			{drift(0.009, 0.081), false, true, false},
			{drift(0.009, 0.079), true, false, true},
			{drift(0.009, 0.09), false, false, false},
			{drift(1e-9, 0.9), true, true, true},
			{gone, true, false, true},
		}},
		{"chance alone", &ebbv1.Alert{PValue: 0.05}, []step{
			{drift(0.04, 0), true, true, true}, {drift(0.49, 0), false, true, false}, {drift(0.51, 0), true, false, true},
		}},
		{"what does not differ clears any", &ebbv1.Alert{PValue: 0.3}, []step{
			{drift(0.3, 0.1), true, true, true}, {drift(0.6, 0), false, true, false}, {drift(1, 0), true, false, true},
		}},
		{"distance alone, cleared where it says", &ebbv1.Alert{JensenShannonBits: 0.5, ClearJensenShannonBits: new(0.1)}, []step{
			{drift(1, 0.6), true, true, true}, {drift(1, 0.2), false, true, false}, {drift(1, 0.05), true, false, true}, {drift(1, 0.4), false, false, false},
		}},
		{"no hysteresis", &ebbv1.Alert{PValue: 0.01, ClearPValue: new(0.01)}, []step{
			{drift(0.01, 0), true, true, true}, {drift(0.011, 0), true, false, true},
		}},
		{"raised before", &ebbv1.Alert{PValue: 0.01, Raised: true}, []step{
			{drift(0.05, 0), true, true, false}, {drift(0.5, 0), true, false, true},
		}},
		{"a failure changes nothing", &ebbv1.Alert{PValue: 0.01}, []step{
			{drift(0.001, 0), true, true, true},
			{failing(ebbv1.Code_CODE_NO_LEADER, ""), true, true, false},
			{failing(ebbv1.Code_CODE_NO_LEADER, "x"), false, true, false},
			{drift(0.001, 0), true, true, false},
		}},
		{"a missing shard raises nothing and clears nothing", &ebbv1.Alert{PValue: 0.01}, []step{
			{drift(0.5, 0), true, false, false},
			{partly(drift(0.001, 0)), true, false, false},
			{partly(drift(0.001, 0)), false, false, false},
			{drift(0.001, 0), true, true, true},
			{partly(drift(0.9, 0)), true, true, false},
			{drift(0.9, 0), true, false, true},
		}},
	} {
		w := newWatcher(&ebbv1.WatchRequest{Alert: c.alert})
		for i, s := range c.steps {
			e := w.next(s.answer)
			if (e != nil) != s.sent || e != nil && (e.GetRaised() != s.raised || e.GetCrossed() != s.crossed) {
				t.Errorf("%s: step %d gives %v", c.name, i, e)
			}
		}
	}
}
