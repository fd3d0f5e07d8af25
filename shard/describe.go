package shard

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/sketch"
)

// Describe writes what a state holds, for people and for tests: one line for
// each thing, sorted by name, counts as of the clock of their namespace.
func (f *frame) Describe(w io.Writer) {
	fmt.Fprintf(w, "shard %d: applied %d, clock %s, behaviour %d, keys %d, bins %d\n",
		f.id, f.applied, clockText(f.now), f.behaviour, f.summaries.keys.live, f.bins.names.live)
	for _, ns := range f.namespaces {
		f.describeNamespace(w, ns)
	}
	for _, s := range f.sessions.all {
		fmt.Fprintf(w, "session %d%s: top %d, used %s\n", s.id, ownerText(s.namespace), s.top, clockText(s.used))
	}
	f.describeSources(w)
	if n := f.answered.live; n > 0 {
		fmt.Fprintf(w, "idempotency keys: %d\n", n)
	}
}

func (f *frame) describeNamespace(w io.Writer, ns *namespace) {
	p := ns.params()
	decay := "none"
	switch p.Decay {
	case sketch.HalfLife:
		decay = "half-life " + text(p.HalfLife)
	case sketch.Linear:
		decay = "linear " + text(p.HalfLife)
	}
	clock := "wall clock"
	if ns.onEventTime() {
		clock = "event clock " + clockText(ns.eventTime)
	}
	fmt.Fprintf(w, "namespace %s version %d: %s, %s, keys %d", ns.definition.GetName(), ns.definition.GetVersion(), decay, clock, ns.keys)
	if n := len(ns.eras) - 1; n > 0 {
		fmt.Fprintf(w, ", changes remembered %d", n)
	}
	fmt.Fprintln(w)
	f.describeKeys(w, ns)
}

func (f *frame) describeKeys(w io.Writer, ns *namespace) {
	var keys []uint32
	for key := range f.summaries.keys.all {
		if f.summary(key).space == ns.space {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b uint32) int { return bytes.Compare(f.keys.bytesOf(a), f.keys.bytesOf(b)) })
	for _, key := range keys {
		fmt.Fprintf(w, "  %s:", printable(f.keys.bytesOf(key)))
		sum := f.summary(key)
		f.describeSummary(w, ns, &sum)
	}
}

func (f *frame) describeSummary(w io.Writer, ns *namespace, sum *summary) {
	at := ns.clock(f.now)
	if sum.body != nil {
		describeBody(w, ns, sum.body, at)
		return
	}
	d := f.present(ns, sum, at)
	if d == nil {
		fmt.Fprintln(w, " faded")
		return
	}
	r := d.At(ns.params(), at)
	bins := r.All(nil)
	t := total{binNames: f}
	t.orderTies(bins)
	for _, b := range bins {
		fmt.Fprintf(w, " %s=%.6g", printable(f.binName(b.ID)), b.Count)
	}
	fmt.Fprintf(w, " z=%.6g", r.Z)
	if r.Other != 0 {
		fmt.Fprintf(w, " other=%.6g", r.Other)
	}
	fmt.Fprintln(w)
}

func describeBody(w io.Writer, ns *namespace, b body, at sketch.Tick) {
	if ended(b, ns.params(), at) {
		fmt.Fprintln(w, " faded")
		return
	}
	var out ebbv1.Summary
	b.answer(&ebbv1.SummaryQuestion{}, at, &out)
	fmt.Fprintf(w, " %s total=%.6g\n", proto.KindName(b.form().kind()), out.GetTotal().GetValue())
}

func (f *frame) describeSources(w io.Writer) {
	if f.lastEpoch > 0 {
		fmt.Fprintf(w, "sources: %d, last epoch %d\n", f.sources.live, f.lastEpoch)
	}
	var sources []*source
	for _, s := range f.sources.all {
		sources = append(sources, s)
	}
	slices.SortFunc(sources, func(a, b *source) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.namespace, b.namespace))
	})
	for _, s := range sources {
		fmt.Fprintf(w, "source %s%s: epoch %d, last offset %d, refused rows remembered %d\n", s.name,
			ownerText(s.namespace), s.epoch, s.last, len(s.refused))
	}
}

// ownerText names the namespace that something belongs to, if it does to any. A secret is never described.
func ownerText(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " of namespace " + namespace
}

func clockText(t sketch.Tick) string {
	return time.UnixMicro(int64(t)).UTC().Format("2006-01-02T15:04:05.999999Z")
}

// printable leaves plain names as they are and quotes the others.
func printable(b []byte) string {
	for _, c := range b {
		if c <= ' ' || c > '~' {
			return quote(b)
		}
	}
	return string(b)
}
