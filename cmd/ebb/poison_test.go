package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// poison is a request that cannot be right, in the words of each door; a door that has none for it is left out.
type poison struct {
	name   string
	want   []*proto.Error // one of these; any that is about the request if empty
	says   string         // in each error, whichever door
	grpc   func(v *victim) error
	http   string // METHOD PATH BODY
	forget string // what is asked of the forgettable door
	cli    string // the command line, with blanks between words
	// byShard is what only a shard can tell, which knows its clock, its namespaces and how summaries are encoded. The
	// log then has an entry that changes nothing.
	byShard bool
}

// victim is a node that holds something, with all its doors.
type victim struct {
	ctx    context.Context
	node   *node.Node
	ebb    ebbv1grpc.EbbClient
	shards ebbv1grpc.ShardsClient
}

const victimShards = 2

func newVictim(t *testing.T) *victim {
	t.Helper()
	n, err := node.Open(t.Context(), node.Config{
		DataDir: t.TempDir(), GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Admin: node.Off, Gossip: node.Off, Shards: victimShards, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(err error) { t.Errorf("the node ended: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	<-n.Ready()
	conn, err := grpc.NewClient(n.Addresses().GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &victim{t.Context(), n, ebbv1grpc.NewEbbClient(conn), ebbv1grpc.NewShardsClient(conn)}
}

// furnish puts something into each shard.
func (v *victim) furnish(t *testing.T) {
	t.Helper()
	var batch []*ebbv1.Increment
	for i := range 20 {
		batch = append(batch, &ebbv1.Increment{Key: fmt.Appendf(nil, "k%d", i), Bin: []byte("b")})
	}
	batch = append(batch, &ebbv1.Increment{Key: bytes.Repeat([]byte("a"), proto.KeyLenMax), Bin: []byte("b")}, &ebbv1.Increment{Key: []byte("d"), Bin: []byte("m"), Kind: ebbv1.Kind_KIND_DISTINCT})
	for _, err := range []error{
		second(v.ebb.Increment(v.ctx, &ebbv1.IncrementRequest{Increments: batch})),
		v.bits(&ebbv1.BitChange{Key: []byte("bits"), Op: ebbv1.BitOp_BIT_OP_SET, Ids: []uint64{1, 1 << 32, 1 << 63, math.MaxUint64}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// state is what the shards hold: how many entries each has applied, and a hash of all of it.
func (v *victim) state(t *testing.T) (state [victimShards][2]uint64) {
	t.Helper()
	for i := range state {
		index, sum, ok := v.node.Checksum(uint32(i) + 1)
		if !ok {
			t.Fatalf("shard %d is not there", i+1)
		}
		state[i] = [2]uint64{index, sum}
	}
	return state
}

// content is what is there in answers, for what the index alone would change.
func (v *victim) content(t *testing.T) string {
	t.Helper()
	resp, err := v.ebb.Ask(v.ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{
		{Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}},
		{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte("bits")}}, Select: &ebbv1.BitmapQuestion_Count{Count: true}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.GetAnswers()[0].GetCountKeys().GetKeys(), resp.GetAnswers()[1].GetBitmap().GetCount(), resp.GetAnswers()[1].GetError())
}

func (v *victim) increment(in *ebbv1.Increment) error {
	resp, err := v.ebb.Increment(v.ctx, &ebbv1.IncrementRequest{Increments: []*ebbv1.Increment{in}})
	if err == nil && len(resp.GetRefused()) > 0 {
		return proto.FromWire(resp.GetRefused()[0].GetError())
	}
	return ebbv1grpc.FromStatus(err)
}

func (v *victim) amount(amount float64) error {
	return v.increment(&ebbv1.Increment{Key: []byte("k"), Bin: []byte("b"), Amount: &amount})
}

func (v *victim) bits(c *ebbv1.BitChange) error {
	return ebbv1grpc.FromStatus(second(v.ebb.Bits(v.ctx, &ebbv1.BitsRequest{Changes: []*ebbv1.BitChange{c}})))
}

func (v *victim) ask(q *ebbv1.Question) error {
	resp, err := v.ebb.Ask(v.ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err == nil && resp.GetAnswers()[0].GetError() != nil {
		return proto.FromWire(resp.GetAnswers()[0].GetError())
	}
	return ebbv1grpc.FromStatus(err)
}

func (v *victim) query(text string) error {
	return ebbv1grpc.FromStatus(second(v.ebb.Query(v.ctx, &ebbv1.QueryRequest{Text: text})))
}

func (v *victim) namespace(ns *ebbv1.Namespace) error {
	if ns.Name == "" {
		ns.Name = "poisoned"
	}
	return ebbv1grpc.FromStatus(second(v.ebb.SetNamespace(v.ctx, &ebbv1.SetNamespaceRequest{Namespace: ns, Create: true})))
}

// command sends bytes as a command to a shard, as another node or the SDK does.
func (v *victim) command(shard uint32, raw []byte) error {
	resp, err := v.shards.Apply(v.ctx, &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: shard, Command: raw}}})
	if err == nil && resp.GetResults()[0].GetError() != nil {
		return proto.FromWire(resp.GetResults()[0].GetError())
	}
	return ebbv1grpc.FromStatus(err)
}

func commandBytes(c *ebbv1.Command) []byte {
	raw, err := protobuf.Marshal(c)
	if err != nil {
		panic(err)
	}
	return raw
}

// post sends "METHOD PATH BODY".
func (v *victim) post(request string) error {
	method, rest, _ := strings.Cut(request, " ")
	path, body, _ := strings.Cut(rest, " ")
	req, err := http.NewRequestWithContext(v.ctx, method, "http://"+v.node.Addresses().HTTP+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	switch {
	case err != nil || resp.StatusCode == http.StatusOK:
		return err
	case resp.Header.Get("Ebb-Error") != "": // the forgettable door
		return errors.New(resp.Header.Get("Ebb-Error"))
	}
	return errors.New(string(said))
}

// run runs a command line.
func (v *victim) run(line string) error {
	var said bytes.Buffer
	args := strings.Split(line, " ")
	if code := run(v.ctx, append([]string{"--addr", v.node.Addresses().GRPC}, args...), terminal{in: strings.NewReader(""), out: io.Discard, err: &said}); code == 0 {
		return nil
	}
	return errors.New(said.String())
}

func inc(change func(in *ebbv1.Increment)) func(v *victim) error {
	return func(v *victim) error {
		in := &ebbv1.Increment{Key: []byte("k"), Bin: []byte("b")}
		change(in)
		return v.increment(in)
	}
}

func about(q *ebbv1.Question) func(v *victim) error { return func(v *victim) error { return v.ask(q) } }

func asking(text string) func(v *victim) error { return func(v *victim) error { return v.query(text) } }

func making(ns *ebbv1.Namespace) func(v *victim) error {
	return func(v *victim) error { return v.namespace(ns) }
}

func bitting(c *ebbv1.BitChange) func(v *victim) error {
	c.Key = []byte("bits")
	return func(v *victim) error { return v.bits(c) }
}

func commanding(raw []byte) func(v *victim) error {
	return func(v *victim) error { return v.command(1, raw) }
}

func putting(image []byte) func(v *victim) error {
	return commanding(commandBytes(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: &ebbv1.PutKey{Key: []byte("new"), What: &ebbv1.PutKey_Image{Image: image}}}}))
}

func restoring(r *ebbv1.RestoreShard) func(v *victim) error {
	r.Name = "poison"
	return commanding(commandBytes(&ebbv1.Command{Body: &ebbv1.Command_Restore{Restore: r}}))
}

func distribution(q *ebbv1.DistributionQuestion) *ebbv1.Question {
	q.Keys = [][]byte{[]byte("k")}
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: q}}
}

func summary(q *ebbv1.SummaryQuestion) *ebbv1.Question {
	q.Keys = [][]byte{[]byte("d")}
	return &ebbv1.Question{Ask: &ebbv1.Question_Summary{Summary: q}}
}

func errs(list ...*proto.Error) []*proto.Error { return list }

func poisons() []poison {
	long := strings.Repeat
	nan, inf := math.NaN(), math.Inf(1)
	deep := long("(", 2000) + "a" + long(")", 2000)
	return []poison{
		// Numbers that are none, are too large, or have no business here.
		{name: "amount NaN", grpc: func(v *victim) error { return v.amount(nan) }, cli: "incr k b --by nan", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","amount":NaN}]}`, forget: "/incr?distribution=k&field=b&N=nan"},
		{name: "amount infinite", grpc: func(v *victim) error { return v.amount(inf) }, cli: "incr k b --by inf", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","amount":1e999}]}`, forget: "/incr?distribution=k&field=b&N=1e999"},
		{name: "amount minus infinite", grpc: func(v *victim) error { return v.amount(-inf) }, cli: "incr k b --by=-inf", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","amount":-1e999}]}`},
		{name: "amount too large", want: errs(proto.ErrBadAmount), says: "1e+15", grpc: func(v *victim) error { return v.amount(1e16) }, cli: "incr k b --by 1e16", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","amount":1e16}]}`, forget: "/incr?distribution=k&field=b&N=10000000000000000"},
		{name: "amount over 64 bits", forget: "/incr?distribution=k&field=b&N=9223372036854775808", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","amount":1e309}]}`, cli: "incr k b --by 1e309"},
		{name: "amount negative", want: errs(proto.ErrNegativeAmount), says: "negative", byShard: true, grpc: func(v *victim) error { return v.amount(-3) }, cli: "incr k b --by -3", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","amount":-3}]}`, forget: "/incr?distribution=k&field=b&N=-3"},
		{name: "value NaN", grpc: inc(func(in *ebbv1.Increment) { in.Kind, in.Value = ebbv1.Kind_KIND_QUANTILE, &nan })},
		{name: "value infinite", grpc: inc(func(in *ebbv1.Increment) { in.Kind, in.Value = ebbv1.Kind_KIND_QUANTILE, &inf })},
		{name: "kind unknown", grpc: inc(func(in *ebbv1.Increment) { in.Kind = 99 }), http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","kind":99}]}`},
		{name: "kind negative", grpc: inc(func(in *ebbv1.Increment) { in.Kind = -1 }), http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","kind":-1}]}`},
		{name: "time before 1970", want: errs(proto.ErrBadTime), says: "1970", grpc: inc(func(in *ebbv1.Increment) { in.TimeUs = -1 }), cli: "incr k b --at 1969-12-31", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b","time_us":-1}]}`},
		{name: "time NaN", cli: "incr k b --at nan", http: `GET /v1/ns/default/distribution/k?as_of=nan`},
		{name: "time beyond all clocks", cli: "incr k b --at 1e300"},
		{name: "time to come", want: errs(proto.ErrBadTime), byShard: true, grpc: inc(func(in *ebbv1.Increment) { in.TimeUs = math.MaxInt64 }), cli: "incr k b --at 2200-01-01"},
		{name: "confidence NaN", grpc: about(distribution(&ebbv1.DistributionQuestion{Confidence: nan})), cli: "top k --confidence nan", http: `GET /v1/ns/default/distribution/k?confidence=nan`},
		{name: "confidence 1", says: "0.9999", grpc: about(distribution(&ebbv1.DistributionQuestion{Confidence: 1})), cli: "top k --confidence 1", http: `GET /v1/ns/default/distribution/k?confidence=1`},
		{name: "rate NaN", grpc: about(distribution(&ebbv1.DistributionQuestion{Rate: &nan})), http: `GET /v1/ns/default/distribution/k?rate=nan`, forget: "/dist?distribution=k&rate=nan"},
		{name: "rate infinite", grpc: about(distribution(&ebbv1.DistributionQuestion{Rate: &inf})), http: `GET /v1/ns/default/distribution/k?rate=inf`, forget: "/dist?distribution=k&rate=inf"},
		{name: "quantile NaN", grpc: about(summary(&ebbv1.SummaryQuestion{Quantiles: []float64{nan}})), http: `GET /v1/ns/default/summary/d?quantile=nan`, cli: "estimate d --quantile nan"},
		{name: "quantile 2", grpc: about(summary(&ebbv1.SummaryQuestion{Quantiles: []float64{2}})), http: `GET /v1/ns/default/summary/d?quantile=2`, cli: "estimate d --quantile 2"},
		{name: "window negative", grpc: about(summary(&ebbv1.SummaryQuestion{WindowUs: -1})), http: `GET /v1/ns/default/summary/d?window=-1`},
		{name: "top 0", want: errs(proto.ErrBadCount), says: "100000", grpc: about(distribution(&ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{}})), cli: "top k --n 0", http: `GET /v1/ns/default/distribution/k?top=0`, forget: "/nmostprobable?distribution=k&N=0"},
		{name: "top too many", want: errs(proto.ErrBadCount), says: "100000", grpc: about(distribution(&ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{Top: math.MaxUint32}})), cli: "top k --n 4294967295", http: `GET /v1/ns/default/distribution/k?top=4294967295`, forget: "/nmostprobable?distribution=k&N=4294967295"},
		{name: "time to live negative", grpc: func(v *victim) error {
			return ebbv1grpc.FromStatus(second(v.ebb.Expire(v.ctx, &ebbv1.ExpireRequest{Keys: [][]byte{[]byte("k1")}, TtlUs: -1})))
		}, http: `POST /v1/expire {"keys":["k1"],"ttl_us":-1}`},
		{name: "time to live too long", grpc: func(v *victim) error {
			return ebbv1grpc.FromStatus(second(v.ebb.Expire(v.ctx, &ebbv1.ExpireRequest{Keys: [][]byte{[]byte("k1")}, TtlUs: math.MaxInt64})))
		}, http: `POST /v1/expire {"keys":["k1"],"ttl_us":9223372036854775807}`},

		// Ids of bitmaps and ranges of them.
		{name: "id -1", http: `POST /v1/bits {"changes":[{"key":"bits","op":"set","ids":[-1]}]}`, cli: "bits set bits -- -1"},
		{name: "id 2^64", http: `POST /v1/bits {"changes":[{"key":"bits","op":"set","ids":[18446744073709551616]}]}`, cli: "bits set bits 18446744073709551616"},
		{name: "id with a fraction", http: `POST /v1/bits {"changes":[{"key":"bits","op":"set","ids":[1.5]}]}`, cli: "bits set bits 1.5"},
		{name: "range of all ids", grpc: bitting(&ebbv1.BitChange{Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{Last: math.MaxUint64}}), http: `POST /v1/bits {"changes":[{"key":"bits","op":"set","range":{"first":0,"last":18446744073709551615}}]}`, cli: "bits set bits 0..18446744073709551615"},
		{name: "range upside down", grpc: bitting(&ebbv1.BitChange{Op: ebbv1.BitOp_BIT_OP_SET, Range: &ebbv1.BitRange{First: 1 << 63, Last: 1 << 32}}), http: `POST /v1/bits {"changes":[{"key":"bits","op":"set","range":{"first":9223372036854775808,"last":4294967296}}]}`, cli: "bits set bits 9223372036854775808..4294967296"},
		{name: "packed ids that overflow", grpc: bitting(&ebbv1.BitChange{Op: ebbv1.BitOp_BIT_OP_SET, Packed: bytes.Repeat([]byte{0xff}, 30)})},
		{name: "packed ids cut off", grpc: bitting(&ebbv1.BitChange{Op: ebbv1.BitOp_BIT_OP_SET, Packed: []byte{1, 0x80}})},
		{name: "operation unknown", grpc: bitting(&ebbv1.BitChange{Op: 77, Ids: []uint64{1}}), http: `POST /v1/bits {"changes":[{"key":"bits","op":"xor","ids":[1]}]}`},

		// Sizes of summaries: none, too large, and products that are.
		{name: "distinct precision 1", says: "6 to 16", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{DistinctPrecision: 1}}), cli: "namespace create x --size distinct.precision=1", http: `POST /v1/namespaces {"namespace":{"name":"x","sizes":{"distinct_precision":1}}}`},
		{name: "distinct precision 2^32-1", says: "6 to 16", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{DistinctPrecision: math.MaxUint32}}), cli: "namespace create x --size distinct.precision=4294967295"},
		{name: "countmin cells overflow", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{CountminEpsilon: 0.00001, CountminDelta: 1e-9}}), cli: "namespace create x --size countmin.epsilon=0.00001 --size countmin.delta=1e-9"},
		{name: "countmin epsilon NaN", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{CountminEpsilon: nan}}), cli: "namespace create x --size countmin.epsilon=nan"},
		{name: "countmin epsilon tiny", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{CountminEpsilon: 5e-324}}), cli: "namespace create x --size countmin.epsilon=5e-324"},
		{name: "linear capacity 2^64-1", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{LinearCapacity: math.MaxUint64}}), cli: "namespace create x --size linear.capacity=18446744073709551615"},
		{name: "bloom capacity 2^64-1", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{BloomCapacity: math.MaxUint64}}), cli: "namespace create x --size bloom.capacity=18446744073709551615"},
		{name: "quantile error NaN", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{QuantileError: nan}}), cli: "namespace create x --size quantile.error=nan"},
		{name: "morris base infinite", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{MorrisBase: inf}}), cli: "namespace create x --size morris.base=inf"},
		{name: "topk items 2^32-1", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{TopkItems: math.MaxUint32}}), cli: "namespace create x --size topk.items=4294967295"},
		{name: "set members 2^32-1", grpc: making(&ebbv1.Namespace{Sizes: &ebbv1.Sizes{SetMembers: math.MaxUint32}}), cli: "namespace create x --size set.members=4294967295"},
		{name: "bins without limit", says: "10000000", grpc: making(&ebbv1.Namespace{BinsMax: math.MaxUint32}), cli: "namespace create x --bins-max 4294967295", http: `POST /v1/namespaces {"namespace":{"name":"x","bins_max":4294967295}}`},
		{name: "half-life negative", want: errs(proto.ErrBadHalfLife), says: "100 years", grpc: making(&ebbv1.Namespace{HalfLifeUs: math.MinInt64}), cli: "namespace create x --half-life=-1h", http: `POST /v1/namespaces {"namespace":{"name":"x","half_life_us":-1}}`},
		{name: "half-life of ages", grpc: making(&ebbv1.Namespace{HalfLifeUs: math.MaxInt64}), cli: "namespace create x --half-life 293y", http: `POST /v1/namespaces {"namespace":{"name":"x","half_life_us":9223372036854775807}}`},
		{name: "half-life NaN", cli: "namespace create x --half-life nand"},
		{name: "second half-life that overflows", cli: "namespace create x --slow-half-life 213504d", grpc: making(&ebbv1.Namespace{SlowHalfLifeUs: new(int64(math.MaxInt64))})},
		{name: "threshold NaN", grpc: making(&ebbv1.Namespace{Threshold: nan}), cli: "namespace create x --threshold nan", http: `POST /v1/namespaces {"namespace":{"name":"x","threshold":NaN}}`},
		{name: "prior negative", grpc: making(&ebbv1.Namespace{Prior: -1}), cli: "namespace create x --floor prior --prior -1"},

		// Names.
		{name: "namespace with NUL", want: errs(proto.ErrBadNamespace), grpc: making(&ebbv1.Namespace{Name: "a\x00b"}), cli: "namespace create a\x00b", http: `POST /v1/namespaces {"namespace":{"name":"a\u0000b"}}`},
		{name: "namespace not UTF-8", grpc: func(v *victim) error { return v.command(1, []byte{0x0a, 1, 0xff, 0x2a, 0}) }, byShard: true, cli: "namespace create a\xff", http: "POST /v1/namespaces {\"namespace\":{\"name\":\"a\xff\"}}", forget: "/ns/%ff/dist?distribution=k"},
		{name: "namespace too long", want: errs(proto.ErrBadNamespace), says: "64", grpc: making(&ebbv1.Namespace{Name: long("n", 65)}), cli: "namespace create " + long("n", 65), http: `POST /v1/namespaces {"namespace":{"name":"` + long("n", 65) + `"}}`, forget: "/ns/" + long("n", 65) + "/dist?distribution=k"},
		{name: "key empty", want: errs(proto.ErrBadKey), grpc: inc(func(in *ebbv1.Increment) { in.Key = nil }), cli: "incr  b", http: `POST /v1/increment {"increments":[{"key":"","bin":"b"}]}`, forget: "/incr?distribution=&field=b"},
		{name: "key too long", want: errs(proto.ErrBadKey), says: "512", grpc: inc(func(in *ebbv1.Increment) { in.Key = []byte(long("k", 513)) }), cli: "incr " + long("k", 513) + " b", http: `POST /v1/increment {"increments":[{"key":"` + long("k", 513) + `","bin":"b"}]}`, forget: "/incr?field=b&distribution=" + long("k", 513)},
		{name: "bin too long", want: errs(proto.ErrBadBin), says: "256", grpc: inc(func(in *ebbv1.Increment) { in.Bin = []byte(long("b", 257)) }), cli: "incr k " + long("b", 257), http: `POST /v1/increment {"increments":[{"key":"k","bin":"` + long("b", 257) + `"}]}`, forget: "/incr?distribution=k&field=" + long("b", 257)},
		{name: "key not UTF-8", http: "POST /v1/increment {\"increments\":[{\"key\":\"\xff\",\"bin\":\"b\"}]}", forget: "/incr?distribution=%ff&field=b"},
		{name: "key half a surrogate", http: `POST /v1/increment {"increments":[{"key":"\ud800","bin":"b"}]}`},
		{name: "shard 0", grpc: func(v *victim) error { return v.command(0, []byte{0x2a, 0}) }},
		{name: "shard 2^32-1", grpc: func(v *victim) error { return v.command(math.MaxUint32, []byte{0x2a, 0}) }},

		// Headers that lie, and summaries that are not what they say.
		{name: "increments of 2 GB in 6 bytes", want: errs(proto.ErrBadRequest), grpc: commanding([]byte{0x2a, 0xff, 0xff, 0xff, 0xff, 0x07})},
		{name: "increment of 2 GB in a batch", want: errs(proto.ErrBadRequest), grpc: commanding([]byte{0x2a, 6, 0x0a, 0xff, 0xff, 0xff, 0xff, 0x07})},
		{name: "command of the leader's", want: errs(proto.ErrBadRequest), grpc: commanding(commandBytes(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: 99}}}))},
		{name: "command without a body", want: errs(proto.ErrBadRequest), grpc: commanding(nil)},
		{name: "image of zeros", byShard: true, grpc: putting(make([]byte, 1000))},
		{name: "image that says it is long", byShard: true, grpc: putting(append([]byte{1, 2, 3}, bytes.Repeat([]byte{0xff}, 40)...))},
		{name: "image of noise", byShard: true, grpc: putting([]byte("\x01\x0b\xff\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff registers"))},
		{name: "image too long", want: errs(proto.ErrKeyTooLarge), says: `"new"`, grpc: putting(make([]byte, proto.CommandBytesMax))},
		{name: "restore of a shard that is not empty", byShard: true, grpc: restoring(&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Begin{Begin: &ebbv1.RestoreBegin{Bytes: math.MaxUint64, Checksum: 1}}})},
		{name: "piece of a restore that never began", byShard: true, grpc: restoring(&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{Offset: math.MaxUint64, Data: []byte("x")}}})},
		{name: "piece too long", grpc: restoring(&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Piece{Piece: &ebbv1.RestorePiece{Data: make([]byte, proto.RestorePieceBytesMax+1)}}})},
		{name: "end of a restore that never began", byShard: true, grpc: restoring(&ebbv1.RestoreShard{Step: &ebbv1.RestoreShard_Commit{Commit: &ebbv1.RestoreCommit{}}})},

		// Questions that nest, that name too much, that would take for ever.
		{name: "query nested 2,000 deep", want: errs(proto.ErrBadQuery, proto.ErrQueryTooCostly, proto.ErrBadRequest), grpc: asking("count(" + deep + ")"), http: `POST /v1/query {"text":"count(` + deep + `)"}`, cli: "query count(" + deep + ")"},
		{name: "query of 20,000 terms", want: errs(proto.ErrBadQuery, proto.ErrQueryTooCostly, proto.ErrBadRequest), grpc: asking("count(" + long("a|", 20_000) + "a)"), http: `POST /v1/query {"text":"count(` + long("a|", 20_000) + `a)"}`},
		{name: "query of nots", grpc: asking("count(" + long("not ", 5000) + "a)"), cli: "query count(" + long("not(", 500) + "a" + long(")", 500) + ")"},
		{name: "query over a million hours", grpc: asking("count(play/0000-01-01T00 .. play/9999-12-31T23)"), cli: "query count(play/0000-01-01T00..play/9999-12-31T23)"},
		{name: "query not UTF-8", grpc: commanding([]byte{0x9a, 0xff}), http: "POST /v1/query {\"text\":\"top 3 \xff\"}"},
		{name: "query of nothing", want: errs(proto.ErrBadQuery, proto.ErrBadRequest), grpc: asking(""), http: `POST /v1/query {"text":""}`},
		{name: "expression 1,000 deep", grpc: func(v *victim) error {
			x := &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte("bits")}}
			for range 1000 {
				x = &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Or{Or: &ebbv1.BitmapExprs{Of: []*ebbv1.BitmapExpr{x}}}}
			}
			return v.ask(&ebbv1.Question{Ask: &ebbv1.Question_Bitmap{Bitmap: &ebbv1.BitmapQuestion{Expr: x, Select: &ebbv1.BitmapQuestion_Count{Count: true}}}})
		}},
		{name: "JSON nested 10,000 deep", http: `POST /v1/ask ` + long(`{"questions":[`, 10_000)},
		{name: "JSON of an expression without end", want: errs(proto.ErrBadRequest), says: "2050 objects", http: `POST /v1/store {"expr":` + long(`{"or":{"of":[`, proto.MessageBytesMax/13-1)},
		{name: "JSON of a plan without end", want: errs(proto.ErrBadRequest), says: "2050 objects", http: `POST /v1/query {"plan":{"count":{"of":` + long(`{"operation":{"operands":[`, proto.MessageBytesMax/26-2)},
		{name: "JSON that breaks off", http: `POST /v1/increment {"increments":[{"key":"k","bin":"b"}`},
		{name: "pattern too long", says: "512", grpc: about(&ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: []byte(long("*a", 257))}}}), http: `GET /v1/ns/default/keys/` + long("*a", 257), cli: "keys " + long("*a", 257)},
		{name: "pattern that ends in a backslash", grpc: about(&ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: []byte(`a\`)}}}), http: `GET /v1/ns/default/keys/a%5C`, cli: `keys a*\`},
		{name: "method of a path", http: `DELETE /v1/increment {}`},
		{name: "arguments without end", http: "GET /v1/ns/default/distribution?" + long("key=a&", 10_001), forget: "/get?distribution=k&" + long("field=a&", 10_001)},
	}
}

// Whatever is poured into whichever door is refused with a code that says it is the request's fault, before it comes
// into the log; no shard holds anything else afterwards, and no more memory is taken than the words themselves are
// worth. What only a shard can tell leaves an entry in its log, and nothing else.
func TestPoison(t *testing.T) {
	v := newVictim(t)
	v.furnish(t)
	tried := map[string]int{}
	for _, p := range poisons() {
		at := map[string]func() error{}
		if p.grpc != nil {
			at["grpc"] = func() error { return p.grpc(v) }
		}
		if p.http != "" {
			at["http"] = func() error { return v.post(p.http) }
		}
		if p.forget != "" {
			at["forgettable"] = func() error { return v.post("POST " + p.forget) }
		}
		if p.cli != "" {
			at["cli"] = func() error { return v.run(p.cli) }
		}
		for door, pour := range at {
			t.Run(p.name+"/"+door, func(t *testing.T) {
				before, content := v.state(t), v.content(t)
				var start, end runtime.MemStats
				runtime.ReadMemStats(&start)
				err := pour()
				runtime.ReadMemStats(&end)
				p.check(t, err)
				if taken := end.TotalAlloc - start.TotalAlloc; taken > 48<<20 {
					t.Errorf("%d MB were allocated", taken>>20)
				}
				after := v.state(t)
				if after != before && (!p.byShard || v.content(t) != content) {
					t.Errorf("the shards were %x and are %x; %s and %s", before, after, content, v.content(t))
				}
			})
			tried[door]++
		}
	}
	t.Logf("%d poisons: %v", len(poisons()), tried)
}

// check holds an error to what it has to say.
func (p *poison) check(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	text, fits := err.Error(), len(p.want) == 0
	for _, want := range p.want {
		fits = fits || errors.Is(err, want) || strings.Contains(text, fmt.Sprintf("EBB-%d", want.Code))
	}
	switch {
	case !fits && !strings.HasPrefix(text, "error: "): // what the command line finds itself has no code
		t.Errorf("%s, want one of %v", text, p.want)
	case strings.Contains(text, "EBB-4") || strings.Contains(text, "EBB-1") || strings.Contains(text, "panic"):
		t.Errorf("it is not the request's fault: %s", text)
	case !strings.Contains(text, p.says):
		t.Errorf("%q does not say %q", text, p.says)
	case len(text) > 4000:
		t.Errorf("an error of %d bytes", len(text))
	}
	var coded *proto.Error
	if errors.As(err, &coded) && coded.Code/1000 != 2 {
		t.Errorf("%v is not about the request", err)
	}
}

// What looks like poison and is none: ids at the ends of what there is, a pattern that a matcher of the usual sort
// would try for ever, and keys of any bytes.
func TestOddAndRight(t *testing.T) {
	v := newVictim(t)
	v.furnish(t)
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	for _, err := range []error{
		v.run("bits set far 0 4294967295 4294967296 9223372036854775808 18446744073709551615"),
		v.post(`POST /v1/bits {"changes":[{"key":"far","op":"set","ids":[9223372036854775807,18446744073709551614]}]}`),
		v.increment(&ebbv1.Increment{Key: []byte("\x00\xff"), Bin: []byte("\x00")}),
		v.ask(&ebbv1.Question{Ask: &ebbv1.Question_Keys{Keys: &ebbv1.KeysQuestion{Pattern: []byte(strings.Repeat("**a", proto.KeyLenMax/3))}}}),
		v.run("keys " + strings.Repeat("*a", proto.KeyLenMax/2)),
		v.query("top 3 " + "like " + `"` + strings.Repeat("**a", 170) + `"`),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	runtime.ReadMemStats(&end)
	if taken := end.TotalAlloc - start.TotalAlloc; taken > 48<<20 {
		t.Errorf("%d MB were allocated", taken>>20)
	}
	q := &ebbv1.BitmapQuestion{Expr: &ebbv1.BitmapExpr{Expr: &ebbv1.BitmapExpr_Key{Key: []byte("far")}}, Select: &ebbv1.BitmapQuestion_Count{Count: true}}
	resp, err := v.ebb.Ask(v.ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{{Ask: &ebbv1.Question_Bitmap{Bitmap: q}}}})
	if err != nil || resp.GetAnswers()[0].GetBitmap().GetCount() != 7 {
		t.Errorf("%v, %v: want 7 ids", resp, err)
	}
}

// A backup with a changed byte, or with a missing end, is not restored. The cluster stays as empty as it was, and takes
// the whole backup afterwards.
func TestDamagedBackupsAreNotRestored(t *testing.T) {
	from, to := newVictim(t), newVictim(t)
	from.furnish(t)
	store := filepath.Join(t.TempDir(), "store")
	if err := from.run("backup " + store); err != nil {
		t.Fatal(err)
	}
	var files []string
	if err := filepath.WalkDir(store, func(path string, d iofs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(files) < 1+victimShards {
		t.Fatalf("the backup is in %q", files)
	}
	empty := to.content(t)
	for _, file := range files {
		sound, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		flipped := bytes.Clone(sound)
		flipped[len(flipped)/2] ^= 4
		for how, bad := range map[string][]byte{"flipped": flipped, "cut": sound[:len(sound)-1], "emptied": nil, "longer": append(bytes.Clone(sound), 0)} {
			write(t, file, string(bad))
			if err := to.run("restore " + store); err == nil || !strings.Contains(err.Error(), "EBB-4002") {
				t.Errorf("%s %s: %v, want CORRUPT", file, how, err)
			}
			if now := to.content(t); now != empty {
				t.Errorf("%s %s: %s is there, and was %s", file, how, now, empty)
			}
		}
		write(t, file, string(sound))
	}
	if err := to.run("restore " + store); err != nil {
		t.Fatal(err)
	}
	if got, want := to.content(t), from.content(t); got != want {
		t.Errorf("restored, there is %s, want %s", got, want)
	}
}
