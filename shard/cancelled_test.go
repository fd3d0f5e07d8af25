package shard

import (
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Where negative amounts cancel positive ones, Z is 0, and Z2 is forgotten at
// twice the rate of the counts: neither says that nothing is left. Were the
// summary taken for dead, its bins would keep their references, and the new bin
// would lose its name.
func TestCountsThatCancelAreStillThere(t *testing.T) {
	def := proto.DefaultNamespaceSettings()
	def.Name, def.Version, def.HalfLifeUs, def.Threshold, def.AllowNegative = "signed", 1, second, 1e-25, new(true)
	s := New(1, Heap{})
	now := int64(1_700_000_000 * second)
	index := uint64(0)
	apply := func(c *ebbv1.Command) {
		t.Helper()
		index++
		for _, r := range s.Apply(index, encode(t, now, c), nil) {
			if r.Error != nil || len(r.Refused) > 0 {
				t.Fatalf("%v", r)
			}
		}
		audit(t, s)
	}
	add := func(bin string, amount float64) {
		t.Helper()
		c := increments("k", bin)
		c.Namespace, c.GetIncrements().Increments[0].Amount = "signed", &amount
		apply(c)
	}
	apply(&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: def}})
	add("a", 1)
	add("b", -1)
	now += 60 * second // 2^-60 is far above the floor, its square below 2^-100
	add("c", 1)
}
