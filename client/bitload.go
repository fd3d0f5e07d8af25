package client

import (
	"context"
	"math/rand/v2"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// BitLoad is how far a load of many ids into one bitmap has come. The shard of the bitmap's key remembers it as an
// ordered source, which never expires. Steps are whole: all ids up to a step are acknowledged. A later run puts the ids
// after it in again, which changes nothing.
type BitLoad struct {
	client  *Client
	ns, key string
	name    string
	shard   uint32
	epoch   uint64
	done    uint64
}

// BitLoad takes a load over, by a name of at most 256 bytes that is another for other ids. Whoever held it before is
// fenced: their next step is ErrSourceFenced.
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

// Done is up to where earlier runs have come, 0 if there were none.
func (l *BitLoad) Done() uint64 { return l.done }

// Reached says that everything up to a place, from 1 on, is acknowledged. id is one of those ids.
func (l *BitLoad) Reached(ctx context.Context, place, id uint64) error {
	if l.client.placesBySlice(ctx, l.ns) {
		id = max(1, rand.Uint64()) // the number of an empty bitmap, if it was deleted since
	}
	// Only if the key is not there: it is, so that nothing changes but what the shard knows of the source.
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

// Forget forgets a load that is done: the next one of its name begins anew.
func (l *BitLoad) Forget(ctx context.Context) error {
	_, err := l.apply(ctx, &ebbv1.Command{
		Namespace: l.ns,
		Body:      &ebbv1.Command_DropSource{DropSource: &ebbv1.DropSource{Name: l.name}},
	})
	return err
}

// apply applies a command in the shard of the key, and tries again as long as the context lasts: each may be applied
// twice.
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
