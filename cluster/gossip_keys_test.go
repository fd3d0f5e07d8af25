package cluster_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
)

// gossipKey is a key made of a letter.
func gossipKey(letter byte) []byte { return bytes.Repeat([]byte{letter}, 32) }

func line(key []byte) string { return base64.StdEncoding.EncodeToString(key) + "\n" }

func TestGossipKeysInAFile(t *testing.T) {
	a, b := gossipKey('a'), gossipKey('b')
	var nine strings.Builder
	for i := range byte(9) {
		nine.WriteString(line(gossipKey('a' + i)))
	}
	for name, c := range map[string]struct {
		text string
		want [][]byte
		err  string // "" for none
	}{
		"one":                    {line(a), [][]byte{a}, ""},
		"two, with remarks":      {"# of March\n" + line(b) + "\r\n  " + line(a), [][]byte{b, a}, ""},
		"none":                   {"# none yet\n", nil, "there is no key"},
		"not base64":             {line(a) + "secret!\n", nil, "line 2 is not base64"},
		"AES-128":                {line(a[:16]), nil, "line 1 is a key of 16 bytes: it must have 32"},
		"one twice":              {line(a) + line(b) + line(a), nil, "line 3 is a key that is there already"},
		"more than anybody uses": {nine.String(), nil, "more than 8 keys"},
	} {
		got, err := cluster.ParseGossipKeys([]byte(c.text))
		if !slices.EqualFunc(got, c.want, bytes.Equal) {
			t.Errorf("%s: %x", name, got)
		}
		if (err == nil) != (c.err == "") || err != nil && (!errors.Is(err, proto.ErrBadRequest) || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

// Nodes with a key meet; those with another, or with none, hear nothing and are not heard.
func TestUnknownKeysAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		for i := range 2 {
			name := fmt.Sprintf("ebb-%d", i)
			v.openSealed([][]byte{gossipKey('a')}, name, name, 1, ip(i), ip(0)+gossipPort)
		}
		v.within(10*time.Second, "two meet", v.allSee("ebb-0", "ebb-1"))
		outsiders := []*cluster.Gossip{
			v.openSealed([][]byte{gossipKey('x')}, "other key", "ebb-2", 1, ip(2), ip(0)+gossipPort, ip(1)+gossipPort),
			v.open("no key", "ebb-3", 1, ip(3), ip(0)+gossipPort, ip(1)+gossipPort),
		}
		time.Sleep(time.Minute)
		for name, want := range map[string][]string{"ebb-0": {"ebb-0", "ebb-1"}, "ebb-1": {"ebb-0", "ebb-1"}, "other key": {"ebb-2"}, "no key": {"ebb-3"}} {
			if got := alive(v.nodes[name]); !slices.Equal(got, want) {
				t.Errorf("%s sees %v, want %v", name, got, want)
			}
		}
		for _, s := range outsiders {
			if err := s.SetKeys(nil); !errors.Is(err, proto.ErrBadRequest) {
				t.Errorf("no keys at all: %v", err)
			}
		}
		if err := outsiders[1].SetKeys([][]byte{gossipKey('a')}); !errors.Is(err, proto.ErrBadRequest) {
			t.Errorf("keys for gossip that was opened without: %v", err)
		}
	})
}

// A key is replaced in three steps, node by node and with a pause in each: added behind the old one, put before it, the
// old one taken out. All nodes see each other all the time, and in the end whoever has only the old key is refused.
func TestKeysAreRotatedWhileNodesGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVillage(t)
		names := []string{"ebb-0", "ebb-1", "ebb-2"}
		old, next, between := gossipKey('a'), gossipKey('b'), gossipKey('c')
		for i, name := range names {
			v.openSealed([][]byte{old}, name, name, 1, ip(i), ip(0)+gossipPort)
		}
		v.within(10*time.Second, "three meet", v.allSee(names...))
		see := v.allSee(names...)
		for _, step := range [][][]byte{{old, between, next}, {next, old, between}, {next, between}, {next}} {
			for _, name := range names {
				if err := v.nodes[name].SetKeys(step); err != nil {
					t.Fatal(err)
				}
				for range 200 { // long enough to be taken for dead
					time.Sleep(100 * time.Millisecond)
					if !see() {
						t.Fatalf("after %s got %d keys: not all see all", name, len(step))
					}
				}
			}
		}
		v.openSealed([][]byte{old}, "late", "ebb-3", 1, ip(3), ip(0)+gossipPort)
		v.openSealed([][]byte{next}, "ebb-4", "ebb-4", 1, ip(4), ip(0)+gossipPort)
		time.Sleep(30 * time.Second)
		if got, want := alive(v.nodes["ebb-1"]), []string{"ebb-0", "ebb-1", "ebb-2", "ebb-4"}; !slices.Equal(got, want) {
			t.Errorf("after the rotation ebb-1 sees %v, want %v", got, want)
		}
	})
}
