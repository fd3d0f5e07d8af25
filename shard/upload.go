package shard

import (
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// An image that is too large for one entry of the log comes in pieces, in their order. A put takes the image when it is
// complete; an image that gets no piece for ten minutes is dropped:
//
//	piece 0 ... piece n -> put     or nothing for ten minutes, and it is forgotten
//
// The pieces that have come are part of the state, so a new leader continues with the next one.

// upload is an image that is on its way. Views share its bytes: they are appended to, and never changed.
type upload struct {
	namespace string
	id        uint64
	bytes     uint64      // of the whole
	at        sketch.Tick // of the latest piece
	data      []byte
}

// uploads are in the order of their latest pieces. Views share the slice, so a change makes a new one.
//
// Invariant: together they have at most proto.UploadsBytesMax bytes, counted as if all were complete.
type uploads []upload

func (u uploads) find(namespace []byte, id uint64) int {
	return slices.IndexFunc(u, func(one upload) bool { return one.id == id && one.namespace == string(namespace) })
}

// without returns all but one.
func (u uploads) without(i int) uploads {
	if i < 0 {
		return u
	}
	return append(slices.Clone(u[:i]), u[i+1:]...)
}

// expire drops uploads without a piece for proto.UploadExpiryUS.
func (u *uploads) expire(now sketch.Tick) {
	for len(*u) > 0 && (*u)[0].at+proto.UploadExpiryUS <= now {
		*u = (*u)[1:]
	}
}

// putPiece keeps a piece of an image, unless the shard has it already.
func (s *State) putPiece(c *command) *ebbv1.CommandResult {
	var p ebbv1.PutPiece
	if s.behaviour < BehaviourSketches || pb.Unmarshal(c.body, &p) != nil {
		return failed(errMalformedCommand())
	}
	most := uint64(proto.LargeImageBytesMax)
	if s.behaviour >= BehaviourAdds {
		most = proto.SketchBytesMax
	}
	if err := proto.CheckPutPiece(&p, most); err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	if s.lookup(c.namespace) == nil {
		return failed(namespaceNotFound(c.namespace))
	}
	if err := s.keepPiece(s.namespaceName(c.namespace), &p); err != nil {
		return failed(err.WithShard(uint32(s.id)))
	}
	return &ebbv1.CommandResult{}
}

func (s *State) keepPiece(namespace string, p *ebbv1.PutPiece) *proto.Error {
	s.uploads.expire(s.now)
	at := s.uploads.find([]byte(namespace), p.Upload)
	one := upload{namespace: namespace, id: p.Upload, bytes: p.Bytes}
	if at >= 0 {
		one = s.uploads[at]
	} else if room := s.uploads.room(); p.Bytes > room {
		return proto.ErrOverloaded.Errorf("shard %d has room for %d bytes of images that come in pieces, and this "+
			"one has %d",
			s.id, room, p.Bytes).
			WithHint("try again when other imports are done")
	}
	have := uint64(len(one.data))
	switch end := p.Offset + uint64(len(p.Data)); {
	case p.Offset > have || one.bytes != p.Bytes:
		return errUpload(s.id, &one).WithHint("begin the image again, as another upload")
	case end > have:
		one.data = append(one.data, p.Data[have-p.Offset:]...)
	}
	one.at = s.now
	s.uploads = append(s.uploads.without(at), one)
	return nil
}

// room is how many more bytes of images there is room for.
func (u uploads) room() uint64 {
	room := uint64(proto.UploadsBytesMax)
	for i := range u {
		room -= u[i].bytes
	}
	return room
}

func errUpload(id ID, u *upload) *proto.Error {
	return proto.ErrBadRequest.Errorf("shard %d has %d of %d bytes of an image that comes in pieces", id, len(u.data),
		u.bytes)
}

// uploaded returns an image that has come in pieces.
func (s *State) uploaded(namespace []byte, id uint64) ([]byte, *proto.Error) {
	at := s.uploads.find(namespace, id)
	if at < 0 {
		return nil, errUpload(s.id, new(upload)).
			WithHint("bring all pieces first; what waits for ten minutes is forgotten")
	}
	if u := &s.uploads[at]; uint64(len(u.data)) != u.bytes {
		return nil, errUpload(s.id, u).WithHint("bring all pieces first")
	}
	raw := s.uploads[at].data
	if n := imageBins(raw); len(raw) > proto.LargeImageBytesMax && n > uploadBinsMax {
		return nil, uploadBins(len(raw), n)
	}
	return raw, nil
}

func uploadBins(bytes, bins int) *proto.Error {
	return proto.ErrKeyTooLarge.Errorf("an image of %d bytes has %d bins: the limit of one of more than %d bytes is "+
		"%d bins",
		bytes, bins, proto.LargeImageBytesMax, uploadBinsMax)
}

// uploadBinsMax is how many bins an image may have that is larger than was possible before BehaviourAdds: as many as an
// image of that time had with names of six bytes. So it takes no more time and memory to apply, except for its names.
const uploadBinsMax = proto.LargeImageBytesMax / 16

// imageBins is how many bins an image claims to have, of both half-lives; 0 for another kind, or for bytes that are no
// image.
func imageBins(raw []byte) int {
	r := reader{rest: raw}
	r.byte()
	version := r.byte()
	img := image{at: sketch.Tick(r.uvarint())}
	content, others := &r, 0
	if version == imageBothVersion {
		content = &reader{rest: r.bytes()}
		img.decodeWatched(&r)
		img.decodeWatched(&r)
		others = countsBins(&r)
	}
	content.uvarint()
	if form(content.byte()) != formDistribution {
		return 0
	}
	return others + countsBins(content)
}

// countsBins is how many bins a distribution in an image claims to have.
func countsBins(r *reader) int {
	var h sketch.Header
	r.byte()
	r.byte()
	r.uvarint()
	r.float()
	if _, err := h.Decode(r.rest); r.bad || err != nil {
		return 0
	}
	return h.Bins
}

func (f *frame) writeUploads(b *blockWriter) {
	if f.format() < formatUploads {
		return
	}
	b.section(sectionUploads)
	b.uvarint(uint64(len(f.uploads)))
	for i := range f.uploads {
		u := &f.uploads[i]
		b.text([]byte(u.namespace))
		b.fixed(u.id)
		b.uvarint(u.bytes)
		b.tick(u.at)
		b.text(u.data)
		b.ended(uint64(i))
	}
}

func (s *State) readUploads(b *blockReader) {
	if b.format < formatUploads {
		return
	}
	b.section(sectionUploads)
	for n := b.uvarint(); n > 0 && b.err == nil; n-- {
		u := upload{namespace: string(b.text(proto.NamespaceLenMax))} // a text is good until the next value is read
		u.id, u.bytes, u.at = b.fixed(), b.uvarint(), b.tick()
		u.data = slices.Clone(b.text(proto.SketchBytesMax))
		last := len(s.uploads) - 1
		switch {
		case b.err != nil:
			return
		case u.id == 0 || len(u.data) == 0 || uint64(len(u.data)) > u.bytes || u.bytes > s.uploads.room(),
			u.at > s.now || last >= 0 && s.uploads[last].at > u.at, s.uploads.find([]byte(u.namespace), u.id) >= 0:
			b.corrupt("an image that comes in pieces")
			return
		}
		s.uploads = append(s.uploads, u)
	}
}
