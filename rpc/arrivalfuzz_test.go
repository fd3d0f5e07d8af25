package rpc

import "testing"

// FuzzFrames brings a connection any bytes, in two pieces or one: what DATA is found in them is the same, and never
// more than there are bytes and frames.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 0, 3, 0, 1, 0, 0, 0, 1, 'a', 'b', 'c', 0, 0, 0, 4, 0, 0, 0, 0, 0}, 5)
	f.Add([]byte{0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1}, 9)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		whole, pieces := new(frames), new(frames)
		want := whole.read(b)
		cut := min(max(at, 0), len(b))
		if got := pieces.read(b[:cut]) + pieces.read(b[cut:]); got != want || *whole != *pieces {
			t.Errorf("%d bytes of DATA in one piece, %d in two", want, got)
		}
		if most := int64(len(b)) + int64(len(b)/frameHead)*frameBytes; want > most {
			t.Errorf("%d bytes of DATA in %d", want, len(b))
		}
	})
}
