package shard

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// merging is a shard with a namespace n, to which commands are applied one an entry.
type merging struct {
	*State
	t   *testing.T
	now int64
}

func newMerging(t *testing.T, def *ebbv1.Namespace) *merging {
	m := &merging{definedAt(t, def, beginning), t, beginning}
	switches := &ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourSketches}}}
	if r := m.apply(switches); r.Error != nil {
		t.Fatal(r.Error)
	}
	return m
}

func (m *merging) apply(c *ebbv1.Command) *ebbv1.CommandResult {
	m.t.Helper()
	if c.GetBehaviour() == nil {
		c.Namespace = "n"
	}
	r := m.Apply(m.Applied()+1, encodeEntry(m.t, m.now, []*ebbv1.Command{c}), nil)[0]
	audit(m.t, m.State)
	return r
}

func (m *merging) see(in *ebbv1.Increment) {
	m.t.Helper()
	r := m.apply(&ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: &ebbv1.Increments{Increments: []*ebbv1.Increment{in}}}})
	if r.Error != nil || len(r.Refused) > 0 {
		m.t.Fatalf("%v: %v", in, r)
	}
}

func (m *merging) put(p *ebbv1.PutKey) *ebbv1.CommandResult {
	m.t.Helper()
	return m.apply(&ebbv1.Command{Body: &ebbv1.Command_Put{Put: p}})
}

// bring brings an image in pieces.
func (m *merging) bring(id uint64, image []byte, size int) {
	m.t.Helper()
	for at := 0; at < len(image); at += size {
		p := &ebbv1.PutPiece{Upload: id, Offset: uint64(at), Data: image[at:min(at+size, len(image))], Bytes: uint64(len(image))}
		for range 2 { // the same piece again changes nothing
			if r := m.apply(&ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: p}}); r.Error != nil {
				m.t.Fatal(r.Error)
			}
		}
		m.State = reopen(m.t, m.State)
	}
}

func (m *merging) describe(key string) *ebbv1.KeyDescription {
	q := &ebbv1.Question{Namespace: "n", Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: []byte(key), AsOfUs: m.now}}}
	return m.Ask(&ebbv1.ShardQuestion{Question: q}, 0).GetAnswer().GetDescribe()
}

// mergedSettings are namespaces that keys leave and come to.
var mergedSettings = []*ebbv1.Namespace{
	{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE},
	{Name: "n", Version: 1, HalfLifeUs: hourLong},
	{Name: "n", Version: 1, HalfLifeUs: hourLong, Precision: ebbv1.Precision_PRECISION_COMPACT},
	{Name: "n", Version: 1, HalfLifeUs: hourLong, WindowUs: new(hourLong)},
	{Name: "n", Version: 1, HalfLifeUs: hourLong, SlowHalfLifeUs: new(30 * hourLong)},
}

// What is counted in two clusters and merged is what is counted in one: of every kind that merges, in one command or in
// pieces, into a key that is there or not.
func TestImagesMerge(t *testing.T) {
	for i, def := range mergedSettings {
		for kind := ebbv1.Kind_KIND_DISTRIBUTION; kind <= proto.KindMax; kind++ {
			switch kind {
			case ebbv1.Kind_KIND_STRING, ebbv1.Kind_KIND_BITMAP, ebbv1.Kind_KIND_PHRASES:
				continue
			}
			t.Run(fmt.Sprintf("%d %s", i, proto.KindName(kind)), func(t *testing.T) { testImagesMerge(t, def, kind) })
		}
	}
}

func testImagesMerge(t *testing.T, def *ebbv1.Namespace, kind ebbv1.Kind) {
	here, there, whole := newMerging(t, def), newMerging(t, def), newMerging(t, def)
	for i := range 400 {
		in := &ebbv1.Increment{Key: []byte("k"), Bin: fmt.Appendf(nil, "bin%d", i*i%97), Kind: kind, Amount: new(float64(1 + i%3))}
		if kind == ebbv1.Kind_KIND_QUANTILE {
			in.Bin, in.Value = nil, new(float64(1+i%50))
		}
		for _, m := range []*merging{here, there, whole} {
			m.now += hourLong / 300
		}
		whole.see(in)
		if i%5 < 3 {
			here.see(in)
		} else {
			there.see(in)
		}
	}
	export := exported(&there.frame, "n", "k")
	here.bring(7, export.Image, 1+len(export.Image)/3)
	for name, p := range map[string]*ebbv1.PutKey{
		"k":   {What: &ebbv1.PutKey_Upload{Upload: 7}},
		"new": {What: &ebbv1.PutKey_Image{Image: export.Image}},
	} {
		p.Key, p.Merge = []byte(name), true
		if r := here.put(p); r.Error != nil || r.Applied != 1 {
			t.Fatalf("merge into %s: %v", name, r)
		}
	}
	if len(here.uploads) > 0 {
		t.Errorf("the upload is there after its put")
	}
	if again := reopen(t, here.State); again.Checksum() != here.Checksum() {
		t.Errorf("the state changed by a restart")
	}
	if back := exported(&here.frame, "n", "new"); back.Checksum != export.Checksum {
		t.Errorf("an image that merges with nothing has become another")
	}
	a, b := here.describe("k").GetKey(), whole.describe("k").GetKey()
	off := 1e-9*b.GetTotal().GetValue() + 6*math.Hypot(a.GetTotal().GetStdError(), b.GetTotal().GetStdError())
	if a.GetBins() != b.GetBins() || !(b.GetTotal().GetValue() > 0 && math.Abs(a.GetTotal().GetValue()-b.GetTotal().GetValue()) <= off) {
		t.Errorf("%v, and counted in one %v", a, b)
	}
}

// What an image cannot merge with is refused, and the key stays as it was; so does an upload that is not whole.
func TestImagesThatDoNotMerge(t *testing.T) {
	m := newMerging(t, &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong, BinsMax: 3})
	for _, in := range []*ebbv1.Increment{
		{Key: []byte("two"), Bin: []byte("a")},
		{Key: []byte("two"), Bin: []byte("b")},
		{Key: []byte("others"), Bin: []byte("c")},
		{Key: []byte("others"), Bin: []byte("d")},
		{Key: []byte("set"), Bin: []byte("a"), Kind: ebbv1.Kind_KIND_SET},
		{Key: []byte("text"), Text: []byte("a"), Kind: ebbv1.Kind_KIND_STRING},
	} {
		m.see(in)
	}
	images := map[string][]byte{}
	for _, key := range []string{"two", "others", "set", "text"} {
		images[key] = exported(&m.frame, "n", key).Image
	}
	m.bring(9, images["two"][:5], 5)
	m.apply(&ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: &ebbv1.PutPiece{Upload: 10, Data: []byte("x"), Bytes: 2}}})
	upload := func(id uint64) *ebbv1.PutKey { return &ebbv1.PutKey{What: &ebbv1.PutKey_Upload{Upload: id}} }
	image := func(of string) *ebbv1.PutKey { return &ebbv1.PutKey{What: &ebbv1.PutKey_Image{Image: images[of]}} }
	for _, c := range []struct {
		name, into string
		put        *ebbv1.PutKey
		want       ebbv1.Code
	}{
		{"more bins than a key may have", "two", image("others"), ebbv1.Code_CODE_TOO_MANY_BINS},
		{"another kind", "two", image("set"), ebbv1.Code_CODE_WRONG_KIND},
		{"another kind", "set", image("two"), ebbv1.Code_CODE_WRONG_KIND},
		{"a string", "text", image("text"), ebbv1.Code_CODE_UNMERGEABLE},
		{"half an upload", "two", upload(10), ebbv1.Code_CODE_BAD_REQUEST},
		{"no upload", "two", upload(11), ebbv1.Code_CODE_BAD_REQUEST},
		{"an upload that does not decode", "two", upload(9), ebbv1.Code_CODE_BAD_REQUEST},
	} {
		before := exported(&m.frame, "n", c.into).Image
		c.put.Key, c.put.Merge = []byte(c.into), true
		if r := m.put(c.put); r.GetError().GetCode() != c.want {
			t.Errorf("%s: %v", c.name, r)
		}
		if !bytes.Equal(exported(&m.frame, "n", c.into).Image, before) {
			t.Errorf("%s: key %s has changed", c.name, c.into)
		}
	}
}

// Bitmaps and phrases merge exactly: a key then has what either had.
func TestBitmapImagesMerge(t *testing.T) {
	m := newMerging(t, &ebbv1.Namespace{Name: "n", Version: 1, Decay: ebbv1.Decay_DECAY_NONE})
	set := func(key string, ids ...uint64) {
		for _, id := range ids {
			edit := &ebbv1.BitEdit{Key: []byte(key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, []uint64{id})}
			if r := m.apply(&ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &ebbv1.BitEdits{Edits: []*ebbv1.BitEdit{edit}}}}); r.Error != nil {
				t.Fatal(r.Error)
			}
		}
	}
	for i := range uint64(300) {
		set("a", i*7)
		set("b", i*11)
		set("both", i*7, i*11)
	}
	set("b", 1<<40, 1<<40+1<<16)
	set("both", 1<<40, 1<<40+1<<16)
	image := exported(&m.frame, "n", "b").Image
	if r := m.put(&ebbv1.PutKey{Key: []byte("a"), What: &ebbv1.PutKey_Image{Image: image}, Merge: true}); r.Error != nil {
		t.Fatal(r.Error)
	}
	if a, both := exported(&m.frame, "n", "a"), exported(&m.frame, "n", "both"); a.Checksum != both.Checksum {
		t.Errorf("%v and %v", m.describe("a"), m.describe("both"))
	}
	for key, phrase := range map[string]string{"p": "one", "q": "two"} {
		m.see(&ebbv1.Increment{Key: []byte(key), Bin: []byte(phrase), Kind: ebbv1.Kind_KIND_PHRASES})
	}
	image = exported(&m.frame, "n", "q").Image
	if r := m.put(&ebbv1.PutKey{Key: []byte("p"), What: &ebbv1.PutKey_Image{Image: image}, Merge: true}); r.Error != nil {
		t.Fatal(r.Error)
	}
	if got := m.describe("p").GetKey().GetTotal().GetValue(); got != 2 {
		t.Errorf("%v phrases", got)
	}
}

// Uploads have room together for so many bytes, and go ten minutes after their latest piece.
func TestUploadsAreBounded(t *testing.T) {
	m := newMerging(t, &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong})
	piece := func(id uint64, offset int) ebbv1.Code {
		p := &ebbv1.PutPiece{Upload: id, Offset: uint64(offset), Data: []byte("x"), Bytes: proto.LargeImageBytesMax}
		return m.apply(&ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: p}}).GetError().GetCode()
	}
	for i, want := range []ebbv1.Code{0, 0, 0, 0, ebbv1.Code_CODE_OVERLOADED} {
		if code := piece(uint64(1+i), 0); code != want {
			t.Errorf("upload %d: %v", i, code)
		}
	}
	if code := piece(1, 2); code != ebbv1.Code_CODE_BAD_REQUEST {
		t.Errorf("a piece that leaves a gap: %v", code)
	}
	m.now += proto.UploadExpiryUS - 1
	for id := uint64(2); id <= 4; id++ {
		piece(id, 1)
	}
	if code := piece(2, 1); code != 0 || len(m.uploads) != 4 {
		t.Errorf("the next piece: %v, %d uploads", code, len(m.uploads))
	}
	m.now++
	if code := piece(5, 0); code != 0 || len(m.uploads) != 4 || m.uploads[0].id != 3 {
		t.Errorf("after the first one has expired: %v, %d uploads", code, len(m.uploads))
	}
	m.now += proto.UploadExpiryUS
	m.see(&ebbv1.Increment{Key: []byte("k"), Bin: []byte("b")})
	if len(m.uploads) > 0 {
		t.Errorf("%d uploads after all have expired", len(m.uploads))
	}
}

// Before BehaviourSketches a shard does as builds do that know nothing of it.
func TestImagesDoNotMergeBefore(t *testing.T) {
	m := &merging{definedAt(t, &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong}, beginning), t, beginning}
	m.see(&ebbv1.Increment{Key: []byte("k"), Bin: []byte("b")})
	image := exported(&m.frame, "n", "k").Image
	for _, c := range []struct {
		put  *ebbv1.PutKey
		want ebbv1.Code
	}{
		{&ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Image{Image: image}, Merge: true}, 0}, // it holds the same
		{&ebbv1.PutKey{Key: []byte("new"), What: &ebbv1.PutKey_Upload{Upload: 7}}, ebbv1.Code_CODE_BAD_REQUEST},
	} {
		if r := m.put(c.put); r.GetError().GetCode() != c.want || r.Applied != 0 {
			t.Errorf("%v: %v", c.put, r)
		}
	}
	p := &ebbv1.PutPiece{Upload: 7, Data: []byte("x"), Bytes: 2}
	if r := m.apply(&ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: p}}); r.GetError().GetCode() != ebbv1.Code_CODE_BAD_REQUEST {
		t.Errorf("a piece: %v", r)
	}
}

// What is merged is the same in a replica that has restarted, in which a key's bins lie in another order.
func TestMergesAreAlikeAfterARestart(t *testing.T) {
	def := &ebbv1.Namespace{Name: "n", Version: 1, HalfLifeUs: hourLong}
	one, two := newMerging(t, def), newMerging(t, def)
	for _, m := range []*merging{one, two} {
		m.apply(&ebbv1.Command{Body: &ebbv1.Command_Behaviour{Behaviour: &ebbv1.Behaviour{Version: BehaviourMax}}})
		for _, in := range [][2]string{{"other", "b"}, {"k", "a"}, {"k", "b"}} {
			m.see(&ebbv1.Increment{Key: []byte(in[0]), Bin: []byte(in[1])})
		}
		if r := m.apply(deletionOf("other")); r.Applied != 1 {
			t.Fatal(r)
		}
		if m == two {
			m.State = reopen(t, m.State)
		}
		put := &ebbv1.PutKey{Key: []byte("k"), What: &ebbv1.PutKey_Image{Image: exported(&m.frame, "n", "k").Image}, Merge: true}
		if r := m.put(put); r.Error != nil || r.Applied != 1 {
			t.Fatal(r)
		}
	}
	if one.Checksum() != two.Checksum() {
		t.Error("replicas differ")
	}
}
