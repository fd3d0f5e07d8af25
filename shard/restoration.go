package shard

import (
	"io"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A restore brings a snapshot of another cluster's shard through the log, in pieces, into a shard that is empty:
//
//	begin -> piece ... piece -> commit     the state is that of the snapshot, in this log and by a clock that has not gone back
//	      \______cancel______/            the state is as it was
//
// The pieces that have come are part of the state. So a replica that joins in between, or a new leader, continues with
// the next one.

// staging is what a restore has brought so far.
type staging struct {
	name     string // "" for none
	bytes    uint64 // of the whole
	checksum uint64 // of the whole, XXH3-64
	pieces   [][]byte
	have     uint64 // bytes of pieces
}

// allowedDuringRestore says whether a shard takes a command while it is being restored. It takes only commands that
// leave nothing that a restore would have to keep.
func allowedDuringRestore(kind protowire.Number) bool {
	switch kind {
	case proto.FieldCommandDefineNamespace, fieldCommandOpenSession, fieldCommandCloseSession, fieldCommandBehaviour, fieldCommandTick, fieldCommandAudit:
		return true
	}
	return false
}

func (s *State) beingRestored() *proto.Error {
	return proto.ErrStarting.Errorf("shard %d is being restored from a backup: %d of %d bytes are there", s.id, s.staged.have, s.staged.bytes).
		WithHint("wait until ebb restore is done; ebb restore --cancel gives it up").WithShard(uint32(s.id))
}

// vacant says whether a restore would lose nothing. Sessions without a write do not count: their writers get the error
// that they have expired.
func (s *State) vacant() bool {
	return s.summaries.keys.live == 0 && len(s.dictPartitions) == 0 && s.sources.live == 0 && s.answered.live == 0 && s.orphans.live == 0
}

// restoration applies a step of a restore.
func (s *State) restoration(body []byte) *ebbv1.CommandResult {
	var c ebbv1.RestoreShard
	if pb.Unmarshal(body, &c) != nil || c.Step == nil {
		return failed(errMalformedCommand())
	}
	if err := proto.CheckRestore(&c); err != nil {
		return failed(err)
	}
	if s.restored == c.Name || s.successor != nil {
		return &ebbv1.CommandResult{Restore: &ebbv1.RestoreProgress{Done: true}}
	}
	err := s.restoreStep(&c)
	if err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	return &ebbv1.CommandResult{Restore: &ebbv1.RestoreProgress{Staged: s.staged.have, Done: s.successor != nil}}
}

func (s *State) restoreStep(c *ebbv1.RestoreShard) *proto.Error {
	switch step := c.Step.(type) {
	case *ebbv1.RestoreShard_Begin:
		return s.beginRestore(c.Name, step.Begin)
	case *ebbv1.RestoreShard_Cancel:
		if step.Cancel.GetAny() || s.staged.name == c.Name {
			s.staged = staging{}
		}
		return nil
	case *ebbv1.RestoreShard_Piece:
		if s.staged.name != c.Name {
			return s.noSuchRestore(c.Name)
		}
		return s.stage(step.Piece)
	}
	if s.staged.name != c.Name {
		return s.noSuchRestore(c.Name)
	}
	return s.commitRestore()
}

func (s *State) noSuchRestore(name string) *proto.Error {
	return proto.ErrBadRequest.Errorf("shard %d is not being restored as %q", s.id, name).WithHint("begin the restore again")
}

func (s *State) beginRestore(name string, begin *ebbv1.RestoreBegin) *proto.Error {
	switch t := &s.staged; {
	case t.name == name && t.bytes == begin.GetBytes() && t.checksum == begin.GetChecksum():
		return nil
	case t.name != "":
		return proto.ErrBadRequest.Errorf("shard %d is being restored from another backup (%q)", s.id, t.name).
			WithHint("end that restore, or give it up: ebb restore --cancel")
	case !s.vacant():
		return proto.ErrBadRequest.Errorf("shard %d is not empty: it holds keys (%d), strings or sources", s.id, s.Keys()).
			WithHint("restore into a new cluster: a backup takes the place of all that a shard has")
	}
	s.staged = staging{name: name, bytes: begin.GetBytes(), checksum: begin.GetChecksum()}
	return nil
}

// stage keeps a piece, unless the shard has it already.
func (s *State) stage(p *ebbv1.RestorePiece) *proto.Error {
	t := &s.staged
	end := p.GetOffset() + uint64(len(p.GetData()))
	switch {
	case p.GetOffset() > t.have || end > t.bytes:
		return proto.ErrBadRequest.Errorf("bytes %d to %d of a snapshot of %d, of which shard %d has %d", p.GetOffset(), end, t.bytes, s.id, t.have)
	case end <= t.have:
		return nil
	}
	t.pieces = append(t.pieces, p.GetData()[t.have-p.GetOffset():])
	t.have = end
	return nil
}

// commitRestore makes the state that replaces this one.
func (s *State) commitRestore() *proto.Error {
	t := s.staged
	if t.have != t.bytes {
		return proto.ErrBadRequest.Errorf("shard %d has %d bytes of a snapshot of %d", s.id, t.have, t.bytes)
	}
	h := xxh3.New()
	for _, p := range t.pieces {
		_, _ = h.Write(p) // a hash takes everything
	}
	if h.Sum64() != t.checksum {
		s.staged = staging{}
		return proto.ErrCorrupt.Errorf("the snapshot for shard %d has checksum %016x and should have %016x", s.id, h.Sum64(), t.checksum)
	}
	n, err := restoreAt(s.applying, s.limits, s.id, s.mem.Another(), &pieceReader{pieces: t.pieces})
	if err != nil {
		s.staged = staging{}
		return proto.AsError(err)
	}
	if n.behaviour > max(s.behaviour, 1) { // an older build cannot read it, and all replicas must come to the same
		s.staged = staging{}
		return proto.ErrNewerVersion.Errorf("the snapshot for shard %d has behaviour version %d, and the shard has %d",
			s.id, n.behaviour, s.behaviour).
			WithHint("upgrade all nodes, wait until ebb status shows the newer storage version, and begin the restore again")
	}
	n.now = max(n.now, s.now)
	n.setBehaviour(max(n.behaviour, s.behaviour))
	n.lastSession = max(n.lastSession, s.lastSession)
	n.lastEpoch = max(n.lastEpoch, s.lastEpoch)
	n.staged, n.restored = staging{}, t.name
	s.successor = n
	return nil
}

// RestoredBehaviour returns the behaviour version of the state that a restore brings. It is 0 unless the command has
// the beginning of a snapshot.
func RestoredBehaviour(command []byte) uint32 {
	_, kind, body := proto.CommandBody(command)
	var c ebbv1.RestoreShard
	if kind != proto.FieldCommandRestore || pb.Unmarshal(body, &c) != nil || c.GetPiece() == nil ||
		c.GetPiece().GetOffset() != 0 {
		return 0
	}
	header := c.GetPiece().GetData()
	r := reader{rest: header[min(len(header), blockOverhead+len(snapshotMagic)+1):]}
	r.uvarint() // the shard
	return uint32(r.uvarint())
}

// Successor returns the state that replaces this one from the next entry on, when a restore is complete; nil otherwise.
func (s *State) Successor() *State { return s.successor }

// pieceReader reads pieces, none of them empty, one after the other.
type pieceReader struct {
	pieces [][]byte
	at     int // in the first
}

func (r *pieceReader) Read(p []byte) (int, error) {
	if len(r.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.pieces[0][r.at:])
	if r.at += n; r.at == len(r.pieces[0]) {
		r.pieces, r.at = r.pieces[1:], 0
	}
	return n, nil
}

func (t *staging) write(b *blockWriter) {
	b.text([]byte(t.name))
	if t.name == "" {
		return
	}
	b.uvarint(t.bytes)
	b.fixed(t.checksum)
	b.uvarint(uint64(len(t.pieces)))
	for i, p := range t.pieces {
		b.text(p)
		b.ended(uint64(i))
	}
}

// writePart writes which restore it is, how far it has come, and every Of-th of its pieces.
func (t *staging) writePart(b *blockWriter, a Audit) {
	b.text([]byte(t.name))
	b.uvarint(t.bytes)
	b.fixed(t.checksum)
	b.uvarint(t.have)
	for i := int(a.Part); i < len(t.pieces); i += int(a.Of) {
		b.text(t.pieces[i])
		b.ended(uint64(i))
	}
}

func (t *staging) read(b *blockReader) {
	if t.name = string(b.text(proto.RestoreNameLenMax)); t.name == "" {
		return
	}
	t.bytes, t.checksum = b.uvarint(), b.fixed()
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		p := append([]byte(nil), b.text(proto.RestorePieceBytesMax)...)
		if len(p) == 0 {
			b.corrupt("an empty piece of a restore")
			return
		}
		t.pieces = append(t.pieces, p)
		t.have += uint64(len(p))
	}
	if t.have > t.bytes {
		b.corrupt("%d bytes of a restore of %d", t.have, t.bytes)
	}
}
