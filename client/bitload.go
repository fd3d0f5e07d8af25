package client

import (
	"context"
	"math/rand/v2"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// BitLoad is the progress of a load of many ids into one bitmap. The shard of the bitmap's key stores it as an ordered
// source, which never expires. The progress has steps: all ids up to a step are acknowledged. A later run sends the ids
// after the last step again, which changes nothing.
type BitLoad struct {
	client  *Client
	ns, key string
	name    string
	shard   uint32
	epoch   uint64
	done    uint64
}

// BitLoad takes over a load. name has at most 256 bytes; other ids need another name. The earlier holder of the load is
// fenced: its next step fails with ErrSourceFenced.
func (c *Client) BitLoad(ctx context.Context, ns, key, name string) (*BitLoad, error) {
	l := &BitLoad{client: c, ns: namespaceOr(ns), key: key, name: name}
	l.shard = proto.ShardOf(l.ns, []byte(key), c.routing.shards())
	open := &ebbv1.OpenSource{Name: name, Token: newSecret()}
	result, err := l.apply(ctx, &ebbv1.Command{Namespace: l.ns, Body: &ebbv1.Command_OpenSource{OpenSource: open}})
	if err != nil {
		return nil, err
	}
	l.epoch, l.done = result.GetEpoch(), result.GetLastOffset()
	return l, nil
}

// Done is the last step of earlier runs, 0 if there were none.
func (l *BitLoad) Done() uint64 { return l.done }

// Reached records that everything up to a place, from 1 on, is acknowledged. id is one of those ids.
func (l *BitLoad) Reached(ctx context.Context, place, id uint64) error {
	if l.client.placesBySlice(ctx, l.ns) {
		id = max(1, rand.Uint64()) // the number of an empty bitmap, if it was deleted since
	}
	// Fresh: only if the key does not exist. The key exists, so only the shard's record of the source changes.
	note := &ebbv1.BitEdit{Key: []byte(l.key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, []uint64{id}), Fresh: true, Offset: place}
	result, err := l.apply(ctx, &ebbv1.Command{
		Namespace: l.ns,
		Identity:  &ebbv1.Command_Source{Source: &ebbv1.SourceIdentity{Name: l.name, Epoch: l.epoch}},
		Body:      &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{note}}},
	})
	if err == nil && len(result.GetRefused()) > 0 {
		err = l.client.fail(attempt{op: "bits", key: l.key, shard: l.shard}, proto.FromWire(result.GetRefused()[0].GetError()))
	}
	return err
}

// Forget removes the record of a load that is done. The next load of its name begins anew.
func (l *BitLoad) Forget(ctx context.Context) error {
	_, err := l.apply(ctx, &ebbv1.Command{
		Namespace: l.ns,
		Body:      &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: l.name}},
	})
	return err
}

// apply applies a command in the shard of the key, and tries again until ctx ends. Each command may be applied twice.
func (l *BitLoad) apply(ctx context.Context, cmd *ebbv1.Command) (*ebbv1.CommandResult, error) {
	ctx, cancel := withDefaultTimeout(ctx, l.client.cfg.timeout)
	defer cancel()
	result, err := l.client.applyTo(ctx, l.shard, cmd)
	if err != nil && ctx.Err() != nil {
		return nil, l.client.fail(attempt{op: "load", key: l.key, shard: l.shard}, err)
	}
	return result, err
}

type loadStep struct {
	result *ebbv1.CommandResult
	err    error
}

// resultChan receives the result of one command.
type resultChan chan loadStep

func (h resultChan) handleResult(_ *pendingCommand, result *ebbv1.CommandResult, err error) {
	h <- loadStep{result, err}
}
