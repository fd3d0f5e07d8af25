package rpc

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// jsonRequest is a request of HTTP whose body, if it has one, is JSON.
func jsonRequest(method, target string, body io.Reader) *http.Request {
	r := httptest.NewRequest(method, target, body)
	r.Header.Set("Content-Type", "application/json")
	return r
}

// fixtureNowUS is the time at which the fixture answers: 2023-11-14T22:13:20.5Z.
const fixtureNowUS = 1_700_000_000_500_000

// fixture is a cluster that holds a few distributions and never changes.
func fixture() *fake {
	return &fake{
		ask: askFixture,
		table: &ebbv1.Table{
			ClusterId: "c", Epoch: 3, Shards: 64, Replication: 3,
			Nodes: []*ebbv1.NodeRecord{{Name: "ebb-0", GrpcAddress: "10.0.0.1:7070", Alive: true}},
			Namespaces: []*ebbv1.Namespace{
				proto.FillNamespace(&ebbv1.Namespace{Name: "default", Version: 1, HashSeed: 18446744073709551615}, proto.DefaultNamespaceSettings()),
				proto.FillNamespace(&ebbv1.Namespace{
					Name: "plain", Version: 2, Decay: ebbv1.Decay_DECAY_NONE, Floor: ebbv1.Floor_FLOOR_CLAMP,
				}, proto.DefaultNamespaceSettings()),
			},
		},
	}
}

func askFixture(_ context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	resp := &ebbv1.AskResponse{}
	for _, q := range req.GetQuestions() {
		resp.Answers = append(resp.Answers, answerFixture(q))
	}
	return resp, nil
}

func answerFixture(q *ebbv1.Question) *ebbv1.Answer {
	ns := q.GetNamespace()
	if ns != "" && ns != "default" && ns != "plain" {
		return &ebbv1.Answer{Error: proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", ns).Wire()}
	}
	asOf := q.GetDistribution().GetAsOfUs()
	if asOf == 0 {
		asOf = fixtureNowUS
	}
	a := &ebbv1.Answer{Coverage: &ebbv1.Coverage{ShardsTotal: 1, ShardsAnswered: 1, AsOfMinUs: asOf, AsOfMaxUs: asOf}}
	if q.GetCountKeys() != nil {
		a.Coverage = &ebbv1.Coverage{ShardsTotal: 64, ShardsAnswered: 64, AsOfMinUs: asOf, AsOfMaxUs: asOf}
		a.Value = &ebbv1.Answer_CountKeys{CountKeys: &ebbv1.KeyCount{Keys: 3}}
		return a
	}
	a.Value = &ebbv1.Answer_Distribution{Distribution: distributionFixture(q.GetDistribution(), asOf)}
	return a
}

// holdings are the fixture's distributions: bins from most to least probable.
var holdings = map[string][]*ebbv1.Bin{
	"colors": {
		{Bin: []byte("red"), Count: 7.049999999999999, P: 7.049999999999999 / 12.34, PLow: 0.3, PHigh: 0.79},
		{Bin: []byte("blue"), Count: 3.5, P: 3.5 / 12.34, PLow: 0.1, PHigh: 0.56},
		{Bin: []byte("\"grün\"\n<&>"), Count: 1.49, P: 1.49 / 12.34, PLow: 0.03, PHigh: 0.4},
		{Bin: []byte("faint"), Count: 1e-7, P: 1e-7 / 12.34, PLow: 0, PHigh: 0.2},
	},
	"bytes": {{Bin: []byte{0xff, 0xfe}, Count: 1, P: 1, PLow: 0.2, PHigh: 1}},
	"a//b":  {{Bin: []byte("x"), Count: 1, P: 1, PLow: 0.2, PHigh: 1}},
}

func distributionFixture(q *ebbv1.DistributionQuestion, asOf int64) *ebbv1.Distribution {
	d := &ebbv1.Distribution{Keys: q.GetKeys(), AsOfUs: asOf, Confidence: 0.95}
	bins, found := holdings[string(q.GetKeys()[0])]
	if found {
		d.Found, d.Z, d.Z2, d.Other = true, 12.34, 40, 0.3
		d.EffectiveN, d.EntropyBits, d.BinsTotal = 3.8, 1.4, uint32(len(bins))
		d.LastEventUs = asOf - 3_600_000_000
		d.Decay, d.HalfLifeUs, d.Floor = ebbv1.Decay_DECAY_HALF_LIFE, proto.DefaultHalfLifeUS, ebbv1.Floor_FLOOR_PRUNE
	}
	switch {
	case q.GetTop() > 0:
		d.Bins = bins[:min(len(bins), int(q.GetTop()))]
	case q.GetBins() != nil:
		for _, name := range q.GetBins().GetBins() {
			d.Bins = append(d.Bins, binFixture(bins, name))
		}
	default:
		d.Bins = bins
	}
	return d
}

func binFixture(bins []*ebbv1.Bin, name []byte) *ebbv1.Bin {
	i := slices.IndexFunc(bins, func(b *ebbv1.Bin) bool { return string(b.GetBin()) == string(name) })
	if i < 0 {
		return &ebbv1.Bin{Bin: name}
	}
	return bins[i]
}
