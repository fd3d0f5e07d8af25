package shard

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// An image is what a key holds, in bytes that another shard of the same cluster understands. Equal contents have equal
// images except for their time: bins are in the order of their names, whatever their ids.
//
//	image    'K' version(1) uvarint(at) content     at: the clock of the namespace when it was taken
//	content  uvarint(expiry) form ...               0: it does not expire
//	  of a distribution
//	         decay(1) flags(1) uvarint(half-life) threshold   flags: 1 negative amounts, 2 compact
//	         distribution { uvarint(len) name }     bin i has name i
//	  of another kind
//	         body
//
// The image of a distribution in a namespace with a second half-life has both counts:
//
//	image    'K' version(2) uvarint(at) uvarint(len) content exposed exposed counts
//	exposed  uvarint(began) uvarint(from) had     of the namespace, and of its slow namespace; had is a double, little endian
//	counts   decay(1) ...                         of the slow namespace, as in content; without bins if it has none
//
// The checksum is XXH3-64 of the content, in both versions. For a slow key it is the hash of the counts, with the time
// at which the key expires as the seed. An export returns that checksum too where the second half-life is the longer
// one, see lasting.
const (
	imageMagic       = 'K'
	imageVersion     = 1
	imageBothVersion = proto.ImageBothVersion

	flagCompact = 2
)

type image struct {
	at       sketch.Tick
	expiry   sketch.Tick
	params   sketch.Params // of a distribution: what Convert needs to know
	dist     sketch.Distribution
	names    [][]byte
	body     body
	checksum uint64
	signed   bool // there are negative counts
	kept     bool // its namespace had the key before: limits on one key that became smaller since do not apply
	slow     bool // it is the image of a slow key
	other    *imageOther
}

// imageOther is the part of a version 2 image that is about the second half-life.
type imageOther struct {
	own, slow watched
	counts    image  // of the slow namespace
	checksum  uint64 // of the image, if it is one of a slow key
}

// watched is the time since when a namespace has counted, and its exposure.
type watched struct {
	began    sketch.Tick
	exposure sketch.Exposure
}

// export returns the image and the checksum of a key that was found.
func (f *frame) export(ns *namespace, key uint32) (raw []byte, checksum uint64) {
	raw, checksum, _ = f.exportContent(ns, key)
	return raw, checksum
}

// exportContent is export, and also returns the content of the image, which shares its memory.
func (f *frame) exportContent(ns *namespace, key uint32) (raw []byte, checksum uint64, content []byte) {
	raw = append([]byte(nil), imageMagic, imageVersion)
	raw = binary.AppendUvarint(raw, uint64(ns.clock(f.now)))
	head := len(raw)
	raw = f.appendContent(raw, ns, key)
	if f.lasting(ns, key) != key || f.isSlow(ns, key) {
		return raw, f.checksum(ns, key), raw[head:]
	}
	return raw, xxh3.Hash(raw[head:]), raw[head:]
}

// exportBoth returns the image of a key with the count under the second half-life. It returns nil if there is no second
// half-life, or if the image is larger than most. Without since, the image does not say when counting began.
func (f *frame) exportBoth(ns *namespace, name []byte, content []byte, most int, since bool) []byte {
	slow := f.slowOf(ns)
	if slow == nil {
		return nil
	}
	raw := binary.AppendUvarint([]byte{imageMagic, imageBothVersion}, uint64(ns.clock(f.now)))
	raw = binary.AppendUvarint(raw, uint64(len(content)))
	raw = append(raw, content...)
	for _, side := range []*namespace{ns, slow} {
		if since {
			raw = side.appendWatched(raw)
		} else {
			raw = appendWatched(raw, 0, sketch.Exposure{})
		}
	}
	key, ok := f.findKey(slow, name)
	if !ok || !f.alive(slow, key, slow.clock(f.now)) {
		return f.appendCounts(raw, slow, &summary{era: slow.presentEra()})
	}
	if f.imageLeast(key) > most {
		return nil
	}
	sum := f.summary(key)
	return f.appendCounts(raw, slow, &sum)
}

func (ns *namespace) appendWatched(b []byte) []byte {
	began, exposure := ns.watched()
	return appendWatched(b, began, exposure)
}

func (f *frame) appendContent(b []byte, ns *namespace, key uint32) []byte {
	sum := f.counted(ns, key)
	b = binary.AppendUvarint(b, uint64(f.expiries.at(key)))
	if sum.body != nil {
		return sum.body.appendBinary(append(b, byte(sum.body.form())))
	}
	return f.appendCounts(append(b, byte(formDistribution)), ns, &sum)
}

// appendCounts appends a distribution, with the settings under which its values were counted.
func (f *frame) appendCounts(b []byte, ns *namespace, sum *summary) []byte {
	d, p := f.present(ns, sum, ns.clock(f.now)), ns.params()
	if d == nil {
		d = new(sketch.Distribution)
	}
	flags := byte(0)
	if p.AllowNegative {
		flags |= flagNegative
	}
	if p.Compact {
		flags |= flagCompact
	}
	b = append(b, byte(p.Decay), flags)
	b = binary.AppendUvarint(b, uint64(p.HalfLife))
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(p.Threshold))
	bins := sortedBins(d)
	slices.SortFunc(bins, func(x, y uint32) int { return bytes.Compare(f.binName(x), f.binName(y)) })
	rank := make(map[uint32]uint32, len(bins))
	for i, bin := range bins {
		rank[bin] = uint32(i)
	}
	var ranked sketch.Distribution
	ranked.Merge(p, d, func(bin uint32) uint32 { return rank[bin] })
	b = ranked.AppendBinary(b)
	for _, bin := range bins {
		b = appendText(b, string(f.binName(bin)))
	}
	return b
}

const (
	// comparableMax is how large a key may be that is compared with a checksum. All builds must apply the same limit:
	// it is the first value of proto.ImageBytesMax, and more than fits a command. From BehaviourAdds on the key may be
	// as large as an image that goes to another shard in pieces.
	comparableMax = 252 << 10
	// comparedMax is how many bytes of keys the commands of one entry may compare with checksums. The first may compare
	// more.
	comparedMax = 8 * comparableMax
)

// comparable is how large a key may be that is compared with a checksum.
func (f *frame) comparable() int {
	if f.behaviour < BehaviourAdds {
		return comparableMax
	}
	return proto.LargeImageBytesMax
}

// compare says whether a key has a checksum, as sort computes it. A key that is too large for an image has none. The
// cost depends on what the key holds, not on the few bytes of the command. So all comparisons of an entry share one
// budget.
func (s *State) compare(
	ns *namespace, key uint32, checksum uint64, sort func(*namespace, uint32) uint64,
) (same bool, err *proto.Error) {
	cost := max(s.imageLeast(key), s.imageLeast(s.lasting(ns, key)))
	if cost > s.comparable() {
		return false, nil
	}
	if b := s.summary(key).body; b != nil && b.form() != formBitmap {
		cost = s.held(b)
	}
	if s.compared > 0 && s.compared+cost > comparedMax {
		return false, proto.ErrOverloaded.Errorf("an entry of the log of shard %d compares keys of more than %d bytes with checksums", s.id, comparedMax).
			WithHint("try again, in a command of its own")
	}
	s.compared += max(cost, 1)
	return sort(ns, key) == checksum, nil
}

// leastBin is the fewest bytes that a bin takes in an image: an id, a count, and a name with its length.
const leastBin = 1 + 4 + 2

// imageLeast is a lower bound for the bytes of a key's image.
func (f *frame) imageLeast(key uint32) int {
	if r := f.summaries.record(key); r.form() != recordBitmap {
		return leastBin * r.bins()
	}
	sum := f.summary(key)
	return sum.bitmap().size()
}

// decodeImage reads what export wrote. room returns how much memory a body of a form may take, given the length of its
// encoding. convert finds all else that a namespace cannot have. newest is the version up to which the log allows
// images.
func decodeImage(raw []byte, newest byte, room func(f form, bytes int) int) (*image, bool) {
	r := reader{rest: raw}
	magic, version := r.byte(), r.byte()
	if magic != imageMagic || version < imageVersion || version > newest {
		return nil, false
	}
	img := &image{at: sketch.Tick(r.uvarint())}
	if img.at < 0 || img.at > clockMax {
		return nil, false
	}
	if version == imageVersion {
		return img, !r.bad && img.decodeContent(r.rest, room)
	}
	content := r.bytes()
	return img, !r.bad && img.decodeContent(content, room) && img.body == nil && img.decodeOther(&r)
}

func (img *image) decodeContent(content []byte, room func(f form, bytes int) int) bool {
	r := reader{rest: content}
	img.checksum = xxh3.Hash(content)
	img.expiry = sketch.Tick(r.uvarint())
	f := form(r.byte())
	if r.bad || img.expiry < 0 || img.expiry > clockMax {
		return false
	}
	if f != formDistribution {
		ok := false
		img.body, ok = decodeBodyWithin(f, r.rest, room(f, len(r.rest)))
		return ok && storable(img.body)
	}
	return img.decodeDistribution(&r)
}

// storable says whether a key can hold a body. Shards of older builds do not know the sets that only answers have.
func storable(b body) bool {
	set, is := b.(*setDecayed)
	return !is || set.Params().K <= sketch.SetDecayedKMax
}

// ofMergedBloom says whether a body is a Bloom filter merged from several, which a key can hold from BehaviourAdds on.
func ofMergedBloom(b body) bool {
	f, is := b.(*bloom)
	return is && f.Merged()
}

// decodeOther reads what only an image of version 2 has.
func (img *image) decodeOther(r *reader) bool {
	img.other = new(imageOther)
	img.other.own = img.decodeWatched(r)
	img.other.slow = img.decodeWatched(r)
	img.other.checksum = slowChecksum(img.expiry, r.rest)
	return !r.bad && img.other.counts.decodeDistribution(r)
}

// decodeWatched reads an exposure, which cannot have begun after the time of the image.
func (img *image) decodeWatched(r *reader) watched {
	w := watched{sketch.Tick(r.uvarint()), sketch.Exposure{From: sketch.Tick(r.uvarint()), Had: r.float()}}
	for _, t := range []sketch.Tick{w.began, w.exposure.From} {
		r.bad = r.bad || t < 0 || t > img.at
	}
	r.bad = r.bad || !(w.exposure.Had >= 0 && w.exposure.Had <= math.MaxFloat64)
	return w
}

func (img *image) decodeDistribution(r *reader) bool {
	p := &img.params
	p.Decay = sketch.Decay(r.byte())
	flags := r.byte()
	p.AllowNegative, p.Compact = flags&flagNegative != 0, flags&flagCompact != 0
	p.HalfLife, p.Threshold = sketch.Tick(r.uvarint()), r.float()
	p.Floor = sketch.Prune // it does not matter to Convert
	if r.bad || !validParams(p) {
		return false
	}
	rest, err := img.dist.Decode(r.rest)
	if err != nil {
		return false
	}
	r.rest = rest
	for i, bin := range sortedBins(&img.dist) {
		name := r.bytes()
		if bin != uint32(i) || len(name) == 0 || len(name) > proto.BinLenMax || i > 0 && bytes.Compare(img.names[i-1], name) >= 0 {
			return false
		}
		img.names = append(img.names, name)
	}
	return !r.bad && len(r.rest) == 0
}

// convert converts the image to a namespace's present settings, and refuses one that cannot have been written in it by
// clock. byClock says that no value is of a later time, see BehaviourImages.
func (img *image) convert(ns *namespace, clock sketch.Tick, byClock bool) *proto.Error {
	p := ns.params()
	img.params.Bounded = p.Bounded
	switch {
	case img.body != nil && (p.Decay == sketch.Linear || !img.body.suits(ns) || img.body.last() > clock):
		return proto.ErrBadRequest.Errorf("the image is of a %s that namespace %s cannot have", proto.KindName(img.body.form().kind()), quote([]byte(ns.definition.GetName())))
	case img.body != nil:
		return nil
	case img.dist.Last() > clock || !img.dist.Suits(&img.params, clock, true):
		return proto.ErrBadRequest.Errorf("the image is of a distribution that namespace %s cannot have", quote([]byte(ns.definition.GetName())))
	case img.dist.Len() > p.BinsMax && !img.kept:
		return proto.ErrTooManyBins.Errorf("the image has %d bins: bins_max of its namespace is %d", img.dist.Len(), p.BinsMax)
	}
	img.params.OrderFree = p.OrderFree
	img.signed = !img.dist.Suits(&img.params, clock, false)
	if q := &img.params; q.Decay != p.Decay || q.HalfLife != p.HalfLife || q.Threshold != p.Threshold || q.Compact != p.Compact || q.AllowNegative != p.AllowNegative {
		from := ns.present().from
		if byClock { // of a namespace without events it is a time of the machine
			from = min(from, clock)
		}
		img.dist.Convert(q, p, max(from, img.dist.Last()))
	}
	return nil
}

// over says whether nothing is left of the image.
func (img *image) over(p *sketch.Params, at sketch.Tick) bool {
	sum := summary{dist: img.dist, body: img.body}
	return img.expiry != 0 && img.expiry <= at || sum.over(p, at)
}

// slowly makes the image one of a slow key, since nothing is left of the first count. It returns false if nothing is
// left of the other count either.
func (img *image) slowly(slow *sketch.Params, at sketch.Tick) bool {
	if img.expiry != 0 && img.expiry <= at || img.other.counts.over(slow, at) {
		return false
	}
	img.slow, img.dist, img.names, img.checksum = true, sketch.Distribution{}, nil, img.other.checksum
	return true
}

func (f *frame) askExport(q *ebbv1.ShardQuestion, ask *ebbv1.ExportQuestion) *ebbv1.ShardAnswer {
	ns := f.lookup([]byte(q.Question.Namespace))
	out, most := &ebbv1.KeyExport{AsOfUs: int64(f.evaluation(ns, 1, 0))}, imageMost(q.Question.Ask)
	if ns != nil {
		if key, ok := f.there(ns, ask.Key, ns.clock(f.now)); ok && (ask.Both || !f.isSlow(ns, key)) {
			if ask.Kmv {
				return f.askKMV(ns, key, out)
			}
			if n := f.imageLeast(key); n > most {
				return f.unanswered(keyTooLarge(ask.Key, n, most))
			}
			out.Found = true
			var content []byte
			out.Image, out.Checksum, content = f.exportContent(ns, key)
			since := !ask.SameNamespace || !ns.onEventTime()
			if sum := f.summary(key); ask.Both && sum.body == nil {
				both := f.exportBoth(ns, ask.Key, content, most, since)
				switch fits := both != nil && (len(both) <= most || f.isSlow(ns, key)); {
				case fits:
					out.Image = both
				case (ask.From != nil || ask.Large) && f.slowOf(ns) != nil: // half of it would be taken for all
					return f.unanswered(keyTooLarge(ask.Key, max(len(both), most+1), most))
				}
			}
		}
	}
	if n := len(out.Image); n > most {
		return f.unanswered(keyTooLarge(ask.Key, n, most))
	}
	if n := imageBins(out.Image); len(out.Image) > proto.LargeImageBytesMax && n > uploadBinsMax {
		return f.unanswered(uploadBins(len(out.Image), n))
	}
	if ask.From != nil && ask.Large && out.Found {
		cutExport(out, ask.GetFrom())
	}
	return &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: &ebbv1.Answer{Value: &ebbv1.Answer_Export{Export: out}}}, AsOfUs: out.AsOfUs}
}

// cutExport leaves the piece of an image that one answer has, and records the size and the hash of the whole. The same
// image at another time has the same bytes after the time, and so the same hash.
func cutExport(out *ebbv1.KeyExport, from uint64) {
	raw := out.Image
	_, time := binary.Uvarint(raw[2:])
	out.Bytes, out.Whole = uint64(len(raw)), xxh3.Hash(raw[2+time:])
	from = min(from, uint64(len(raw)))
	out.Image = slices.Clone(raw[from:min(from+proto.LargeImageBytesMax, uint64(len(raw)))])
}

func keyTooLarge(key []byte, n, most int) *proto.Error {
	return proto.ErrKeyTooLarge.
		Errorf("key %s takes %d bytes or more: the limit of what goes from one shard to another is %d", quote(key), n, most)
}
