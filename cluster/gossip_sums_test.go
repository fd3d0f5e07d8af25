package cluster

import (
	"slices"
	"testing"
)

// A bit that is inverted anywhere in a packet with a checksum is noticed, and packets of builds that send none are
// heard.
func TestEveryBitOfAPacketIsSummed(t *testing.T) {
	for _, message := range []string{"x", "a ping", "news of five nodes, which rides on a ping\x0c\x00\xff"} {
		sent := withSum([]byte(message))
		if !sound([]byte(message)) || !sound(sent) || !slices.Equal(withSum(sent), sent) || string(sent[summedHead:]) != message {
			t.Errorf("%q is sent as %q", message, sent)
		}
		for bit := range 8 * len(sent) {
			damaged := slices.Clone(sent)
			damaged[bit/8] ^= 1 << (bit % 8)
			if sound(damaged) {
				t.Errorf("%q: bit %d is inverted, and nobody notices", message, bit)
			}
		}
	}
}
