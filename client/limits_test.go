package client

import (
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
)

// TestLimits: without limits a client has those of production, and above what nodes take it has what they take.
func TestLimits(t *testing.T) {
	want := Limits{
		KeysPage: 1000, IDsPage: 50_000, Requests: 8, RequestOps: 10_000, RequestBytes: 960 << 10, Questions: 256,
		TableAge: 30 * time.Second,
	}
	if got := configOf(nil).limits; got != want {
		t.Errorf("without limits: %+v, want %+v", got, want)
	}
	large := Limits{RequestOps: 1 << 30, RequestBytes: 1 << 30, IDsPage: 1 << 30, Questions: 1 << 30}
	want.IDsPage, want.Questions = proto.BitPageMax, proto.QuestionsMax
	if got := configOf([]Option{WithLimits(large)}).limits; got != want {
		t.Errorf("with large limits: %+v, want %+v", got, want)
	}
}

// TestLimitsOfRequests: a request has as many commands as its limits allow, and one at least.
func TestLimitsOfRequests(t *testing.T) {
	for _, c := range []struct {
		limits Limits
		want   []int // commands in each request
	}{
		{Limits{RequestOps: 6, RequestBytes: 1000}, []int{2, 2, 1}},
		{Limits{RequestOps: 100, RequestBytes: 30}, []int{3, 2}},
		{Limits{RequestOps: 1, RequestBytes: 1}, []int{1, 1, 1, 1, 1}},
	} {
		queue := &sendQueue{senders: 1}
		for range 5 {
			queue.waiting = append(queue.waiting, &pendingCommand{entries: 3, buf: make([]byte, 10)})
		}
		var got []int
		for queue.senders > 0 {
			if n := len(queue.takeRequest(&c.limits)); n > 0 {
				got = append(got, n)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("with %+v requests have %v commands, want %v", c.limits, got, c.want)
		}
	}
}
