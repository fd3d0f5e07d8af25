package client

import (
	"context"
	"iter"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// SourceInfo is the progress of an ordered source.
type SourceInfo struct {
	Name    string
	Newest  uint64 // the largest offset that a shard has decided, to count or to refuse; 0: none yet
	Refused uint64 // rows that shards remember to have refused
	Shards  int    // that know it
}

// Sources lists the ordered sources of a namespace ("" for the default one) by name, over all shards. Sources that were
// opened before sources had namespaces are listed in each. The list ends after an error, such as UNREACHABLE, or
// BAD_REQUEST from a cluster whose nodes are older than this list.
func (c *Client) Sources(ctx context.Context, ns string, opts ...AskOption) iter.Seq2[SourceInfo, error] {
	return func(yield func(SourceInfo, error) bool) {
		for after, more := "", true; more; {
			q := &ebbv1.Question{Namespace: ns, Ask: &ebbv1.Question_Sources{
				Sources: &ebbv1.SourcesQuestion{Limit: sourcesPerPage, After: after},
			}}
			a, err := c.askOne(ctx, "list sources", "", q, opts)
			if err != nil {
				yield(SourceInfo{}, err)
				return
			}
			page := a.GetSources()
			for _, s := range page.GetSources() {
				after = s.GetName()
				info := SourceInfo{after, s.GetNewestOffset(), s.GetRefused(), int(s.GetShards())}
				if !yield(info, nil) {
					return
				}
			}
			more = page.GetMore() && len(page.GetSources()) > 0
		}
	}
}

// sourcesPerPage is how many sources one answer lists.
const sourcesPerPage = 1_000
