package shard

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fill gives key k so many bins, whose names have some bytes more than their numbers.
func (m *merging) fill(bins, more int) {
	m.t.Helper()
	const some = 1_000
	for first := 0; first < bins; first += some {
		var all []*ebbv1.Increment
		for b := first; b < min(first+some, bins); b++ {
			all = append(all, &ebbv1.Increment{
				Key: []byte("k"),
				Bin: fmt.Appendf(nil, "%s%06d", strings.Repeat("b", more), b),
			})
		}
		c := &ebbv1.Command{
			Namespace: "n",
			Body:      &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: all}},
		}
		if r := m.Apply(m.Applied()+1, encodeEntry(m.t, m.now, []*ebbv1.Command{c}), nil)[0]; r.Error != nil ||
			len(r.Refused) > 0 {
			m.t.Fatal(r)
		}
	}
}

// newLargest is a shard of the newest behaviour.
func newLargest(t *testing.T, def *ebbv1.Namespace) *merging {
	m := newMerging(t, def)
	m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourMax}}})
	return m
}

// pieces exports a key piece by piece.
func (m *merging) pieces(key string) (image []byte, last *ebbv1.KeyExport, refused *ebbv1.Error) {
	for from := uint64(0); ; from = uint64(len(image)) {
		a := m.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Export{
			Export: &ebbv1.ExportQuestion{Key: []byte(key), Both: true, Large: true, From: &from},
		}}}, 0)
		if last = a.GetAnswer().GetExport(); a.GetError() != nil || len(last.GetImage()) == 0 {
			return image, last, a.GetError()
		}
		if n := len(last.Image); n > proto.LargeImageBytesMax {
			m.t.Fatalf("a piece of %d bytes", n)
		}
		image = append(image, last.Image...)
	}
}

// A distribution of as many bins as a namespace allows where nothing is said goes from shard to shard, with long names.
func TestTheLargestDistributionTravels(t *testing.T) {
	def := &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE, BinsMax: proto.BinsMaxDefault}
	here, there := newLargest(t, def), newLargest(t, def)
	here.fill(proto.BinsMaxDefault, 130)
	image, last, refused := here.pieces("k")
	if refused != nil || len(image) <= 3*proto.LargeImageBytesMax || uint64(len(image)) != last.Bytes {
		t.Fatalf("%d bytes of %d: %v", len(image), last.GetBytes(), refused)
	}
	const piece = 120 << 10
	for range 2 {
		for at := 0; at < len(image); at += piece {
			p := &ebbv1.PutPiece{
				Upload: 7, Offset: uint64(at), Data: image[at:min(at+piece, len(image))],
				Bytes: uint64(len(image)),
			}
			c := &ebbv1.Command{Namespace: "n", Body: &ebbv1.Command_PutPiece{PutPiece: p}}
			if r := there.Apply(there.Applied()+1, encodeEntry(t, there.now, []*ebbv1.Command{c}),
				nil)[0]; r.Error != nil {
				t.Fatal(r.Error)
			}
		}
		there.State = reopen(t, there.State) // a piece of a snapshot is as large
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		if r := there.put(&ebbv1.PutKey{
			Key: []byte("k"), What: &ebbv1.PutKey_Upload{Upload: 7},
			Merge: true,
		}); r.Error != nil {
			t.Fatal(r.Error)
		}
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		t.Logf("%d bytes: %v, %d bytes allocated", len(image), took, after.TotalAlloc-before.TotalAlloc)
	}
	if got := there.describe("k").GetKey(); got.GetTotal().GetValue() != 2*proto.BinsMaxDefault ||
		got.GetBins() != proto.BinsMaxDefault {
		t.Errorf("%v", got)
	}
	if len(there.uploads) > 0 {
		t.Errorf("%d uploads", len(there.uploads))
	}
}

// A key whose image fits without what is counted under the second half-life, and not with it, is not exported as if
// there was no second count. In pieces it travels whole.
func TestTheSecondHalfLifeIsNotLeftOut(t *testing.T) {
	const day = 86_400 * second
	slow := int64(300 * day)
	def := &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: 30 * day, SlowHalfLifeUs: &slow}
	m := newLargest(t, def)
	m.fill(16_000, 130)
	a := m.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Export{
		Export: &ebbv1.ExportQuestion{Key: []byte("k"), Both: true, Large: true},
	}}}, 0)
	if got := a.GetError().GetCode(); got != ebbv1.Code_CODE_KEY_TOO_LARGE {
		t.Errorf("in one piece: %d bytes, %v", len(a.GetAnswer().GetExport().GetImage()), got)
	}
	image, _, refused := m.pieces("k")
	if refused != nil || image[1] != imageBothVersion || len(image) <= proto.LargeImageBytesMax {
		t.Fatalf("in pieces: %d bytes, %v", len(image), refused)
	}
}

// An image in pieces is bounded: by its bytes, and where it is larger than one of before, by its bins.
func TestTheLargestImagesAreBounded(t *testing.T) {
	def := &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE, BinsMax: proto.BinsMaxLimit}
	code := func(m *merging, bytes uint64) ebbv1.Code {
		p := &ebbv1.PutPiece{Upload: bytes, Data: []byte("x"), Bytes: bytes}
		return m.apply(&ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: p}}).GetError().GetCode()
	}
	for _, tt := range []struct {
		behaviour uint32
		most      uint64
	}{{BehaviourGoneBack, proto.LargeImageBytesMax}, {BehaviourAdds, proto.SketchBytesMax}} {
		m := newMerging(t, def)
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: tt.behaviour}}})
		if got := code(m, tt.most+1); got != ebbv1.Code_CODE_KEY_TOO_LARGE {
			t.Errorf("behaviour %d, %d bytes: %v", tt.behaviour, tt.most+1, got)
		}
		if got := code(m, tt.most); got != 0 {
			t.Errorf("behaviour %d, %d bytes: %v", tt.behaviour, tt.most, got)
		}
	}
	for bins, want := range map[int]ebbv1.Code{uploadBinsMax: 0, uploadBinsMax + 1: ebbv1.Code_CODE_KEY_TOO_LARGE} {
		m := newLargest(t, def)
		m.fill(bins, 1)
		image, _, refused := m.pieces("k")
		if refused.GetCode() != want {
			t.Errorf("%d bins: %v", bins, refused)
		}
		if want == 0 && imageBins(image) != bins {
			t.Errorf("%d bytes have %d bins, not %d", len(image), imageBins(image), bins)
		}
	}
}

// What the two half-lives of a key count are bins of its image together.
func TestBinsOfImages(t *testing.T) {
	for def, want := range map[*ebbv1.Namespace]int{
		{Name: "n", Version: 1, HalfLifeUs: hourLong}:                                     20,
		{Name: "n", Version: 1, HalfLifeUs: hourLong, SlowHalfLifeUs: new(30 * hourLong)}: 40,
		{Name: "n", Version: 1, HalfLifeUs: hourLong, Kind: ebbv1.Kind_KIND_COUNTMIN}:     0,
	} {
		m := newLargest(t, def)
		m.fill(20, 3)
		if image, _, refused := m.pieces("k"); refused != nil || len(image) == 0 || imageBins(image) != want {
			t.Errorf("%v: %d bins, not %d: %v", def, imageBins(image), want, refused)
		}
	}
}

// A replica that restarts knows an image that is coming in pieces, also one that is larger than a block of a snapshot.
func TestUploadsOutliveARestart(t *testing.T) {
	def := &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE}
	here, there := newMerging(t, def), newMerging(t, def)
	here.fill(5_000, 120)
	q := &ebbv1.ExportQuestion{Key: []byte("k"), Both: true, Large: true}
	image := here.Ask(&ebbv1.ShardQuestion{Question: &ebbv1.Question{
		Namespace: "n",
		Ask:       &ebbv1.Question_Export{Export: q},
	}}, 0).
		GetAnswer().GetExport().GetImage()
	if len(image) <= blockBytesMax {
		t.Fatalf("%d bytes", len(image))
	}
	there.bring(7, image, 200<<10)
	if r := there.put(&ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Upload{Upload: 7}}); r.Error != nil ||
		r.Applied != 1 {
		t.Errorf("%v", r)
	}
}
