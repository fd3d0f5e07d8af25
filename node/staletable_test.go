package node_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A shard whose namespace was purged and made anew refuses a question about the older one: a coordinator that has not
// heard of it would look for the strings and the places of that.
func TestQuestionsAboutANamespaceThatWasMadeAnew(t *testing.T) {
	inBubble(t, 1, 1, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		b.plain(c)
		b.write(c, "k", "x", 1)
		before := b.table(0).Namespace("plain")
		if _, err := c.DeleteNamespace(ctx, "plain", 0); err != nil {
			b.Fatal(err)
		}
		b.until("the purge", func() bool { return b.table(0).Defined("plain") == nil })
		b.plain(c)
		b.write(c, "k", "x", 3)
		now := b.table(0).Namespace("plain")

		peer, done := b.peer(0)
		defer done()
		for _, x := range []struct {
			name          string
			version, seed uint64
			want          ebbv1.Code
		}{
			{"the older one", before.GetVersion(), before.GetHashSeed(), ebbv1.Code_CODE_STALE_TABLE},
			{"the one that is there", now.GetVersion(), now.GetHashSeed(), ebbv1.Code_CODE_UNSPECIFIED},
			{"its settings of before", now.GetVersion() - 1, now.GetHashSeed(), ebbv1.Code_CODE_UNSPECIFIED},
			{"one that the shard has not heard of", now.GetVersion() + 1, 7, ebbv1.Code_CODE_UNSPECIFIED},
			{"any", 0, 0, ebbv1.Code_CODE_UNSPECIFIED},
		} {
			q := question("k").Questions[0]
			q.Namespace = "plain"
			resp, err := peer.Ask(ctx, &ebbv1.ShardAskRequest{Questions: []*ebbv1.ShardQuestion{
				{Shard: 1, Question: q, NamespaceVersion: x.version, HashSeed: x.seed},
			}})
			if err != nil {
				b.Fatal(err)
			}
			if got := resp.GetAnswers()[0].GetError(); got.GetCode() != x.want {
				b.Errorf("asked about %s it says %v, not %v", x.name, got, x.want)
			}
		}
	})
}

// answer is the first of a response; nil if there is none.
func answer(resp *ebbv1.AskResponse) *ebbv1.Answer {
	if len(resp.GetAnswers()) == 0 {
		return nil
	}
	return resp.GetAnswers()[0]
}

// A node that has just started, or has heard nothing of the control group since, does not say that a namespace does not
// exist which another node has created or undeleted.
func TestNamespacesThatANodeHasNotHeardOf(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		b.plain(c)
		b.write(c, "k", "x", 1)
		for round := range 6 {
			away := round % 3
			if _, err := c.DeleteNamespace(ctx, "plain", time.Hour); err != nil {
				b.Fatal(err)
			}
			b.until("the deletion on the node", func() bool { return b.table(away).Deleted("plain") != nil })
			b.crash(away)
			name := fmt.Sprint("new", round)
			b.until("the new namespace", func() bool { // the node may have led the control group
				_, err := c.CreateNamespace(ctx, ebb.Namespace{Name: name, Decay: ebb.DecayNone})
				return err == nil || errors.Is(err, ebb.ErrNamespaceExists)
			})
			b.until("the undelete", func() bool {
				_, err := c.UndeleteNamespace(ctx, "plain")
				return err == nil
			})
			b.open(away)
			known := func(what string, err error) bool {
				b.Helper()
				if errors.Is(err, proto.ErrNamespaceNotFound) {
					b.Errorf("round %d: %s: %v", round, what, err)
				}
				return err == nil
			}
			answered := 0
			for try := 0; answered < 20 && try < 2000; try++ {
				brief, cancel := context.WithTimeout(ctx, 2*time.Second)
				n := b.nodes[away]
				_, wrote := n.Router().Increment(brief, &ebbv1.IncrementRequest{
					Namespace: name, Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("x")}},
				})
				q := question("k").Questions[0]
				q.Namespace = "plain"
				resp, asked := n.Coordinator().Ask(brief, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
				cancel()
				if e := proto.FromWire(answer(resp).GetError()); asked == nil && e != nil {
					asked = e
				}
				if known("a write", wrote) && known("a question", asked) {
					answered++
				}
				time.Sleep(5 * time.Millisecond)
			}
			if answered == 0 {
				b.Errorf("round %d: node %d never answers", round, away)
			}
			b.ready(away)
		}
	})
}

// A control leader that was just elected may not have applied what the one before it acknowledged. No node says by its
// table that a namespace does not exist.
func TestNamespacesUnderANewControlLeader(t *testing.T) {
	inBubble(t, 3, 3, func(b *bubble) {
		b.openAll()
		c := b.client()
		ctx := context.Background()
		for round := range 5 {
			leader := b.controlLeader()
			name := fmt.Sprint("made", round)
			if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: name, Decay: ebb.DecayNone}); err != nil {
				b.Fatal(err)
			}
			b.crash(leader)
			answered := 0
			for try := 0; answered < 2 && try < 1000; try++ {
				n := b.nodes[(leader+1+try%2)%3]
				brief, cancel := context.WithTimeout(ctx, 2*time.Second)
				_, err := n.Router().Increment(brief, &ebbv1.IncrementRequest{
					Namespace: name, Increments: []*ebbv1.Increment{{Key: []byte("k"), Bin: []byte("x")}},
				})
				cancel()
				switch {
				case errors.Is(err, proto.ErrNamespaceNotFound):
					b.Errorf("round %d: %v", round, err)
				case err == nil:
					answered++
				}
				time.Sleep(time.Millisecond)
			}
			if answered < 2 {
				b.Errorf("round %d: no node counts", round)
			}
			b.open(leader)
			b.ready(leader)
		}
	})
}
