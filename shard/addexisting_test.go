package shard

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// An increment that is added in place leaves what it leaves the long way, which one takes that names its kind.
func TestAddedInPlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		def := &ebbv1.Namespace{
			Name: "default", HalfLifeUs: rapid.SampledFrom([]int64{second, 3600 * second}).Draw(t, "half-life"),
			Threshold: rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "threshold"),
			Clock:     rapid.SampledFrom([]ebbv1.Clock{ebbv1.Clock_CLOCK_WALL, ebbv1.Clock_CLOCK_EVENT}).Draw(t, "clock"),
			Precision: rapid.SampledFrom([]ebbv1.Precision{ebbv1.Precision_PRECISION_DEFAULT, ebbv1.Precision_PRECISION_COMPACT}).Draw(t, "precision"),
			BinsMax:   uint32(rapid.SampledFrom([]int{0, 5}).Draw(t, "bins max")),
		}
		if rapid.IntRange(0, 4).Draw(t, "slow") == 0 {
			def.SlowHalfLifeUs = new(10 * def.HalfLifeUs)
		}
		short, long := New(1, Heap{}), New(1, Heap{})
		var view *View
		var before []byte
		now := int64(1_700_000_000 * second)
		for index := uint64(1); index < 40; index++ {
			now += rapid.SampledFrom([]int64{0, 1000, second, 3 * second, 100 * second}).Draw(t, "step")
			if index == 1 || rapid.IntRange(0, 9).Draw(t, "redefined") == 0 {
				def.Version = index
				def.AllowNegative = new(index > 1 && rapid.IntRange(0, 9).Draw(t, "signed") == 0)
				entry := encodeEntry(t, now, []*ebbv1.Command{{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}}})
				short.Apply(index, entry, nil)
				long.Apply(index, entry, nil)
				def.HalfLifeUs = def.HalfLifeUs%(3600*second) + second
				continue
			}
			plain, named := &ebbv1.Increments{}, &ebbv1.Increments{}
			for range rapid.IntRange(1, 2*prefetchLen).Draw(t, "increments") {
				amount := rapid.SampledFrom([]float64{1, 1, 1, 3.5, 0x1p-80, 0, 1e300, -1}).Draw(t, "amount")
				one := ebbv1.Increment{
					Key: fmt.Appendf(nil, "key %d", rapid.IntRange(0, 4).Draw(t, "key")), Bin: fmt.Appendf(nil, "bin %d", rapid.IntRange(0, 7).Draw(t, "bin")), Amount: &amount,
					TimeUs: rapid.SampledFrom([]int64{0, now, now - second, now + second}).Draw(t, "time"),
				}
				plain.Increments = append(plain.Increments, &one)
				named.Increments = append(named.Increments, &ebbv1.Increment{Key: one.Key, Bin: one.Bin, Amount: one.Amount, TimeUs: one.TimeUs, Kind: ebbv1.Kind_KIND_DISTRIBUTION})
			}
			a := short.Apply(index, encodeEntry(t, now, []*ebbv1.Command{{Body: &ebbv1.Command_Increments{Increments: plain}}}), nil)
			b := long.Apply(index, encodeEntry(t, now, []*ebbv1.Command{{Body: &ebbv1.Command_Increments{Increments: named}}}), nil)
			if a[0].Applied != b[0].Applied || len(a[0].Refused) != len(b[0].Refused) {
				t.Fatalf("%v, the long way %v", a[0], b[0])
			}
			if index == 20 { // the pages are shared from here on
				view = short.Freeze()
				before = written(t, view)
			}
		}
		if view != nil && !bytes.Equal(before, written(t, view)) {
			t.Fatal("a view has changed")
		}
		if !bytes.Equal(written(t, short), written(t, long)) {
			t.Fatal("the states differ")
		}
	})
}

// written is the snapshot of a state or a view.
func written(t fataler, of io.WriterTo) []byte {
	var b bytes.Buffer
	if _, err := of.WriteTo(&b); err != nil {
		t.Fatalf("%v", err)
	}
	return b.Bytes()
}
