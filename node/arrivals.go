package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/ebbdb/ebb/node/snap"
	"github.com/ebbdb/ebb/node/transport"
)

// arrivals receives the snapshots of a group. They are decoded here and not by Raft, whose main goroutine must answer
// followers.
type arrivals struct {
	store   *snap.Store
	machine preparer         // nil: Raft decodes them
	count   *snapshotMetrics // of the node

	// Bytes of chunks: those received since the node started, those that were here already, and those still missing of
	// the snapshot that arrives.
	came, held, left atomic.Uint64
}

// preparer decodes snapshots before Raft restores them.
type preparer interface {
	// prepare decodes a content that Restore will get; forget is called when Restore will not get it.
	prepare(key contentKey, r io.Reader) error
	forget(key contentKey)
}

// contentKey names what is in a snapshot: see (*snap.Content).Key.
type contentKey [sha256.Size]byte

// Arrive implements transport.Shelf.
func (s *arrivals) Arrive(index, term uint64, items []snap.Item) (transport.Arrival, error) {
	a, err := s.store.Arrive(index, term, items)
	if err != nil {
		return nil, err
	}
	here, left := uint64(0), uint64(0)
	for i, item := range items {
		if a.Has(i) {
			here += uint64(item.Length)
		} else {
			left += uint64(item.Length)
		}
	}
	s.held.Add(here)
	s.count.held.Add(here)
	s.left.Store(left)
	return &delivery{Arrival: a, at: s}, nil
}

// delivery is a snapshot that arrives.
type delivery struct {
	*snap.Arrival
	at       *arrivals
	key      contentKey
	prepared bool
}

// Put implements transport.Arrival.
func (d *delivery) Put(chunk []byte) error {
	if err := d.Arrival.Put(chunk); err != nil {
		return err
	}
	n := uint64(len(chunk))
	d.at.came.Add(n)
	d.at.count.came.Add(n)
	d.at.left.Add(-n)
	return nil
}

// Ready implements transport.Arrival.
func (d *delivery) Ready(ctx context.Context) ([]byte, error) {
	content, err := d.Whole()
	if err != nil {
		return nil, err
	}
	defer content.Close() //nolint:errcheck // it was only read
	if to := d.at.machine; to != nil {
		d.key = content.Key()
		if err := to.prepare(d.key, until{ctx, content}); err != nil {
			return nil, fmt.Errorf("decode a snapshot that arrived: %w", err)
		}
		d.prepared = true
	}
	return d.Arrival.Ready(), nil
}

// Close implements transport.Arrival.
func (d *delivery) Close() error {
	d.at.left.Store(0)
	if d.prepared {
		d.at.machine.forget(d.key)
	}
	return d.Arrival.Close()
}

// until is a reader that fails once its context ends.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}
