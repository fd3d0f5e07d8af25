package node

import (
	"context"
	"sync"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// askLeaderMax is how long to wait for the control leader's namespaces.
	askLeaderMax = time.Second
	// unknownFor is how long a name that the control leader does not have counts as unknown.
	unknownFor = time.Second
	// unknownMax bounds how many unknown names are kept.
	unknownMax = 1000
)

// namespaceCache looks namespaces up: in this node's copy of the table, and in what it fetched from the control
// leader. The copy may lag behind what a client has already seen.
type namespaceCache struct {
	table func() *cluster.Table
	// ask returns the control leader's namespaces, and the epoch of the table that has them.
	ask func(ctx context.Context) ([]*ebbv1.Namespace, uint64, error)

	unknownMax int // names in unknown

	mu      sync.Mutex // guards the fields below; not held while asking
	fetched map[string]*ebbv1.Namespace
	epoch   uint64 // of the table behind fetched: what a table of this epoch does not have was purged
	unknown map[string]time.Time
}

func newNamespaceCache(
	table func() *cluster.Table, ask func(context.Context) ([]*ebbv1.Namespace, uint64, error), unknownMax int,
) *namespaceCache {
	return &namespaceCache{table: table, ask: ask, unknownMax: unknownMax, fetched: make(map[string]*ebbv1.Namespace), unknown: make(map[string]time.Time)}
}

// namespace returns a namespace, deleted or not, "default" for the empty name; nil if it is unknown.
func (c *namespaceCache) namespace(name string) *ebbv1.Namespace {
	table := c.table()
	if ns := table.Defined(name); ns != nil {
		return ns
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropStale(table)
	return c.fetched[name]
}

// dropStale drops what was fetched from a table that is no newer than the given one. What the given table lacks was
// purged. c.mu is held.
func (c *namespaceCache) dropStale(table *cluster.Table) {
	if table.Epoch() >= c.epoch {
		clear(c.fetched)
	}
}

// refresh fetches the namespaces from the control leader if this node does not have one of that name. It asks at
// most once a second for the same unknown name. An error means that the leader could not be asked.
func (c *namespaceCache) refresh(ctx context.Context, name []byte) *proto.Error {
	if c.table().Defined(string(name)) != nil || !c.shouldAsk(string(name)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLeaderMax)
	defer cancel()
	namespaces, epoch, err := c.ask(ctx)
	if err != nil {
		return proto.ErrNoLeader.Errorf("namespace %q is not known here, and the control group cannot be asked: %v", name, err).
			WithHint("try again")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch >= c.epoch {
		clear(c.fetched)
		c.epoch = epoch
		for _, ns := range namespaces {
			c.fetched[ns.GetName()] = ns
		}
	}
	if c.fetched[string(name)] == nil {
		c.markUnknown(string(name))
	}
	return nil
}

func (c *namespaceCache) shouldAsk(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropStale(c.table())
	at, asked := c.unknown[name]
	return c.fetched[name] == nil && len(name) <= proto.NamespaceLenMax && (!asked || time.Since(at) > unknownFor)
}

// markUnknown records that the control leader does not have a name either. c.mu is held.
func (c *namespaceCache) markUnknown(name string) {
	if len(c.unknown) >= c.unknownMax {
		clear(c.unknown)
	}
	c.unknown[name] = time.Now()
}
