package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
)

// numbers is a distribution as every exact door tells it.
type numbers struct {
	Z           float64      `json:"z"`
	Z2          float64      `json:"z2"`
	Other       float64      `json:"other"`
	EffectiveN  float64      `json:"effective_n"`
	EntropyBits float64      `json:"entropy_bits"`
	AsOfUS      int64        `json:"as_of_us"`
	LastEventUS int64        `json:"last_event_us"`
	BinsTotal   int          `json:"bins_total"`
	Bins        []binNumbers `json:"bins"`
}

type binNumbers struct {
	Bin   string  `json:"bin"`
	Count float64 `json:"count"`
	P     float64 `json:"p"`
	PLow  float64 `json:"p_low"`
	PHigh float64 `json:"p_high"`
}

// Three processes answer the same question, with the same as-of time, through
// gRPC, HTTP/JSON, the forgettable door and the command line: the same numbers,
// to the last bit. The forgettable door rounds counts and leaves p alone.
func TestEveryDoorTellsTheSameNumbers(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := startFleet(t, "--shards", "8")
	c := dialFleet(ctx, t, f)
	mustEbb(ctx, t, f, "namespace", "create", "plain", "--decay", "none")
	mustEbb(ctx, t, f, "namespace", "create", "history", "--clock", "event", "--half-life", "10m", "--precision", "compact")
	mustEbb(ctx, t, f, "namespace", "create", "leaky", "--decay", "linear", "--half-life", "2h", "--floor", "prior")
	now := time.Now()
	random := rand.New(rand.NewPCG(1, 2))
	compared := 0
	for _, ns := range []string{"default", "plain", "history", "leaky"} {
		keys := scatter(ctx, t, c, random, ns, now)
		for i, key := range keys {
			// from when no shard is past it to half an hour later
			asOf := now.Add(time.Minute + time.Duration(i)*11*time.Minute + 123_457*time.Microsecond)
			compared += compareEveryDoor(ctx, t, f, c, ns, key, asOf)
		}
	}
	if compared < 200 {
		t.Fatalf("only %d bins were compared", compared)
	}
	t.Logf("%d bins are the same through every door", compared)
}

// scatter writes a few distributions of up to 60 bins over the last hours.
func scatter(ctx context.Context, t *testing.T, c *client.Client, random *rand.Rand, ns string, now time.Time) []string {
	t.Helper()
	keys := []string{"clicks/country", "ключ с пробелом", "a&b=c/d?e", "x"}
	for _, key := range keys {
		var batch []client.Increment
		for range 300 {
			batch = append(batch, client.Increment{
				Key: key, Bin: fmt.Sprintf("bin %c%d", 'A'+rune(random.IntN(6)), random.IntN(10)),
				Amount: random.ExpFloat64() * 40, Time: now.Add(-time.Duration(random.Int64N(int64(3 * time.Hour)))),
			})
		}
		if err := c.Increment(ctx, ns, batch...); err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

func compareEveryDoor(ctx context.Context, t *testing.T, f *proc.Fleet, c *client.Client, ns, key string, asOf time.Time) int {
	t.Helper()
	d, err := c.Distribution(ctx, ns, key, client.AsOf(asOf))
	if err != nil {
		t.Fatal(err)
	}
	if d.AsOf.UnixMicro() != asOf.UnixMicro() {
		t.Fatalf("%s %s: asked as of %v, answered as of %v", ns, key, asOf, d.AsOf)
	}
	want := numbersOf(d)
	base := "http://" + f.HTTP(1)
	as := fmt.Sprint(asOf.UnixMicro())

	var page struct{ Distribution numbers }
	getJSON(ctx, t, base+"/v1/ns/"+ns+"/distribution/"+url.PathEscape(key)+"?as_of="+as, &page)
	if diff := cmp.Diff(want, page.Distribution); diff != "" {
		t.Fatalf("%s %s: HTTP/JSON is not gRPC:\n%s", ns, key, diff)
	}
	var printed numbers
	out := mustEbb(ctx, t, f, "dist", key, "-n", ns, "--as-of", asOf.UTC().Format(time.RFC3339Nano), "--json")
	if err := json.Unmarshal(out, &printed); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if diff := cmp.Diff(want, printed); diff != "" {
		t.Fatalf("%s %s: the command line is not gRPC:\n%s", ns, key, diff)
	}
	var door envelope
	getJSON(ctx, t, base+"/ns/"+ns+"/dist?"+url.Values{"distribution": {key}, "as_of": {as}}.Encode(), &door)
	if diff := cmp.Diff(rounded(key, want), door.Data, cmp.FilterPath(notPrinted, cmp.Ignore())); diff != "" {
		t.Fatalf("%s %s: the forgettable door is not gRPC, rounded:\n%s", ns, key, diff)
	}
	return len(want.Bins)
}

func numbersOf(d client.Distribution) numbers {
	out := numbers{
		Z: d.Z, Z2: d.Z2, Other: d.Other, EffectiveN: d.EffectiveN, EntropyBits: d.Entropy,
		AsOfUS: d.AsOf.UnixMicro(), LastEventUS: d.LastEvent.UnixMicro(), BinsTotal: d.BinsTotal,
	}
	for _, b := range d.Bins {
		out.Bins = append(out.Bins, binNumbers{b.Name, b.Count, b.P.Value, b.P.Low, b.P.High})
	}
	return out
}

// envelope is what a client of forgettable reads.
type envelope struct{ Data envelopeData }

type envelopeData struct {
	Distribution string
	Z, T         int64
	Data         []envelopeBin
	Rate         float64
	Prune        bool
	LastSyncTime int64 `json:"last_sync_time"`
}

type envelopeBin struct {
	Bin   string
	Count int64
	P     float64
}

// notPrinted leaves out what only the forgettable door tells.
func notPrinted(p cmp.Path) bool {
	name := p.Last().String()
	return name == ".Rate" || name == ".Prune"
}

// rounded is what the forgettable door makes of exact numbers.
func rounded(key string, n numbers) envelopeData {
	out := envelopeData{Distribution: key, Z: int64(math.Round(n.Z)), T: n.AsOfUS / 1e6, LastSyncTime: n.LastEventUS / 1e6}
	for _, b := range n.Bins {
		out.Data = append(out.Data, envelopeBin{b.Bin, int64(math.Round(b.Count)), b.P})
	}
	return out
}

func getJSON(ctx context.Context, t *testing.T, url string, into any) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %v\n%s", url, resp.Status, err, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v in %s", url, err, body)
	}
}
