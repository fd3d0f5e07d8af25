package client

import (
	"context"
	"errors"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// placesBySlice reports whether a namespace places bitmaps by slice. Changes of such bitmaps are sent to any node,
// which splits them. The placement never changes, so only a namespace that the client does not have yet needs a
// request.
func (c *Client) placesBySlice(ctx context.Context, ns string) bool {
	return proto.BySlice(c.settings(ctx, ns))
}

// settings returns the settings of a namespace; nil if there is no such namespace. Only settings that never change are
// sure to be current.
func (c *Client) settings(ctx context.Context, ns string) *ebbv1.Namespace {
	known := c.routing.namespace(namespaceOr(ns))
	if known == nil && proto.CheckNamespaceName(namespaceOr(ns)) == nil && c.renew(ctx) == nil {
		known = c.routing.namespace(namespaceOr(ns))
	}
	return known
}

// namespace returns the settings of a namespace; nil if the table does not have it, or it is deleted.
func (rt *routingTable) namespace(name string) *ebbv1.Namespace {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	for _, ns := range rt.table.GetNamespaces() {
		if ns.GetName() == name && ns.GetDeletion() == nil {
			return ns
		}
	}
	return nil
}

// slicedEdits changes a bitmap that is placed by slice, in requests with so many ids. Each request is applied once.
func (c *Client) slicedEdits(ctx context.Context, ns string, change *ebbv1.BitChange) (changed int, err error) {
	ids := change.GetIds()
	for made := false; ; made = true {
		n := min(len(ids), proto.BitIDsMax)
		some := &ebbv1.BitChange{Key: change.GetKey(), Op: change.GetOp(), Packed: proto.AppendBitIDs(nil, ids[:n]), Range: change.GetRange()}
		more, err := c.changeBits(ctx, ns, some)
		if changed += more; err != nil {
			return changed, madeInPart(made, err)
		}
		if ids = ids[n:]; len(ids) == 0 {
			return changed, nil
		}
	}
}

// madeInPart returns the error of a change that failed after a part of it was made. A caller must not take it for a
// change that was not made.
func madeInPart(made bool, err error) error {
	var e *Error
	if !made || isUnknown(err) || !errors.As(err, &e) {
		return err
	}
	part := *e
	part.Err = &unknown{e.Err}
	part.Code, part.Hint = coded(part.Err).Code, "look which ids are in: something of the change has been made"
	return &part
}
