package main

import (
	"context"
	"testing"
	"time"

	"github.com/ebbdb/ebb/client"
)

const emojisFile = "../../../shared/data/fight-emojis/emojis.tsv.gz"

// emoji is one that a person wrote about the fight.
type emoji struct {
	t    int64 // seconds
	name string
}

func realEmojis(t *testing.T) []emoji {
	t.Helper()
	var out []emoji
	realRows(t, emojisFile, func(at int64, col []string) { out = append(out, emoji{at, col[1]}) })
	return out
}

// What people wrote while Mayweather fought McGregor on 2017-08-26. With a half-life of one minute the bins counted
// most are those of the last few minutes, and the trend against a quarter of an hour says what has just happened:
// boredom in the middle, the end, and who was the greatest of all time.
func TestTopFollowsTheFight(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real processes")
	}
	rows := realEmojis(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := startFleet(t)
	c := dialFleet(ctx, t, f)
	mustEbb(ctx, t, f, "namespace", "create", "fight", "--clock", "event", "--half-life", "1m", "--slow-half-life", "15m")
	w := c.Writer(client.WriterOptions{Namespace: "fight"})
	at := 0
	for _, moment := range []struct {
		minute        int64
		second        string // most probable, after tears of joy
		rising, after string // most of all, and then
	}{
		{10, "🔥", "🔥", ""}, {24, "🇮🇪", "🇮🇪", ""}, {36, "🙄", "🙄", ""}, {38, "💰", "💰", ""}, {50, "👏", "👏", ""}, {60, "🇮🇪", "🇮🇪", "🐐"},
	} {
		end := rows[0].t + moment.minute*60
		for ; at < len(rows) && rows[at].t <= end; at++ {
			if err := w.AddAt(ctx, "emojis", rows[at].name, 1, time.Unix(rows[at].t, 0)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		top, err := c.Top(ctx, "fight", "emojis", 2)
		if err != nil {
			t.Fatal(err)
		}
		trend, err := c.Trend(ctx, "fight", client.TrendQuery{Keys: []string{"emojis"}, Top: 2})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("minute %d: top %s %.2f, %s %.2f; rising %s %+.2f bits (p %.2g), %s %+.2f bits", moment.minute, top.Bins[0].Name, top.Bins[0].P.Value, top.Bins[1].Name, top.Bins[1].P.Value,
			trend.Rising[0].Name, trend.Rising[0].Bits, trend.Rising[0].PValue, trend.Rising[1].Name, trend.Rising[1].Bits)
		if top.Bins[0].Name != "😂" || top.Bins[1].Name != moment.second {
			t.Errorf("minute %d: top %v", moment.minute, top.Bins)
		}
		if r := trend.Rising; r[0].Name != moment.rising || r[0].PValue > 1e-6 || moment.after != "" && r[1].Name != moment.after {
			t.Errorf("minute %d: rising %+v", moment.minute, r)
		}
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
}
