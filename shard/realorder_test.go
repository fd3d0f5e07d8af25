//go:build !race

package shard

import (
	"bufio"
	"compress/gzip"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// realStream is a stream of events that happened.
type realStream struct {
	file     string
	key, bin string // columns
	halfLife time.Duration
}

// events reads the stream; times are in seconds.
func (r *realStream) events(t *testing.T) (out []orderEvent) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "shared", "data", r.file))
	if os.IsNotExist(err) {
		t.Skipf("%s is not here: it is no part of the repository", r.file)
	} else if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(plain)
	lines.Scan()
	header := strings.Split(lines.Text(), "\t")
	when, key, bin := slices.Index(header, "t"), slices.Index(header, r.key), slices.Index(header, r.bin)
	for lines.Scan() {
		row := strings.Split(lines.Text(), "\t")
		at, err := strconv.ParseInt(row[when], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		e := orderEvent{key: "all", bin: row[bin], at: at * second, n: 1}
		if key >= 0 {
			e.key = row[key]
		}
		if e.key == "" || e.bin == "" {
			continue // unknown
		}
		out = append(out, e)
	}
	if lines.Err() != nil || len(out) == 0 {
		t.Fatalf("%d events: %v", len(out), lines.Err())
	}
	return out
}

// Real streams in any order count the same within what is lost, and that is below 1% of all that a key counts, unless
// nothing has come to the key for more than three half-lives.
func TestLittleIsLostOfRealStreams(t *testing.T) {
	for _, r := range []realStream{
		{"usagov-clicks/clicks.tsv.gz", "country", "g", 6 * time.Hour},
		{"git-activity/commits.tsv.gz", "repo", "author", 30 * 24 * time.Hour},
		{"fight-emojis/emojis.tsv.gz", "", "emoji", 2 * time.Minute},
	} {
		t.Run(r.file, func(t *testing.T) {
			c := &orderCase{name: r.file, kind: ebbv1.Kind_KIND_DISTRIBUTION, events: r.events(t), orders: 3, boundTop: 9. / 7 * (1 + 1e-3)}
			c.def = &ebbv1.Namespace{
				Name: "n", Version: 1, HalfLifeUs: r.halfLife.Microseconds(), Kind: c.kind, Clock: ebbv1.Clock_CLOCK_EVENT,
				Floor: ebbv1.Floor_FLOOR_PRUNE,
			}
			proto.FillNamespace(c.def, proto.DefaultNamespaceSettings())
			newest := map[string]int64{}
			for _, e := range c.events {
				c.until = max(c.until, e.at)
				newest[e.key] = max(newest[e.key], e.at)
			}
			c.at = c.until
			rng := rand.New(rand.NewPCG(61, 61))
			c.checkOrders(t, rng)
			s, asked := c.run(t, rng, 1, c.events), 0 // in the last order: any
			for key, at := range newest {
				if at < c.until-3*c.def.HalfLifeUs {
					continue
				}
				asked++
				ask := &ebbv1.DistributionQuestion{Keys: [][]byte{[]byte(key)}, AsOfUs: c.at, Select: &ebbv1.DistributionQuestion_All{All: true}}
				d := c.ask(t, []*State{s}, &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: ask}}).GetDistribution()
				if !(d.Lost < 0.01*d.Z) {
					t.Errorf("%s: %v of %v may be lost", key, d.Lost, d.Z)
				}
			}
			if asked == 0 {
				t.Error("no key is recent")
			}
			t.Logf("%d events, %d keys, %d of them asked", len(c.events), len(newest), asked)
		})
	}
}
