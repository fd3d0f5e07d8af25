package client

import (
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// ImportKMV brings the hashes of a set into a key, which then has the members of both: a stored value of gocountme,
// which is k and the least k hashes from the largest on, each 8 bytes in big endian. The namespace must have
// SetHashMurmur3. A second import of the same value changes nothing.
//
// A value with more hashes than the namespace keeps of a set is cut to that.
func (c *Client) ImportKMV(ctx context.Context, ns, key string, value []byte) error {
	a := attempt{op: "import kmv", key: key, start: c.now()}
	if err := c.kmvTravels(ctx, ns); err != nil {
		return c.fail(a, err)
	}
	if err := proto.CheckKMV(value); err != nil {
		return c.fail(a, err)
	}
	if len(value) == 8 {
		return nil // a set without members is one that is not there
	}
	value, err := c.leastHashes(ctx, ns, key, value)
	if err != nil {
		return c.fail(a, err)
	}
	put := &ebbv1.PutKey{Key: []byte(key), Merge: true, What: &ebbv1.PutKey_Kmv{Kmv: value}}
	err = c.command(ctx, ImportOptions{Namespace: ns, Key: key}, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}})
	if err != nil {
		return c.fail(a, err)
	}
	return nil
}

// leastHashes is a value that fits one command: of more hashes the least, as many as a set of any namespace keeps.
func (c *Client) leastHashes(ctx context.Context, ns, key string, value []byte) ([]byte, error) {
	if len(value) <= proto.ImageBytesMax {
		return value, nil
	}
	settings, err := c.settingsOf(ctx, ns)
	if err != nil {
		return nil, err
	}
	if settings.GetDecay() != DecayNone {
		return nil, proto.ErrKeyTooLarge.Errorf("the value for key %s takes %d bytes: the limit where sets forget is %d",
			keyText(key), len(value), proto.ImageBytesMax).
			WithHint("import it into a namespace without decay: ebb namespace create NAME --set-hash murmur3 --decay none")
	}
	const kept = 8 * (proto.SetMembersMax + 1)
	return append(proto.AppendKMV(nil, proto.SetMembersMax+1), value[len(value)-kept:]...), nil
}

// ExportKMV returns the hashes of a set as ImportKMV takes them. The error is ErrKeyNotFound if there is no such key.
func (c *Client) ExportKMV(ctx context.Context, ns, key string) ([]byte, error) {
	a := attempt{op: "export kmv", key: key, start: c.now()}
	if err := c.kmvTravels(ctx, ns); err != nil {
		return nil, c.fail(a, err)
	}
	answers, err := c.Ask(ctx, []*ebbv1.Question{{Namespace: ns, Ask: &ebbv1.Question_Export{
		Export: &ebbv1.ExportQuestion{Key: []byte(key), Kmv: true},
	}}})
	if err == nil {
		if e := proto.FromWire(answers[0].GetError()); e != nil {
			err = e
		}
	}
	if err != nil {
		return nil, c.fail(a, err)
	}
	if !answers[0].GetExport().GetFound() {
		return nil, c.fail(a, proto.ErrKeyNotFound.Errorf("there is no key %s, or all of it has faded", keyText(key)))
	}
	return answers[0].GetExport().GetImage(), nil
}

// kmvTravels refuses what a node of an older build does not know, and a namespace of another hash.
func (c *Client) kmvTravels(ctx context.Context, ns string) error {
	table, err := c.Table(ctx)
	if err != nil {
		return err
	}
	if v := table.GetVersion(); v < proto.VersionSetHash {
		return proto.ErrBadRequest.Errorf(
			"hashes of sets go in and out from storage version %d on, and this cluster has %d",
			proto.VersionSetHash, v).
			WithHint("upgrade all nodes: see ebb cluster status")
	}
	settings, err := c.settingsOf(ctx, ns)
	if err != nil {
		return err
	}
	if !proto.ByMurmur3(settings) {
		return proto.ErrBadNamespace.Errorf(
			"namespace %s hashes the members of sets by a seed of its own: its hashes do not go out, nor others in",
			settings.GetName()).
			WithHint("use one with the hash of gocountme: ebb namespace create NAME --set-hash murmur3 --decay none")
	}
	return nil
}
