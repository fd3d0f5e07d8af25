package proto

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// RepeatedQuestions returns for each question the position of the first equal question; its own position if none before
// it is equal. It returns nil when no two questions are equal.
func RepeatedQuestions(questions []*ebbv1.Question) []int {
	return repeated(len(questions), func(i int) (*ebbv1.Question, uint64) { return questions[i], 0 })
}

// RepeatedShardQuestions is RepeatedQuestions for questions to shards. It ignores `also`.
func RepeatedShardQuestions(questions []*ebbv1.ShardQuestion) []int {
	return repeated(len(questions), func(i int) (*ebbv1.Question, uint64) {
		to := uint64(questions[i].GetShard()) << 2
		if questions[i].GetPartial() {
			to++
		}
		if questions[i].GetBeginnings() {
			to += 2
		}
		return questions[i].GetQuestion(), to
	})
}

// quickHash is a cheap hash of the namespace, the keys and the destination. Equal questions have equal hashes.
func quickHash(q *ebbv1.Question, to uint64) uint64 {
	h := xxh3.HashStringSeed(q.GetNamespace(), to)
	if keys := QuestionKeys(q); len(keys) > 0 {
		h = xxh3.HashSeed(keys[0], h+uint64(len(keys)))
	}
	return h
}

// asked identifies a question by the hash of its bytes and by its destination.
type asked struct {
	hash xxh3.Uint128
	to   uint64
}

// fewQuestions is how many questions are compared pairwise, which allocates nothing.
const fewQuestions = 64

// repeated compares n questions, each with its destination. It encodes only questions that share their quickHash with
// another: in a usual request, few or none. Each is encoded once, however many destinations it has.
func repeated(n int, question func(i int) (q *ebbv1.Question, to uint64)) []int {
	if n < 2 {
		return nil
	}
	var few [fewQuestions]uint64
	quick := few[:0]
	for i := range n {
		quick = append(quick, quickHash(question(i)))
	}
	shared := sharedBy(quick)
	if len(shared) == 0 {
		return nil
	}
	firsts, at, again := make([]int, n), make(map[asked]int, len(shared)), false
	hashes := make(map[*ebbv1.Question]xxh3.Uint128, len(shared))
	for i := range n {
		firsts[i] = i
		if _, ok := shared[quick[i]]; !ok {
			continue
		}
		q, to := question(i)
		hash, known := hashes[q]
		if !known {
			hash = hashOf(q)
			hashes[q] = hash
		}
		first, known := at[asked{hash, to}]
		if !known {
			at[asked{hash, to}] = i
			continue
		}
		if other, _ := question(first); other == q || pb.Equal(other, q) { // otherwise two hashes are equal by chance
			firsts[i], again = first, true
		}
	}
	if !again {
		return nil
	}
	return firsts
}

// sharedBy returns the values that occur more than once; nil if there are none.
func sharedBy(values []uint64) (shared map[uint64]struct{}) {
	share := func(v uint64) {
		if shared == nil {
			shared = make(map[uint64]struct{})
		}
		shared[v] = struct{}{}
	}
	if len(values) <= fewQuestions {
		for i, v := range values {
			if slices.Contains(values[:i], v) {
				share(v)
			}
		}
		return shared
	}
	seen := make(map[uint64]struct{}, len(values))
	for _, v := range values {
		if _, again := seen[v]; again {
			share(v)
		}
		seen[v] = struct{}{}
	}
	return shared
}

func hashOf(q *ebbv1.Question) xxh3.Uint128 {
	raw, err := pb.MarshalOptions{Deterministic: true}.Marshal(q)
	if err != nil {
		return xxh3.Uint128{} // pb.Equal distinguishes such questions
	}
	return xxh3.Hash128(raw)
}

// fewKeys is how many keys are compared pairwise, which allocates nothing.
const fewKeys = 16

func anyTwice(keys [][]byte) bool {
	for i, key := range keys {
		for _, other := range keys[:i] {
			if bytes.Equal(key, other) {
				return true
			}
		}
	}
	return false
}

// DistinctKeys returns keys without repetitions, in order: the list itself when there are none.
func DistinctKeys(keys [][]byte) [][]byte {
	if len(keys) <= fewKeys && !anyTwice(keys) {
		return keys
	}
	seen := make(map[string]bool, len(keys))
	for _, key := range keys {
		seen[string(key)] = true
	}
	if len(seen) == len(keys) {
		return keys
	}
	clear(seen)
	out := make([][]byte, 0, len(seen))
	for _, key := range keys {
		if !seen[string(key)] {
			seen[string(key)] = true
			out = append(out, key)
		}
	}
	return out
}
