package node_test

import (
	"context"
	"testing"

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
