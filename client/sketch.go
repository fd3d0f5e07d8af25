package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// sketchMagic begins each sketch in a file, with the version of the format.
	sketchMagic = "EBBSKETCH\x01"
	// sketchBytesMax bounds the rest of a sketch: an image, and the settings of its namespace.
	sketchBytesMax = proto.SketchBytesMax + 64<<10
	// sketchPieceBytes is how much of a large image is sent at a time.
	sketchPieceBytes = proto.ImageBytesMax / 2
	// sketchPauses bounds how often a command waits for a shard that is behind, or has no room.
	sketchPauses = 20
	// sketchTries bounds how often an export begins again because the key was written between its pieces.
	sketchTries = 8
)

// Sketch is the content of one key of any kind, with the settings of its namespace. Other clusters can import it.
//
// In a file each sketch is independent of the others, so files can be concatenated:
type Sketch struct {
	state *ebbv1.SketchState
}

// Namespace is the namespace that the key was in, with its settings.
func (s *Sketch) Namespace() Namespace { return namespaceOf(s.state.GetNamespace()) }

// Key is the name that the key had.
func (s *Sketch) Key() string { return string(s.state.GetKey()) }

// Kind is what the key holds.
func (s *Sketch) Kind() Kind { return s.state.GetKind() }

// AsOf is the time of the content, by the clock of the namespace.
func (s *Sketch) AsOf() time.Time { return time.UnixMicro(s.state.GetAsOfUs()) }

// Bytes is the size of the key's state.
func (s *Sketch) Bytes() int { return len(s.state.GetImage()) }

// WriteTo writes the sketch in the format of a file.
func (s *Sketch) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	b.WriteString(sketchMagic)
	if _, err := protodelim.MarshalTo(&b, s.state); err != nil {
		return 0, err
	}
	return b.WriteTo(w)
}

// ReadSketch reads the next sketch of a file. The error is io.EOF if there is none, and ErrCorrupt if the next bytes
// are no sketch, or not a whole one.
func ReadSketch(r *bufio.Reader) (*Sketch, error) {
	magic := make([]byte, len(sketchMagic))
	switch n, err := io.ReadFull(r, magic); {
	case err == io.EOF:
		return nil, err
	case n > 0 && !bytes.HasPrefix([]byte(sketchMagic), magic[:min(n, len(sketchMagic)-1)]):
		return nil, proto.ErrCorrupt.Errorf("this is no file of sketches: it does not begin as one").
			WithHint("files of sketches come from ebb sketch export")
	case err != nil:
		return nil, sketchEnds(err)
	case string(magic) != sketchMagic:
		return nil, proto.ErrCorrupt.Errorf("the format of the file of sketches has version %d, and this build reads "+
			"version %d",
			magic[len(magic)-1], sketchMagic[len(magic)-1]).WithHint("read it with a newer build of ebb")
	}
	s := &Sketch{state: &ebbv1.SketchState{}}
	if err := (protodelim.UnmarshalOptions{MaxSize: sketchBytesMax}).UnmarshalFrom(r, s.state); err != nil {
		return nil, sketchEnds(err)
	}
	if xxh3.Hash(s.state.GetImage()) != s.state.GetChecksum() {
		return nil, proto.ErrCorrupt.Errorf("the sketch of key %s has another checksum than it should have",
			keyText(s.Key())).
			WithHint("export it again")
	}
	return s, nil
}

// sketchEnds returns the error for a sketch that cannot be read: the file cannot be read, or its content is wrong.
func sketchEnds(err error) error {
	var tooLarge *protodelim.SizeTooLargeError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return proto.ErrCorrupt.Errorf("the file of sketches ends in the middle of one").WithHint("export it again")
	case errors.As(err, &tooLarge):
		return proto.ErrCorrupt.Errorf("a sketch of %d bytes: the limit is %d", tooLarge.Size, tooLarge.MaxSize)
	case errors.As(err, new(*fs.PathError)):
		return err
	}
	return proto.ErrCorrupt.Errorf("the sketch cannot be read: %v", err)
}

// ExportSketch returns the content of a key, at most proto.SketchBytesMax bytes; for a larger key the error is
// ErrKeyTooLarge. More than proto.LargeImageBytesMax bytes come in several answers: ErrKeyBusy means that the key was
// written between them. The error is ErrKeyNotFound if there is no such key. Keys whose bitmaps are placed by slice, or
// whose ids are of a dictionary, are refused: their state means nothing elsewhere.
func (c *Client) ExportSketch(ctx context.Context, ns, key string) (*Sketch, error) {
	s, err := c.exportSketch(ctx, ns, key)
	if err != nil {
		return nil, c.fail(attempt{op: "export sketch", key: key, start: c.now()}, err)
	}
	return s, nil
}

func (c *Client) exportSketch(ctx context.Context, ns, key string) (*Sketch, error) {
	settings, err := c.settingsOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	if err := c.sketchesTravel(ctx); err != nil {
		return nil, err
	}
	name := []byte(key)
	export, kind, err := c.exportWhole(ctx, ns, name)
	if err != nil {
		return nil, err
	}
	switch {
	case !export.GetFound():
		return nil, proto.ErrKeyNotFound.Errorf("there is no key %s in namespace %s, or all of it has faded",
			keyText(key), settings.GetName())
	case kind == KindBitmap && proto.HasDictionary(settings):
		return nil, proto.ErrBadRequest.Errorf(
			"the ids of bitmap %s stand for strings of namespace %s, and mean nothing elsewhere", keyText(key),
			settings.GetName()).
			WithHint("take its strings to a file: ebb bits export KEY > FILE; ebb bits load KEY FILE puts them into " +
				"another key")
	}
	return &Sketch{&ebbv1.SketchState{
		Namespace: copySettingsNamed(settings), Key: name, Kind: kind, Image: export.GetImage(),
		Checksum: xxh3.Hash(export.GetImage()), AsOfUs: export.GetAsOfUs(),
	}}, nil
}

// exportWhole asks for the content of a key, piece by piece if it is large. If the key was written between two pieces,
// it begins again.
func (c *Client) exportWhole(ctx context.Context, ns string, key []byte) (*ebbv1.KeyExport, Kind, error) {
	for range sketchTries {
		whole, kind, err := c.exportPiece(ctx, ns, key, 0)
		if err != nil {
			return nil, kind, err
		}
		same := true
		for same && uint64(len(whole.GetImage())) < whole.GetBytes() { // an older node gives no size: it has no pieces
			next, _, err := c.exportPiece(ctx, ns, key, uint64(len(whole.GetImage())))
			if err != nil {
				return nil, kind, err
			}
			whole.Image = append(whole.Image, next.GetImage()...)
			same = next.GetBytes() == whole.GetBytes() && next.GetWhole() == whole.GetWhole() &&
				len(next.GetImage()) > 0
		}
		if same {
			return whole, kind, nil
		}
	}
	return nil, 0, proto.ErrKeyBusy.Errorf("key %s was written each of the %d times that its pieces were read",
		keyText(string(key)), sketchTries).
		WithHint("stop writing it for a moment, or take it along in a backup: ebb backup")
}

// exportPiece asks for an image from a byte on, and for the kind of its key.
func (c *Client) exportPiece(ctx context.Context, ns string, key []byte, from uint64) (*ebbv1.KeyExport, Kind, error) {
	answers, err := c.Ask(ctx, []*ebbv1.Question{
		{Namespace: ns, Ask: &ebbv1.Question_Export{Export: &ebbv1.ExportQuestion{
			Key: key, Both: true, Large: true,
			From: &from,
		}}},
		{Namespace: ns, Ask: &ebbv1.Question_Describe{Describe: &ebbv1.DescribeQuestion{Key: key}}},
	})
	if err != nil {
		return nil, 0, err
	}
	for _, a := range answers {
		e := proto.FromWire(a.GetError())
		switch kind := answers[1].GetDescribe().GetKey().GetKind(); {
		case e == nil:
		case e.Code == proto.ErrKeyTooLarge.Code && kind == KindBitmap:
			return nil, 0, e.WithHint("write its ids instead: ebb bits export")
		case e.Code == proto.ErrKeyTooLarge.Code:
			return nil, 0, e.WithHint("take it along in a backup of the cluster: ebb backup")
		default:
			return nil, 0, e
		}
	}
	return answers[0].GetExport(), answers[1].GetDescribe().GetKey().GetKind(), nil
}

// copySettingsNamed returns the settings of a namespace that a sketch has, with the name.
func copySettingsNamed(ns *ebbv1.Namespace) *ebbv1.Namespace {
	out := copySettings(ns)
	out.Name = ns.GetName()
	return out
}

// settingsOf returns the settings of a namespace, as the cluster has them now.
func (c *Client) settingsOf(ctx context.Context, name string) (*ebbv1.Namespace, error) {
	if name == "" {
		name = proto.DefaultNamespace
	}
	all, err := c.listNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	for _, ns := range all.GetNamespaces() {
		if ns.GetName() == name {
			return ns, nil
		}
	}
	for _, gone := range all.GetDeleted() {
		if gone.GetName() == name {
			return nil, proto.ErrDeleted(gone)
		}
	}
	return nil, proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", name).
		WithHint("list those that do: ebb namespace list")
}

// sketchesTravel refuses sketches as long as there may be nodes of an older build, which do not support them.
func (c *Client) sketchesTravel(ctx context.Context) error {
	table, err := c.Table(ctx)
	if err == nil && table.GetVersion() < proto.VersionSketches {
		err = proto.ErrBadRequest.Errorf(
			"sketches go to other clusters from storage version %d on, and this cluster has %d", proto.VersionSketches,
			table.GetVersion()).
			WithHint("upgrade all nodes: see ebb cluster status")
	}
	return err
}

// ImportOptions configure ImportSketch. The zero value is useful.
type ImportOptions struct {
	// Namespace is the namespace to import into; "" for the name of the sketch's namespace.
	Namespace string
	// Create makes the namespace if it does not exist, with the settings of the sketch's namespace.
	Create bool
	// Key is the name that the key gets; "" for the name that it had.
	Key string
	// Replace replaces what the key holds by the sketch, instead of merging both.
	Replace bool
}

// ImportSketch merges a sketch into a key. An existing key then holds the content of both: counts are added, and sets
// and bitmaps united. A string cannot be merged: it needs Replace.
//
// The namespace must have the half-lives, the window and the hash seed of the sketch's namespace, as far as they matter
// to its kind. In a namespace with an event clock the time comes with the sketch.
//
// An import is applied once or not at all, even if it is sent several times. A second import counts again.
func (c *Client) ImportSketch(ctx context.Context, s *Sketch, opts ImportOptions) error {
	if opts.Namespace == "" {
		opts.Namespace = s.state.GetNamespace().GetName()
	}
	if opts.Key == "" {
		opts.Key = s.Key()
	}
	err := c.importSketch(ctx, s, opts)
	if e := coded(err); err != nil && e.Code == proto.ErrUnknownOutcome.Code {
		err = e.WithHint("look at the key before it is imported again: a second import counts it once more")
	}
	if err != nil {
		return c.fail(attempt{op: "import sketch", key: opts.Key, start: c.now()}, err)
	}
	return nil
}

func (c *Client) importSketch(ctx context.Context, s *Sketch, opts ImportOptions) error {
	if err := c.sketchesTravel(ctx); err != nil {
		return err
	}
	settings, err := c.settingsOf(ctx, opts.Namespace)
	if opts.Create && errors.Is(err, ErrNamespaceNotFound) {
		like := &namespaceCopy{
			client: c, from: s.state.GetNamespace().GetName(), to: opts.Namespace,
			settings: s.state.GetNamespace(),
		}
		if err = like.create(ctx, false); err == nil {
			settings, err = c.settingsOf(ctx, opts.Namespace)
		}
	}
	if err != nil {
		return err
	}
	if err := suits(s.state, settings); err != nil {
		return err
	}
	if err := c.takesLarge(ctx, s); err != nil {
		return err
	}
	return c.putWhole(ctx, opts, s.state.GetImage())
}

// putWhole puts an image, or a value of gocountme that is larger than a command, in pieces where it is large.
func (c *Client) putWhole(ctx context.Context, opts ImportOptions, image []byte) error {
	put := &ebbv1.PutKey{Key: []byte(opts.Key), Merge: !opts.Replace, Overwrite: opts.Replace}
	if len(image) <= proto.ImageBytesMax {
		put.What = &ebbv1.PutKey_Image{Image: image}
	} else {
		id := 1 + rand.Uint64N(1<<63)
		if err := c.bring(ctx, opts, id, image); err != nil {
			return err
		}
		put.What = &ebbv1.PutKey_Upload{Upload: id}
	}
	return c.command(ctx, opts, &ebbv1.Command{
		Identity: &ebbv1.Command_IdempotencyKey{IdempotencyKey: c.idempotencyKey()},
		Body:     &ebbv1.Command_Put{Put: put},
	})
}

// takesLarge refuses a sketch that is larger than nodes of an older build accept.
func (c *Client) takesLarge(ctx context.Context, s *Sketch) error {
	if s.Bytes() <= proto.LargeImageBytesMax {
		return nil
	}
	table, err := c.Table(ctx)
	if err == nil && table.GetVersion() < proto.VersionAdds {
		err = proto.ErrKeyTooLarge.Errorf("key %s takes %d bytes: the limit is %d before storage version %d, and "+
			"this cluster has %d",
			keyText(s.Key()), s.Bytes(), proto.LargeImageBytesMax, proto.VersionAdds, table.GetVersion()).
			WithHint("upgrade all nodes: see ebb cluster status")
	}
	return err
}

// suits refuses a sketch that would have another meaning in a namespace.
func suits(s *ebbv1.SketchState, ns *ebbv1.Namespace) error {
	of := s.GetNamespace()
	differs := func(what string) error {
		return proto.ErrBadNamespace.Errorf("the sketch of key %s is of a namespace with another %s than %s has",
			keyText(string(s.GetKey())), what, ns.GetName()).
			WithHint("import it into a namespace like its own: --create-namespace -n NAME makes one")
	}
	switch s.GetKind() {
	case KindString, KindBitmap, KindPhrases:
		return nil
	case KindDistribution, KindMorris, KindQuantile:
	default:
		murmur3 := s.GetKind() == KindSet && proto.ByMurmur3(of)
		switch {
		case s.GetKind() == KindSet && murmur3 != proto.ByMurmur3(ns):
			return differs("set hash")
		case !murmur3 && of.GetHashSeed() != ns.GetHashSeed(): // murmur3 has none
			return differs("hash seed")
		}
	}
	switch {
	case of.GetDecay() != ns.GetDecay():
		return differs("decay")
	case of.GetHalfLifeUs() != ns.GetHalfLifeUs():
		return differs("half-life")
	case s.GetKind() == KindDistribution && of.GetSlowHalfLifeUs() != ns.GetSlowHalfLifeUs():
		return differs("second half-life")
	case s.GetKind() == KindDistinct && of.GetWindowUs() != ns.GetWindowUs():
		return differs("window")
	}
	return nil
}

// bring sends a large image to the shard of a key, in pieces.
func (c *Client) bring(ctx context.Context, opts ImportOptions, id uint64, image []byte) error {
	for at := 0; at < len(image); at += sketchPieceBytes {
		err := c.command(ctx, opts, &ebbv1.Command{Body: &ebbv1.Command_PutPiece{PutPiece: &ebbv1.PutPiece{
			Upload: id, Offset: uint64(at), Data: image[at:min(at+sketchPieceBytes, len(image))],
			Bytes: uint64(len(image)),
		}}})
		if err != nil {
			return err
		}
	}
	return nil
}

// command sends a command to the shard of a key, and waits for the result. To apply the command twice must have the
// same effect as once.
func (c *Client) command(ctx context.Context, opts ImportOptions, cmd *ebbv1.Command) error {
	cmd.Namespace = opts.Namespace
	buf := marshal(cmd)
	for tries := 0; ; tries++ {
		p := &copyPut{key: opts.Key}
		c.applyEach(ctx, opts.Namespace, []*copyPut{p}, [][]byte{buf})
		err := p.err
		if err == nil {
			return nil
		}
		switch code := coded(err).Code; {
		case tries == sketchPauses || ctx.Err() != nil:
			return err
		case code == proto.ErrBadTime.Code, code == proto.ErrOverloaded.Code, code == proto.ErrUnknownOutcome.Code,
			// the shard is about to switch to BehaviourSketches
			code == proto.ErrKeyExists.Code && cmd.GetPut().GetMerge():
		default:
			return err
		}
		if err := c.sleep(ctx, c.backoff(tries+1, err)); err != nil {
			return err
		}
	}
}

// String names the sketch for people.
func (s *Sketch) String() string {
	return fmt.Sprintf("%s %s of namespace %s as of %s, %d bytes", proto.KindName(s.Kind()), keyText(s.Key()),
		s.state.GetNamespace().GetName(), s.AsOf().UTC().Format(time.RFC3339), s.Bytes())
}
