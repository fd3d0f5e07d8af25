package swarm

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// Family is a kind of fault.
type Family struct {
	Name string // one word, as --families takes it
	What string // what happens to which nodes
	Dose string // how much, in words; empty where there is nothing to choose
	// Loses says that the fault loses the content of a disk. A plan has at most one such fault.
	Loses bool
	// Cuts says that messages between some hosts do not arrive. One such fault in eight lasts up to 16 s, the others up
	// to 5 s.
	Cuts bool
	// Moves says that shards move to other nodes. The end of the run waits for the moves, so such families are drawn
	// less often.
	Moves bool

	draw   func(rng *rand.Rand, d *Dose)
	inject func(w *world, d Dose) (detail string)
	mend   func(w *world) // must do nothing where nothing is broken
}

// share is the weight of this family when a seed draws its families.
func (f Family) share() float64 {
	if f.Moves {
		return 0.25
	}
	return 1
}

// membership reports whether nodes come or go.
func (f Family) membership() bool {
	return slices.ContainsFunc(membership, func(m Family) bool { return m.Name == f.Name })
}

// Families has all families of faults.
var Families = slices.Concat(
	networkFamilies, diskFamilies, processFamilies, clockFamilies, membership, []Family{lyingDisk},
)

// FamilyOf returns the family with that name, and false if there is none.
func FamilyOf(name string) (Family, bool) {
	i := slices.IndexFunc(Families, func(f Family) bool { return f.Name == name })
	if i < 0 {
		return Family{}, false
	}
	return Families[i], true
}

// FamilyNames returns the names of all families, in the order of Families.
func FamilyNames() []string {
	var names []string
	for _, f := range Families {
		names = append(names, f.Name)
	}
	return names
}

// order is the members, dead or alive, shuffled by the dose.
func (w *world) order(d Dose) []int {
	members := w.members()
	rng := rand.New(rand.NewPCG(d.Pick, 1))
	rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return members
}

// leader is the node that leads the dose's shard, or some node if no leader is known.
func (w *world) leader(d Dose) int {
	if i := w.c.Leader(d.Shard); i >= 0 {
		return i
	}
	return w.some(d)
}

// some returns the living member that the dose chooses.
func (w *world) some(d Dose) int {
	members := w.living()
	return members[d.Node%uint64(len(members))]
}

// victim returns the leader half of the time, and otherwise the member that some returns.
func (w *world) victim(d Dose) int {
	if d.Pick%2 == 0 {
		return w.leader(d)
	}
	return w.some(d)
}

// named returns the names of nodes, in order.
func (w *world) named(nodes ...int) string {
	var names []string
	for _, i := range nodes {
		names = append(names, w.c.Name(i))
	}
	return strings.Join(names, ", ")
}

// oneOf returns a draw function that chooses one of these variants.
func oneOf(ways ...string) func(rng *rand.Rand, d *Dose) {
	return func(rng *rand.Rand, d *Dose) { d.Way = ways[rng.IntN(len(ways))] }
}
