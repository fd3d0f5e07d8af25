package backup

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

// A backup is restored into fewer shards and into more. Every key is where it belongs and holds what it did; strings
// have their ids, new strings have others; bitmaps by slice have their ids.
func TestRehash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := directory(t.TempDir())
		_, from := newCluster(t, 1, shards)
		fillCluster(t, from)
		m, _ := take(t, from, store)
		want := everything(t, from)
		if _, err := Rehash(t.Context(), store, m, 3, false, directory(t.TempDir())); !errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), "ordered sources (1)") {
			t.Errorf("with sources: %v", err)
		}
		for _, p := range []uint32{3, 8} {
			moved := directory(t.TempDir())
			made, err := Rehash(t.Context(), store, m, p, true, moved)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Rehash(t.Context(), store, m, p, true, directory(t.TempDir()))
			if err != nil || again.ID != made.ID {
				t.Errorf("made again it is %v, not %v: %v", again, made, err)
			}
			cluster, to := newCluster(t, 3, p)
			if _, err := Restore(t.Context(), to, moved, made, nil); err != nil {
				t.Fatal(err)
			}
			checkReplicas(t, cluster)
			if got := everything(t, to); !reflect.DeepEqual(got, want) {
				t.Errorf("in %d shards:\n%v\nnot\n%v", p, got, want)
			}
			checkWritable(t, to)
			if _, err := to.SetNames(t.Context(), "users", "seen/0", "somebody new", "user 3"); err != nil {
				t.Error(err)
			}
			ids, err := to.NameIDs(t.Context(), "users", "user 3", "somebody new")
			if err != nil || ids[0].ID == ids[1].ID {
				t.Errorf("%+v, %v", ids, err)
			}
			checkReplicas(t, cluster)
		}
		for _, p := range []uint32{0, proto.ShardsMax + 1} {
			if _, err := Rehash(t.Context(), store, m, p, true, directory(t.TempDir())); !errors.Is(err, proto.ErrBadRequest) {
				t.Errorf("%d shards: %v", p, err)
			}
		}
	})
}

// everything is what a cluster answers to all there is to ask of what fillCluster wrote.
func everything(t *testing.T, c *client.Client) []string {
	t.Helper()
	ctx := t.Context()
	var out []string
	say := func(err error, what ...any) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(what...))
	}
	for _, ns := range []string{"plain", "users", "people", "default"} {
		for key, err := range c.Keys(ctx, ns, client.KeysQuery{}) {
			say(err, ns, " ", key.Key, " ", key.Kind, " ", key.Total.Value)
		}
	}
	for i := range 40 {
		d, err := c.Top(ctx, "plain", fmt.Sprint("link/", i), 100)
		say(err, "top ", i)
		for _, b := range d.Bins {
			out = append(out, fmt.Sprint(b.Name, " ", b.Count))
		}
	}
	for _, expr := range []string{"cohort/0", "cohort/1", "cohort/2"} {
		b := c.Bitmap("people", client.Bits(expr))
		n, err := b.Count(ctx)
		say(err, expr, n.Count)
		for id, err := range b.IDs(ctx) {
			say(err, id)
		}
	}
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("user ", i), fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
	}
	ids, err := c.NameIDs(ctx, "users", names...)
	say(err, ids)
	for name, err := range c.Bitmap("users", client.Bits("seen/1")).Names(ctx) {
		say(err, name)
	}
	return out
}
