package rpc

import (
	"testing"

	"google.golang.org/protobuf/proto"

	ebb "github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What many shards are asked travels once, and arrives as it was meant: a question a shard, in the same order. Only
// what follows each other goes together, for answers have no names.
func TestQuestionsToManyShardsTravelOnce(t *testing.T) {
	keys := make([][]byte, 10_000)
	for i := range keys {
		keys[i] = make([]byte, 100)
	}
	a := &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_BitmapGroups{BitmapGroups: &ebbv1.BitmapGroupsQuestion{Keys: keys}}}
	b := &ebbv1.Question{Namespace: "people", Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}
	req := &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_ANY, MaxStalenessUs: 5, NowUs: 7}
	add := func(q *ebbv1.Question, partial bool, shards ...uint32) {
		for _, number := range shards {
			req.Questions = append(req.Questions, &ebbv1.ShardQuestion{Shard: number, Question: q, Partial: partial})
		}
	}
	if got := gathered(req); got != req {
		t.Error("nothing is to be gathered, and it is another request")
	}
	add(b, false, 9)
	add(a, false, 1, 4, 7)
	add(a, true, 10)
	add(b, true, 2, 3)
	add(a, false, 1)
	clock := &ebbv1.EventClock{Epoch: 3, NowUs: 4}
	add(b, true, 5, 6)
	req.Questions[len(req.Questions)-2].Clock, req.Questions[len(req.Questions)-1].Clock = clock, clock
	add(b, true, 8)
	add(b, true, 11, 12)
	req.Questions[len(req.Questions)-2].Beginnings, req.Questions[len(req.Questions)-1].Beginnings = true, true
	add(b, true, 13, 14)
	req.Questions[len(req.Questions)-2].SettingsVersion, req.Questions[len(req.Questions)-1].SettingsVersion = 5, 5
	packed := gathered(req)
	if n := len(packed.GetQuestions()); n != 9 {
		t.Fatalf("%d questions travel, want 9", n)
	}
	raw, err := proto.Marshal(packed)
	if err != nil || len(raw) > ebb.MessageBytesMax {
		t.Fatalf("%d bytes, %v: three shards are asked for 10,000 groups in one message", len(raw), err)
	}
	var arrived ebbv1.ShardAskRequest
	if err := proto.Unmarshal(raw, &arrived); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(req, spreadOut(&arrived)) {
		t.Error("another request arrives")
	}
	many := &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{{Shard: 1, Question: b, Also: make([]uint32, ebb.QuestionsMax*ebb.ShardsMax)}}}
	if err := checkShardAskRequest(many); err == nil {
		t.Error("more than every question of every shard is taken")
	}
}
