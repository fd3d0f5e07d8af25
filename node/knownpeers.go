package node

import (
	"context"
	"slices"
	"sync"
)

// knownPeers is the set of founders whose replicas have ever exchanged a message with a replica of this node.
// It is on disk before the first message of a founder is accepted. A founder that loses its disk asks the others
// for it, before the cluster's table records that the founder ran (see Node.found). A set in memory would be lost
// if all processes were killed in the cluster's first second.
type knownPeers struct {
	dir *datadir
	wg  sync.WaitGroup // of writes in progress

	mu      sync.Mutex // guards pending
	pending map[string]*pendingWrite
}

// pendingWrite is a name that is being written to disk.
type pendingWrite struct {
	done chan struct{}
	err  error // once done is closed
}

func newKnownPeers(dir *datadir) *knownPeers {
	return &knownPeers{dir: dir, pending: make(map[string]*pendingWrite)}
}

// remember returns when the set on disk contains a node. It fails if the write fails, or does not end before ctx. A
// node that is not a founder is not stored: its record names its disk from the beginning.
func (k *knownPeers) remember(ctx context.Context, node string) error {
	if id := k.dir.identity(); !slices.Contains(id.Founders, node) || slices.Contains(id.Contacted, node) {
		return nil
	}
	w := k.begin(node)
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin starts to write a name, unless a write of it is under way.
func (k *knownPeers) begin(node string) *pendingWrite {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w, ok := k.pending[node]; ok {
		return w
	}
	w := &pendingWrite{done: make(chan struct{})}
	k.pending[node] = w
	k.wg.Go(func() { // callers may give up while the disk stalls
		w.err = k.dir.update(func(id *identity) {
			if !slices.Contains(id.Contacted, node) {
				id.Contacted = append(slices.Clone(id.Contacted), node)
			}
		})
		k.mu.Lock()
		delete(k.pending, node)
		k.mu.Unlock()
		close(w.done)
	})
	return w
}

// all returns the peers on disk and those that were seen since this process started.
func (k *knownPeers) all(lately []string) []string {
	all := append(slices.Clone(k.dir.identity().Contacted), lately...)
	slices.Sort(all)
	return slices.Compact(all)
}
