package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// scripted is a cluster of two nodes, in which the other has all shards and answers with parts of a size.
type scripted struct {
	mu    sync.Mutex
	rooms []uint64 // what the other node was told that its answers may take
	asked int      // questions of the last call
	part  int      // bytes of a part
	full  bool     // the other node has no memory for answers
}

func (s *scripted) Backend(string) (Backend, error) { return s, nil }

func (s *scripted) Apply(context.Context, *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	return nil, errors.New("nothing is written")
}

// Ask answers as many questions as have room.
func (s *scripted) Ask(_ context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rooms, s.asked = append(s.rooms, req.GetAnswerBytes()), len(req.GetQuestions())
	resp, left := &ebbv1.ShardAskResponse{}, int(req.GetAnswerBytes())
	for range req.GetQuestions() {
		a := &ebbv1.ShardAnswer{}
		switch left -= s.part; {
		case s.full:
			err := proto.ErrOverloaded.Errorf("no room")
			err.RetryAfterUS = 1000
			a.Error = err.Wire()
		case left < 0:
			a.Error = proto.ErrOverloaded.Errorf("ask again").Wire()
		default:
			d := &ebbv1.Distribution{Found: true, Bins: []*ebbv1.Bin{{Bin: make([]byte, s.part)}}}
			a.Value = &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Distribution{Distribution: d}}}
		}
		resp.Answers = append(resp.Answers, a)
	}
	return resp, nil
}

// elsewhere is a coordinator all of whose shards are on another node.
func (s *scripted) coordinator(t *testing.T) *Coordinator {
	e := newFakeClusterOf(t, 2, 4)
	for number := uint32(1); number <= 4; number++ {
		e.leaders.Observe(number, "ebb-1", 1)
	}
	return NewCoordinator(CoordinatorConfig{
		Node: "ebb-0", Table: func() *Table { return e.table }, Leaders: e.leaders, Local: s, Peers: s, Now: e.now,
	})
}

func aboutKeys(n int) *ebbv1.AskRequest {
	req := &ebbv1.AskRequest{}
	for i := range n {
		req.Questions = append(req.Questions, &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
			Keys: [][]byte{fmt.Appendf(nil, "key %d", i)}, Select: &ebbv1.DistributionQuestion_All{All: true},
		}}})
	}
	return req
}

// What another node may answer is charged before it is asked. It begins small, and what did not fit is asked for again
// with more room.
func TestRoomForRemoteAnswers(t *testing.T) {
	for _, c := range []struct {
		what  string
		s     *scripted
		pool  int64
		calls int
		want  *proto.Error // of the last answer
	}{
		{"small answers", &scripted{part: 100}, 64 << 20, 1, nil},
		{"large ones", &scripted{part: 300 << 10}, 64 << 20, 3, nil},
		{"more than the request may have", &scripted{part: 3 << 20}, 16 << 20, 3, proto.ErrResponseTooLarge},
		{"a node without memory", &scripted{full: true}, 64 << 20, 1, proto.ErrOverloaded},
	} {
		pool := budget.New("answers", c.pool)
		held := pool.Begin(0)
		resp, err := c.s.coordinator(t).Ask(budget.With(t.Context(), held), aboutKeys(8))
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		last := proto.FromWire(resp.GetAnswers()[7].GetError())
		if c.want == nil && last != nil || c.want != nil && !errors.Is(last, c.want) {
			t.Errorf("%s: %v", c.what, last)
		}
		if n := len(c.s.rooms); n != c.calls {
			t.Errorf("%s: %d calls, with room for %d", c.what, n, c.s.rooms)
		}
		size := 0
		for _, a := range resp.GetAnswers() {
			size += AnswerSize(a)
		}
		if n := held.Held(); n > 2*size+8<<10 {
			t.Errorf("%s: %d bytes are held for answers of %d", c.what, n, size)
		}
		held.Close()
		if pool.Used() != 0 {
			t.Errorf("%s: %d bytes are charged in the end", c.what, pool.Used())
		}
	}
}

// Equal questions are asked once, and all get the answer.
func TestEqualQuestionsAreAskedOnce(t *testing.T) {
	s := scripted{part: 100}
	req := aboutKeys(3)
	for i := range 300 {
		req.Questions = append(req.Questions, aboutKeys(3).Questions[i%3])
	}
	resp, err := s.coordinator(t).Ask(budget.With(t.Context(), budget.New("answers", 64<<20).Begin(0)), req)
	if err != nil || s.asked != 3 {
		t.Fatalf("%v: %d questions were asked", err, s.asked)
	}
	for i, a := range resp.GetAnswers() {
		if a.GetDistribution() == nil {
			t.Fatalf("question %d: %v", i, a)
		}
	}
	if n := len(resp.GetAnswers()); n != len(req.GetQuestions()) {
		t.Errorf("%d answers to %d questions", n, len(req.GetQuestions()))
	}
}
