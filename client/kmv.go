package client

import (
	"context"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// ImportKMV merges the hashes of a set into a key, which then has the members of both. value is a stored value of
// gocountme: k, and the least k hashes in descending order, each 8 bytes in big endian. The namespace must have
// SetHashMurmur3. A second import of the same value changes nothing.
//
// A value with more hashes than the namespace keeps of a set is cut to that number. A value of more than
// proto.ImageBytesMax bytes is sent in pieces, which needs storage version 15.
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
	if err := c.importKMV(ctx, ImportOptions{Namespace: ns, Key: key}, value); err != nil {
		return c.fail(a, err)
	}
	return nil
}

// importKMV puts a value, in pieces if it does not fit into a command.
func (c *Client) importKMV(ctx context.Context, opts ImportOptions, value []byte) error {
	if len(value) <= proto.ImageBytesMax {
		put := &ebbv1.PutKey{Key: []byte(opts.Key), Merge: true, What: &ebbv1.PutKey_Kmv{Kmv: value}}
		return c.command(ctx, opts, &ebbv1.Command{Body: &ebbv1.Command_Put{Put: put}})
	}
	table, err := c.Table(ctx)
	if err != nil {
		return err
	}
	if v := table.GetVersion(); v < proto.VersionAdds {
		return proto.ErrBadRequest.Errorf(
			"a value of %d bytes goes in from storage version %d on, and this cluster has %d: until then the limit "+
				"is %d",
			len(value), proto.VersionAdds, v, proto.ImageBytesMax).
			WithHint("upgrade all nodes: see ebb cluster status")
	}
	return c.putWhole(ctx, opts, value)
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

// kmvTravels refuses an import or export that a node of an older build does not support, and a namespace of another
// hash.
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
