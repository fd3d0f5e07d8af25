package proto_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func topOf(n uint32, keys ...string) *ebbv1.Question {
	d := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{Top: n}}
	for _, key := range keys {
		d.Keys = append(d.Keys, []byte(key))
	}
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: d}}
}

// Questions are the same when all that they say is the same, and only then.
func TestRepeatedQuestions(t *testing.T) {
	same := topOf(3, "a", "b")
	for i, c := range []struct {
		questions []*ebbv1.Question
		want      []int
	}{
		{nil, nil},
		{[]*ebbv1.Question{same}, nil},
		{[]*ebbv1.Question{same, topOf(3, "a", "c")}, nil},
		{[]*ebbv1.Question{same, topOf(4, "a", "b")}, nil},
		{[]*ebbv1.Question{topOf(1, "x"), same, topOf(3, "a", "b"), topOf(3, "b", "a"), same}, []int{0, 1, 1, 3, 1}},
		{[]*ebbv1.Question{nil, {}, topOf(1, "x")}, nil},
	} {
		if got := proto.RepeatedQuestions(c.questions); !slices.Equal(got, c.want) {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// A question to one shard is not that to another, and a part of an answer is no answer.
func TestRepeatedShardQuestions(t *testing.T) {
	q := topOf(3, "a")
	list := []*ebbv1.ShardQuestion{
		{Shard: 1, Question: q},
		{Shard: 2, Question: q},
		{Shard: 1, Question: q, Partial: true},
		{Shard: 1, Question: topOf(3, "a")},
		{Shard: 2, Question: topOf(2, "a")},
	}
	if got, want := proto.RepeatedShardQuestions(list), []int{0, 1, 2, 0, 4}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := proto.RepeatedShardQuestions(list[:3]); got != nil {
		t.Errorf("%v: none of them is asked twice", got)
	}
}

// A large question that goes to many shards, and to each of them many times, is encoded once.
func TestRepeatsAreFoundInLittleMemory(t *testing.T) {
	var keys []string
	for i := range 5_000 {
		keys = append(keys, fmt.Sprintf("%0100d", i))
	}
	q := topOf(3, keys...)
	var list []*ebbv1.ShardQuestion
	for i := range 20_000 {
		list = append(list, &ebbv1.ShardQuestion{Shard: uint32(1 + i%1000), Question: q})
	}
	took := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if firsts := proto.RepeatedShardQuestions(list); firsts == nil || firsts[19_999] != 999 {
				b.Fatal("they ask the same")
			}
		}
	}).AllocedBytesPerOp()
	if took > 16<<20 {
		t.Errorf("%d bytes: the question takes half a megabyte", took)
	}
}

func TestDistinctKeys(t *testing.T) {
	list := func(keys ...string) (out [][]byte) {
		for _, key := range keys {
			out = append(out, []byte(key))
		}
		return out
	}
	for _, c := range [][2][][]byte{{nil, nil}, {list("a"), list("a")}, {list("a", "b"), list("a", "b")}, {list("b", "a", "b", "b", "c"), list("b", "a", "c")}} {
		if got := proto.DistinctKeys(c[0]); !slices.EqualFunc(got, c[1], slices.Equal) {
			t.Errorf("%q, want %q", got, c[1])
		}
	}
}
