package main

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/client"
)

// On 2013-05-06 one link was clicked from Malaysia 301 times out of 357. Seen
// from the end of that hour, of all links that were clicked often enough to tell, none differs from
// what is usual as significantly as this one, and Malaysia is what it has more of.
func TestSurpriseFindsTheBurst(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real processes")
	}
	rows := realClicks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := startFleet(t)
	c := dialFleet(ctx, t, f)
	mustEbb(ctx, t, f, "namespace", "create", "clicks", "--clock", "event", "--half-life", "6h",
		"--max-jump", "none") // the stream has gaps of months, and a writer does not look ahead
	const end, hour = 1367842458, 3600
	w := c.Writer(client.WriterOptions{Namespace: "clicks"})
	lately := map[string]int{} // clicks of links in the last hour
	for _, row := range rows {
		if row.t > end || row.country == "-" {
			continue
		}
		if row.t > end-hour {
			lately[row.link]++
		}
		for _, key := range []string{"link/" + row.link, "countries"} {
			if err := w.AddAt(ctx, key, row.country, 1, time.Unix(row.t, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	type found struct {
		link string
		client.Surprise
	}
	var all []found
	for link, clicks := range lately {
		if clicks < 50 {
			continue
		}
		s, err := c.Surprise(ctx, "clicks", client.SurpriseQuery{Keys: []string{"link/" + link}, Against: []string{"countries"}, Bins: []string{"MY"}}, client.AsOf(time.Unix(end+2, 0)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found{link, s})
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(b.G, a.G) })
	if len(all) < 5 {
		t.Fatalf("%d links were clicked 50 times in that hour", len(all))
	}
	first := all[0]
	t.Logf("%d links; first %s: distance %.3f, G %.0f with %d degrees, p %.2g; second %s: G %.0f", len(all), first.link, first.JensenShannon, first.G, first.Freedom, first.PValue, all[1].link, all[1].G)
	more := first.Bins[slices.IndexFunc(first.Bins, func(b client.SurprisingBin) bool { return b.Lift > 0 })]
	if first.link != "16D2YiO" || more.Name != "MY" || more.P < 0.8 || more.P > 0.9 || first.PValue > 1e-100 {
		t.Errorf("%+v", first)
	}
}
