package proto

import (
	"bytes"
	"slices"

	"github.com/zeebo/xxh3"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// RepeatedQuestions returns for each question the position of the first that asks the same, which is its own if none
// before it does. It returns nil when no question asks what another does.
func RepeatedQuestions(questions []*ebbv1.Question) []int {
	return repeated(len(questions), func(i int) (*ebbv1.Question, uint64) { return questions[i], 0 })
}

// RepeatedShardQuestions is RepeatedQuestions for questions to shards. It takes no notice of `also`.
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

// quickHash is a cheap hash of the namespace and the keys. Equal questions have the same.
func quickHash(q *ebbv1.Question, to uint64) uint64 {
	h := xxh3.HashStringSeed(q.GetNamespace(), to)
	if keys := QuestionKeys(q); len(keys) > 0 {
		h = xxh3.HashSeed(keys[0], h+uint64(len(keys)))
	}
	return h
}

// asked is a question by the hash of its bytes, and to whom it goes.
type asked struct {
	hash xxh3.Uint128
	to   uint64
}

// fewQuestions is how many questions are compared each with each, for which nothing is allocated.
const fewQuestions = 64

// repeated compares n questions, each with whom it goes to. It encodes only those whose quickHash is that of another:
// in a usual request there are few or none. Each is encoded once, however many it goes to.
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
		if other, _ := question(first); other == q || pb.Equal(other, q) { // else two hashes are the same by chance
			firsts[i], again = first, true
		}
	}
	if !again {
		return nil
	}
	return firsts
}

// sharedBy returns the values that occur more than once; nil if none does.
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
		return xxh3.Uint128{} // pb.Equal tells such questions apart
	}
	return xxh3.Hash128(raw)
}

// fewKeys is how many keys are compared each with each, for which nothing is allocated.
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

// DistinctKeys returns keys without those that came before: the list itself when none did.
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
