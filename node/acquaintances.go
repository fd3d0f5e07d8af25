package node

import (
	"context"
	"slices"
	"sync"
)

// acquaintances remembers of which founders a replica has ever spoken with one of this node's, on disk before the first word is heard: a founder whose
// disk is lost while the cluster's table does not know yet that it lived asks for it (see Node.found). What only this process remembered would be lost if
// all were killed in the cluster's first second.
type acquaintances struct {
	dir *datadir
	wg  sync.WaitGroup // of what writes

	mu      sync.Mutex // guards writing
	writing map[string]*writing
}

// writing is a name on its way to the disk.
type writing struct {
	done chan struct{}
	err  error // once done is closed
}

func newAcquaintances(dir *datadir) *acquaintances {
	return &acquaintances{dir: dir, writing: make(map[string]*writing)}
}

// meet returns when it is on disk that this node has met another, or with an error if it cannot be written, or not before ctx ends. Who is no founder
// has a record with a disk from the beginning.
func (a *acquaintances) meet(ctx context.Context, node string) error {
	if id := a.dir.identity(); !slices.Contains(id.Founders, node) || slices.Contains(id.Met, node) {
		return nil
	}
	w := a.begin(node)
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin has a name written, unless it is being written already.
func (a *acquaintances) begin(node string) *writing {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w, ok := a.writing[node]; ok {
		return w
	}
	w := &writing{done: make(chan struct{})}
	a.writing[node] = w
	a.wg.Go(func() { // whoever waits may leave, where the disk hangs
		w.err = a.dir.update(func(id *identity) {
			if !slices.Contains(id.Met, node) {
				id.Met = append(slices.Clone(id.Met), node)
			}
		})
		a.mu.Lock()
		delete(a.writing, node)
		a.mu.Unlock()
		close(w.done)
	})
	return w
}

// all returns whom this node has met: ever, and since its process started.
func (a *acquaintances) all(lately []string) []string {
	all := append(slices.Clone(a.dir.identity().Met), lately...)
	slices.Sort(all)
	return slices.Compact(all)
}
