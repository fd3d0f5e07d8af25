package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Keys deletes, expires and renames keys. Like Increment it waits, within the context's deadline, for shards that are
// electing a leader.
type Keys struct {
	router      *Router
	coordinator *Coordinator
}

// NewKeys returns a Keys that writes through r and asks through c.
func NewKeys(r *Router, c *Coordinator) *Keys { return &Keys{router: r, coordinator: c} }

// Delete deletes keys of any shards. The response lists keys whose shards refused; if all refused, Delete returns an
// error.
func (k *Keys) Delete(ctx context.Context, req *ebbv1.DeleteRequest) (*ebbv1.DeleteResponse, error) {
	if err := proto.CheckDelete(req); err != nil {
		return nil, err
	}
	table, namespace, err := k.known(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	if err := checkSliceKeys(table, namespace, req.GetKeys()); err != nil {
		return nil, err
	}
	sum, err := k.each(ctx, req.GetNamespace(), req.GetKeys(), req.GetIdempotencyKey(), func(keys [][]byte) *ebbv1.Command {
		return &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: keys}}}
	})
	if err != nil {
		return nil, err
	}
	return &ebbv1.DeleteResponse{Deleted: sum.GetApplied(), Refused: sum.GetRefused()}, nil
}

// Expire sets the time after which keys of any shards are deleted.
func (k *Keys) Expire(ctx context.Context, req *ebbv1.ExpireRequest) (*ebbv1.ExpireResponse, error) {
	if err := proto.CheckExpire(req); err != nil {
		return nil, err
	}
	table, namespace, err := k.known(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	if err := checkSliceKeys(table, namespace, req.GetKeys()); err != nil {
		return nil, err
	}
	sum, err := k.each(ctx, req.GetNamespace(), req.GetKeys(), req.GetIdempotencyKey(), func(keys [][]byte) *ebbv1.Command {
		e := &ebbv1.ExpireKeys{Keys: keys}
		switch {
		case req.GetAtUs() != 0:
			e.Until = &ebbv1.ExpireKeys_AtUs{AtUs: req.GetAtUs()}
		case req.GetTtlUs() != 0:
			e.Until = &ebbv1.ExpireKeys_TtlUs{TtlUs: req.GetTtlUs()}
		}
		return &ebbv1.Command{Body: &ebbv1.Command_Expire{Expire: e}}
	})
	if err != nil {
		return nil, err
	}
	return &ebbv1.ExpireResponse{Changed: sum.GetApplied(), Refused: sum.GetRefused()}, nil
}

// checkSliceKeys refuses keys of the form that is reserved for parts of bitmaps.
func checkSliceKeys(table *Table, namespace string, keys [][]byte) error {
	if !proto.BySlice(table.Namespace(namespace)) {
		return nil
	}
	for _, key := range keys {
		if err := proto.CheckSliceKey(key); err != nil {
			return err
		}
	}
	return nil
}

// each makes commands of the keys of each shard, applies them, and adds up the results.
func (k *Keys) each(
	ctx context.Context, namespace string, keys [][]byte, id *ebbv1.IdempotencyKey, command func([][]byte) *ebbv1.Command,
) (*ebbv1.IncrementResponse, error) {
	table, namespace, err := k.known(ctx, namespace)
	if err != nil {
		return nil, err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	order := make([]placed, len(keys))
	for i, key := range keys {
		order[i] = placed{table.ShardOf(namespace, key), uint32(i)}
	}
	slices.SortFunc(order, comparePlaced)
	s := &split{request: new(ebbv1.ApplyRequest)}
	last, part := uint32(0), uint64(0)
	for len(order) > 0 {
		n, size := 1, 0
		for n < len(order) && order[n].shard == order[0].shard && size < commandBytesSoft {
			size += len(keys[order[n].at]) + keyRoom
			n++
		}
		if part++; order[0].shard != last {
			last, part = order[0].shard, 0
		}
		some := make([][]byte, n)
		at := make([]uint32, n)
		for i, p := range order[:n] {
			some[i], at[i] = keys[p.at], p.at
		}
		cmd, err := encoded(command(some), namespace, partKey(id, part))
		if err != nil {
			return nil, err
		}
		s.request.Commands = append(s.request.Commands, &ebbv1.ShardCommand{Shard: last, Command: cmd})
		s.at = append(s.at, at)
		order = order[n:]
	}
	return s.merge(k.router.apply(ctx, table, s.request, retryUntilLeader))
}

func (k *Keys) known(ctx context.Context, namespace string) (*Table, string, error) {
	table, err := k.coordinator.confirmed(ctx, namespace)
	if err != nil {
		return nil, "", err
	}
	if table.Shards() == 0 {
		return nil, "", errStarting()
	}
	namespace = cmp.Or(namespace, proto.DefaultNamespace)
	return table, namespace, checkNamespaceExists(table, namespace)
}

func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, incrementTimeout)
}

func encoded(cmd *ebbv1.Command, namespace string, id *ebbv1.IdempotencyKey) ([]byte, error) {
	cmd.Namespace = namespace
	if id != nil {
		cmd.Identity = &ebbv1.Command_IdempotencyKey{IdempotencyKey: id}
	}
	raw, err := pb.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode command about keys: %w", err)
	}
	return raw, nil
}

// Rename gives a key another name. If both names are in one shard, it is one entry of the shard's log. Otherwise the
// content of the key is exported and stored under the new name. Then the old key is deleted if it has not changed
// since; else Rename begins again:
//
//	old shard    export ------------------> delete if unchanged --- no ---> export ...
//	new shard             put, if it may                                             put in place of the first
//
// In between, both names exist. If the key is written all the time, Rename returns KEY_BUSY. Then it removes the new
// key again, and restores the content that overwrite replaced, unless that is too large. A repeated request under the
// same identity succeeds if the first one was done.
func (k *Keys) Rename(ctx context.Context, req *ebbv1.RenameRequest) (*ebbv1.RenameResponse, error) {
	if err := proto.CheckRename(req); err != nil {
		return nil, err
	}
	table, namespace, err := k.known(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	id := req.GetIdempotencyKey()
	if id == nil {
		id = &ebbv1.IdempotencyKey{IssuedAtUs: k.coordinator.cfg.Now().UnixMicro(), Hi: rand.Uint64(), Lo: rand.Uint64()}
	}
	if proto.BySlice(table.Namespace(namespace)) {
		return nil, proto.ErrWrongKind.Errorf("namespace %s places bitmaps by slice: they cannot be renamed, for their parts lie in all shards under their names", namespace).
			WithHint("make the other one, and delete the first")
	}
	m := &move{
		Keys: k, table: table, namespace: namespace, id: id, key: req.GetKey(), to: req.GetTo(),
		source: table.ShardOf(namespace, req.GetKey()), target: table.ShardOf(namespace, req.GetTo()),
	}
	if m.source == m.target {
		put := &ebbv1.PutKey{Key: m.to, What: &ebbv1.PutKey_From{From: m.key}, Overwrite: req.GetOverwrite()}
		_, err := m.apply(ctx, m.source, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}}, id)
		if err != nil {
			return nil, err
		}
		return &ebbv1.RenameResponse{}, nil
	}
	moved, err := m.across(ctx, req.GetOverwrite(), req.GetIdempotencyKey() != nil)
	if err != nil && !errors.Is(err, errMoved) {
		return nil, err
	}
	return &ebbv1.RenameResponse{BytesMoved: moved}, nil
}

// move is the rename of a key from one shard to another.
type move struct {
	*Keys
	table          *Table
	namespace      string
	id             *ebbv1.IdempotencyKey
	key, to        []byte
	source, target uint32
	over           *ebbv1.KeyExport // the content that overwrite replaced, unless it is too large to be restored
}

// movesMax is how often a move begins again because the key was written.
const movesMax = 8

func (m *move) across(ctx context.Context, overwrite, repeated bool) (moved uint64, err error) {
	put := &ebbv1.PutKey{Key: m.to, Overwrite: overwrite}
	tried := uint64(0) // checksum of the last delete, which did not match any more
	for try := range movesMax {
		export, err := m.export(ctx, m.key)
		if err != nil {
			return 0, m.halfway(put, err)
		}
		if !export.GetFound() {
			m.undo(ctx, put.Replace)
			return 0, m.notFound(ctx, repeated && put.Replace == nil)
		}
		if overwrite && try == 0 {
			if m.over, err = m.export(ctx, m.to); err != nil && !errors.Is(err, proto.ErrKeyTooLarge) {
				return 0, err
			}
		}
		if put.Replace == nil || *put.Replace != export.GetChecksum() {
			if err := m.put(ctx, put, export.GetImage()); errors.Is(err, proto.ErrKeyNotFound) { // it faded since
				m.undo(ctx, put.Replace)
				return 0, m.notFound(ctx, repeated && put.Replace == nil)
			} else if err != nil {
				return 0, m.halfway(put, err)
			}
			put.Replace = pb.Uint64(export.GetChecksum())
		}
		id := m.removal(export.GetChecksum())
		if try > 0 && tried == export.GetChecksum() {
			id = m.step() // otherwise the shard would answer with the result of the last command
		}
		deleted, err := m.remove(ctx, m.source, m.key, export.GetChecksum(), id)
		switch {
		case err != nil:
			return 0, m.halfway(put, err)
		case deleted:
			return uint64(len(export.GetImage())), nil
		}
		tried = export.GetChecksum()
		put.Overwrite = false
	}
	m.undo(ctx, put.Replace)
	return 0, proto.ErrKeyBusy.Errorf("key %q was written each of the %d times that it was to move from shard %d to shard %d", m.key, movesMax, m.source, m.target).
		WithHint("try again, or stop writing it for a moment")
}

// halfway returns the error of a move whose copy is already stored, whatever the error of the step was: a new attempt
// would find the copy.
func (m *move) halfway(put *ebbv1.PutKey, err error) error {
	if put.Replace == nil || errors.Is(err, proto.ErrKeyBusy) {
		return err
	}
	return proto.ErrUnknownOutcome.Errorf("key %q holds what %q does, which could not be taken away: %v", m.to, m.key, err).
		WithHint("both names may be there now: look at them, and delete the one that you do not want")
}

// notFound returns the error when the old name does not exist; errMoved if this very request has moved it before.
func (m *move) notFound(ctx context.Context, repeated bool) error {
	err := proto.ErrKeyNotFound.Errorf("there is no key %q, or all of it has faded", m.key).WithShard(m.source)
	there, failed := m.export(ctx, m.to)
	if failed != nil || !there.GetFound() {
		return err
	}
	if repeated {
		if done, failed := m.remove(ctx, m.source, m.key, there.GetChecksum(), m.removal(there.GetChecksum())); failed == nil && done {
			return errMoved
		}
	}
	return err.WithHint(fmt.Sprintf("there is a key %q: if this was tried before, it may be done", m.to))
}

// errMoved reports that the request was done before.
var errMoved = errors.New("it was moved before")

// removal is the idempotency key of the delete of the old name with this content. By this key a repeated request finds
// that it was done.
func (m *move) removal(checksum uint64) *ebbv1.IdempotencyKey {
	return partKey(m.id, max(checksum, 1))
}

func (m *move) export(ctx context.Context, key []byte) (*ebbv1.KeyExport, error) {
	q := &ebbv1.Question{Namespace: m.namespace, Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{
		Key:  key,
		Both: m.table.Version() >= proto.VersionDeletion, SameNamespace: m.table.Version() >= proto.VersionUnited,
		Large: m.table.Version() >= proto.VersionAdds,
	}}}
	resp, err := m.coordinator.Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
	if err != nil {
		return nil, err
	}
	a := resp.GetAnswers()[0]
	if e := proto.FromWire(a.GetError()); e != nil {
		return nil, e
	}
	most := proto.ImageBytesMax
	if q.GetExport().GetLarge() {
		most = proto.LargeImageBytesMax
	}
	if n := len(a.GetExport().GetImage()); n > most { // a node of an older build allows more
		return nil, proto.ErrKeyTooLarge.Errorf(
			"key %q takes %d bytes: the limit of what goes from one shard to another is %d", key, n, most)
	}
	return a.GetExport(), nil
}

// put waits for a shard whose clock is behind the image's. If the new name already holds the same content, it is the
// copy of another move, which may be about to delete the old key or the copy. Both moves together could delete both
// copies.
func (m *move) put(ctx context.Context, put *ebbv1.PutKey, image []byte) error {
	if put.What = (&ebbv1.PutKey_Image{Image: image}); len(image) > proto.ImageBytesMax {
		id := 1 + rand.Uint64N(1<<63)
		if err := m.bring(ctx, id, image); err != nil {
			return err
		}
		put.What = &ebbv1.PutKey_Upload{Upload: id}
	}
	for try := 1; ; try++ {
		r, err := m.apply(ctx, m.target, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}}, m.step())
		switch {
		case err == nil && r.GetApplied() == 0:
			return proto.ErrKeyExists.Errorf("key %q holds the same as %q: it is being renamed elsewhere, or that was broken off", m.to, m.key).WithShard(m.target).
				WithHint("if it stays so, delete the one that you do not want: ebb del")
		case put.Replace != nil && errors.Is(err, proto.ErrKeyExists):
			return proto.ErrKeyBusy.Errorf("keys %q and %q were both written while one was to become the other: %q holds what %q did when it began, and both are there",
				m.key, m.to, m.to, m.key).WithHint("keep the one that you want: ebb del, or ebb rename --overwrite")
		case !errors.Is(err, proto.ErrBadTime) && !errors.Is(err, proto.ErrOverloaded) || !pause(ctx, try+1):
			return err
		}
	}
}

// bring uploads an image to the shard of the new name, in pieces.
func (m *move) bring(ctx context.Context, id uint64, image []byte) error {
	const most = proto.ImageBytesMax / 2
	for at := 0; at < len(image); at += most {
		piece := &ebbv1.PutPiece{
			Upload: id, Offset: uint64(at), Data: image[at:min(at+most, len(image))], Bytes: uint64(len(image)),
		}
		for try := 1; ; try++ {
			cmd := &ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: piece}}
			_, err := m.apply(ctx, m.target, cmd, m.step())
			if err == nil {
				break
			}
			if !errors.Is(err, proto.ErrOverloaded) || !pause(ctx, try+1) {
				return err
			}
		}
	}
	return nil
}

func (m *move) remove(ctx context.Context, shard uint32, key []byte, checksum uint64, id *ebbv1.IdempotencyKey) (removed bool, err error) {
	del := &ebbv1.DeleteKeys{Keys: [][]byte{key}, Checksum: &checksum}
	for try := 1; ; try++ {
		r, err := m.apply(ctx, shard, &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: del}}, id)
		if !errors.Is(err, proto.ErrOverloaded) || !pause(ctx, try+1) {
			return r.GetApplied() > 0, err
		}
		id = m.step() // the shard would answer the first one's key with the refusal
	}
}

// undo removes the copy, if it has not changed, and restores the content that it replaced. A failure is ignored: it is
// no worse than the end of the caller's time.
func (m *move) undo(ctx context.Context, checksum *uint64) {
	switch {
	case checksum == nil:
	case m.over.GetFound() && m.put(ctx, &ebbv1.PutKey{Key: m.to, Replace: checksum}, m.over.GetImage()) == nil:
	default: // nothing was there, or it has faded since
		_, _ = m.remove(ctx, m.target, m.to, *checksum, m.step())
	}
}

// step returns the idempotency key of one more command. A second attempt must not count as a repetition of the first.
func (m *move) step() *ebbv1.IdempotencyKey {
	return &ebbv1.IdempotencyKey{IssuedAtUs: m.id.GetIssuedAtUs(), Hi: rand.Uint64(), Lo: rand.Uint64()}
}

// apply applies one command. While its outcome is unknown, it tries again under the same idempotency key.
func (m *move) apply(ctx context.Context, shard uint32, cmd *ebbv1.Command, id *ebbv1.IdempotencyKey) (*ebbv1.CommandResult, error) {
	raw, err := encoded(cmd, m.namespace, id)
	if err != nil {
		return nil, err
	}
	req := &ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: shard, Command: raw}}}
	var unknown *proto.Error // a try that may have been applied; the refusal of a later try does not change that
	for try := 1; ; try++ {
		r := m.router.apply(ctx, m.table, req, retryUntilLeader).GetResults()[0]
		e := proto.FromWire(r.GetError())
		switch {
		case e == nil:
			return r, nil
		case errors.Is(e, proto.ErrUnknownOutcome):
			unknown = e
		case unknown == nil || e.Code/1000 != 1:
			return r, e
		}
		if !pause(ctx, try+1) {
			return r, unknown
		}
	}
}
