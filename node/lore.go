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
	// ask returns the control leader's namespaces.
	ask func(ctx context.Context) ([]*ebbv1.Namespace, error)

	mu      sync.Mutex // guards what follows; not held while asking
	told    map[string]*ebbv1.Namespace
	unknown map[string]time.Time
}

func newLore(table func() *cluster.Table, ask func(context.Context) ([]*ebbv1.Namespace, error)) *lore {
	return &lore{table: table, ask: ask, told: make(map[string]*ebbv1.Namespace), unknown: make(map[string]time.Time)}
}

// namespace returns a namespace, "default" for the empty name; nil if it is unknown.
func (l *lore) namespace(name string) *ebbv1.Namespace {
	if ns := l.table().Namespace(name); ns != nil {
		return ns
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told[name]
}

// learn makes sure that a namespace is known here if it is known at all. It
// asks the control leader at most once a second for the same unknown name. An
// error means that the leader could not be asked.
func (l *lore) learn(ctx context.Context, name []byte) *proto.Error {
	if l.table().Namespace(string(name)) != nil || !l.worthAsking(string(name)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLeaderMax)
	defer cancel()
	namespaces, err := l.ask(ctx)
	if err != nil {
		return proto.ErrNoLeader.Errorf("namespace %q is not known here, and the control group cannot be asked: %v", name, err).
			WithHint("try again")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ns := range namespaces {
		l.told[ns.GetName()] = ns
	}
	if l.told[string(name)] == nil {
		l.forget(string(name))
	}
	return nil
}

func (l *lore) worthAsking(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, asked := l.unknown[name]
	return l.told[name] == nil && len(name) <= proto.NamespaceLenMax && (!asked || time.Since(at) > unknownFor)
}

// forget remembers that nobody knows a name. l.mu is held.
func (l *lore) forget(name string) {
	if len(l.unknown) >= unknownMax {
		clear(l.unknown)
	}
	l.unknown[name] = time.Now()
}
