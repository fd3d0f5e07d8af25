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
	// askLeaderMax is how long to wait for the control leader's word on a namespace.
	askLeaderMax = time.Second
	// unknownFor is how long a namespace that the leader did not know either is
	// taken for unknown.
	unknownFor = time.Second
	// unknownMax bounds how many such names are remembered.
	unknownMax = 1000
)

// lore is what this node knows of namespaces: its copy of the table, and what
// it had to ask the control leader for, because the copy may lag a moment
// behind what a client has just been told.
type lore struct {
	table func() *cluster.Table
	// ask returns the control leader's namespaces, and the epoch of the table that has them.
	ask func(ctx context.Context) ([]*ebbv1.Namespace, uint64, error)

	unknownMax int // names in unknown

	mu      sync.Mutex // guards what follows; not held while asking
	told    map[string]*ebbv1.Namespace
	epoch   uint64 // of the table that told is of: what a table of this epoch does not have is gone
	unknown map[string]time.Time
}

func newLore(
	table func() *cluster.Table, ask func(context.Context) ([]*ebbv1.Namespace, uint64, error), unknownMax int,
) *lore {
	return &lore{table: table, ask: ask, unknownMax: unknownMax, told: make(map[string]*ebbv1.Namespace), unknown: make(map[string]time.Time)}
}

// namespace returns a namespace, deleted or not, "default" for the empty name; nil if it is unknown.
func (l *lore) namespace(name string) *ebbv1.Namespace {
	table := l.table()
	if ns := table.Defined(name); ns != nil {
		return ns
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(table)
	return l.told[name]
}

// drop forgets what was told of a table that is no newer than this one: what this one lacks was purged. l.mu is held.
func (l *lore) drop(table *cluster.Table) {
	if table.Epoch() >= l.epoch {
		clear(l.told)
	}
}

// learn makes sure that a namespace is known here if it is known at all. It
// asks the control leader at most once a second for the same unknown name. An
// error means that the leader could not be asked.
func (l *lore) learn(ctx context.Context, name []byte) *proto.Error {
	if l.table().Defined(string(name)) != nil || !l.worthAsking(string(name)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLeaderMax)
	defer cancel()
	namespaces, epoch, err := l.ask(ctx)
	if err != nil {
		return proto.ErrNoLeader.Errorf("namespace %q is not known here, and the control group cannot be asked: %v", name, err).
			WithHint("try again")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if epoch >= l.epoch {
		clear(l.told)
		l.epoch = epoch
		for _, ns := range namespaces {
			l.told[ns.GetName()] = ns
		}
	}
	if l.told[string(name)] == nil {
		l.forget(string(name))
	}
	return nil
}

func (l *lore) worthAsking(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(l.table())
	at, asked := l.unknown[name]
	return l.told[name] == nil && len(name) <= proto.NamespaceLenMax && (!asked || time.Since(at) > unknownFor)
}

// forget remembers that nobody knows a name. l.mu is held.
func (l *lore) forget(name string) {
	if len(l.unknown) >= l.unknownMax {
		clear(l.unknown)
	}
	l.unknown[name] = time.Now()
}
