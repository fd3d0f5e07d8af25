package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

func ExampleClient_Feed() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	if err := c.Increment(ctx, "plain", ebb.Phrases("places", "New York", "Paris")...); err != nil {
		log.Fatal(err)
	}
	found, err := c.Feed(ctx, "plain", ebb.Feeding{Phrases: "places", Into: "mentioned"}, "From Paris to NEW YORK", "Paris!")
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range found {
		fmt.Println(f.Phrase, f.Count)
	}
	top, err := c.Top(ctx, "plain", "mentioned", 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("most:", top.Bins[0].Name, top.Bins[0].Count)
	// Output:
	// New York 1
	// Paris 2
	// most: Paris 2
}

func ExampleClient_Match() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	if err := c.Increment(ctx, "plain", ebb.Phrases("places", "New York", "York")...); err != nil {
		log.Fatal(err)
	}
	const text = "in new york"
	m, err := c.Match(ctx, "plain", "places", text)
	if err != nil {
		log.Fatal(err)
	}
	for _, x := range m.Matches {
		fmt.Printf("%s: %q\n", x.Phrase, text[x.Begin:x.End])
	}
	// Output:
	// New York: "new york"
	// York: "york"
}

func ExampleClient_SetString() {
	c, stop := connected()
	defer stop()
	ctx := context.Background()
	if err := c.SetString(ctx, "plain", "motd", "hello"); err != nil {
		log.Fatal(err)
	}
	v, err := c.String(ctx, "plain", "motd")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(v.Found, v.Text)
	// Output: true hello
}

// With a member each phrase has a key of its own that knows who spoke of it; the keys lie in any shards.
func TestFeedMembers(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	if err := c.Increment(ctx, ns, ebb.Phrases("places", "new york", "york", "paris")...); err != nil {
		t.Fatal(err)
	}
	for who, text := range map[string]string{"ann": "New York, New York", "bob": "york", "cid": "Paris"} {
		if _, err := c.Feed(ctx, ns, ebb.Feeding{Phrases: "places", Into: "of", Member: who}, text, "nothing here"); err != nil {
			t.Fatal(err)
		}
	}
	for key, want := range map[string]float64{"of/york": 2, "of/new york": 1, "of/paris": 1} {
		s, err := c.Summary(ctx, ns, ebb.SummaryQuery{Keys: []string{key}, Members: true})
		if err != nil || s.Kind != ebb.KindSet || s.Total.Value != want || len(s.Members) != int(want) {
			t.Errorf("%s: %+v, %v", key, s, err)
		}
	}
}

// More texts than one request takes are asked about in several, and counted together.
func TestFeedOfManyTexts(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	if err := c.Increment(ctx, ns, ebb.Phrases("words", "yes")...); err != nil {
		t.Fatal(err)
	}
	texts := make([]string, 2500)
	for i := range texts {
		texts[i] = "yes " + strings.Repeat("no ", i%60)
	}
	found, err := c.Feed(ctx, ns, ebb.Feeding{Phrases: "words", Into: "said"}, texts...)
	if err != nil || len(found) != 1 || found[0] != (ebb.Found{Phrase: "yes", Count: len(texts)}) {
		t.Fatalf("%v, %v", found, err)
	}
	if n, err := c.Count(ctx, ns, "said"); err != nil || n.Value != float64(len(texts)) {
		t.Errorf("%v, %v", n, err)
	}
}

// What cannot be fed is refused before anything is counted.
func TestFeedRefusals(t *testing.T) {
	w := newWorld(t, 1)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	if err := c.Increment(ctx, ns, append(ebb.Phrases("places", "paris"), ebb.One("clicks", "US"))...); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		to   ebb.Feeding
		text string
		want error
	}{
		{"phrases that are not there", ebb.Feeding{Phrases: "place", Into: "x"}, "paris", ebb.ErrKeyNotFound},
		{"no phrases at all", ebb.Feeding{Phrases: "clicks", Into: "x"}, "paris", ebb.ErrWrongKind},
		{"into nothing", ebb.Feeding{Phrases: "places"}, "paris", ebb.ErrBadKey},
		{"into what does not count", ebb.Feeding{Phrases: "places", Into: "x", Kind: ebb.KindString}, "paris", ebb.ErrBadRequest},
		{"into a key that is too long", ebb.Feeding{Phrases: "places", Into: strings.Repeat("x", 510), Member: "ann"}, "paris", ebb.ErrBadKey},
		{"a text that is too long", ebb.Feeding{Phrases: "places", Into: "x"}, strings.Repeat("x", 1<<18+1), ebb.ErrBadRequest},
	} {
		if _, err := c.Feed(ctx, ns, x.to, x.text); !errors.Is(err, x.want) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
	if n, err := c.CountKeys(ctx, ns); err != nil || n.Value != 2 {
		t.Errorf("%v keys, %v", n.Value, err)
	}
}

// A string is as it was written, whatever its bytes, and asked of another kind it says so.
func TestStrings(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ns := w.plain()
	ctx := context.Background()
	for _, value := range []string{"", "\x00\xff", strings.Repeat("long ", 26_000)} {
		if err := c.SetString(ctx, ns, "v", value); err != nil {
			t.Fatal(err)
		}
		if v, err := c.String(ctx, ns, "v"); err != nil || !v.Found || v.Text != value {
			t.Errorf("%d bytes became %d, %v", len(value), len(v.Text), err)
		}
	}
	if err := c.SetString(ctx, ns, "v", strings.Repeat("x", 1<<17+1)); !errors.Is(err, ebb.ErrBadRequest) {
		t.Errorf("one that is too long: %v", err)
	}
	if v, err := c.String(ctx, ns, "none"); err != nil || v.Found {
		t.Errorf("%+v, %v", v, err)
	}
	if err := c.Increment(ctx, ns, ebb.Seen("visitors", "ann")); err != nil {
		t.Fatal(err)
	}
	if v, err := c.String(ctx, ns, "visitors"); !errors.Is(err, ebb.ErrWrongKind) {
		t.Errorf("%+v, %v", v, err)
	}
}

// In a namespace with an event clock a write has a time, and the last write stays.
func TestStringsWithAnEventClock(t *testing.T) {
	w := newWorld(t, 3)
	c := w.connect()
	ctx := context.Background()
	ns, day := "dated", time.Date(2013, 5, 17, 0, 0, 0, 0, time.UTC)
	if _, err := c.CreateNamespace(ctx, ebb.Namespace{Name: ns, Clock: ebb.ClockEvent}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetString(ctx, ns, "v", "undated"); !errors.Is(err, ebb.ErrBadTime) {
		t.Errorf("a write without a time: %v", err)
	}
	for i, value := range []string{"first", "last"} {
		if err := c.SetStringAt(ctx, ns, "v", value, day.AddDate(0, 0, -i)); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := c.String(ctx, ns, "v"); err != nil || v.Text != "last" {
		t.Errorf("%+v, %v", v, err)
	}
}
