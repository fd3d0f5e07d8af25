package shard

const leafLen = 64

// cowTable is an array of T in leaves, with copy-on-write by leaf (see pages). It does not copy what a T points to:
// code that edits that must copy it.
type cowTable[T any] struct {
	leaves []*[leafLen]T
	epochs []uint32 // the epoch in which a leaf became private; absent in a view
}

func (t *cowTable[T]) at(i uint32) *T { return &t.leaves[i/leafLen][i%leafLen] }

// edit returns item i for writing.
func (t *cowTable[T]) edit(i, epoch uint32) *T {
	leaf := i / leafLen
	if t.epochs[leaf] != epoch {
		private := *t.leaves[leaf]
		t.leaves[leaf], t.epochs[leaf] = &private, epoch
	}
	return &t.leaves[leaf][i%leafLen]
}

// reach makes room for item i.
func (t *cowTable[T]) reach(i, epoch uint32) {
	for uint32(len(t.leaves)) <= i/leafLen {
		t.leaves = append(t.leaves, new([leafLen]T))
		t.epochs = append(t.epochs, epoch)
	}
}

func (t *cowTable[T]) frozen() cowTable[T] {
	return cowTable[T]{leaves: append([]*[leafLen]T(nil), t.leaves...)}
}

// slotTable is a cowTable whose slots are handed out and freed; the slot that was freed last is reused first. Slots and
// the order of free ones are part of the replicated state: a restored slotTable hands out the same slots.
type slotTable[T any] struct {
	items cowTable[T]
	links cowTable[uint32] // inUse, or the next free slot plus one
	slots uint32           // 0 to slots-1 have been handed out at least once
	free  uint32           // the first free slot plus one; 0: none
	live  uint32
}

const inUse = ^uint32(0)

// freeList is numbers that are handed out and freed, as a snapshot encodes them.
type freeList interface {
	// ends returns how many numbers have been handed out at least once, the first free number plus one, and how many
	// are in use.
	ends() (slots, free, live uint32)
	// link is inUse, or the next free number plus one.
	link(i uint32) uint32
	// restore appends a number with this link.
	restore(link, epoch uint32) uint32
	// begin sets the first free number, plus one.
	begin(free uint32)
}

// freeListComplete reports whether the chain of free numbers visits each of them once.
func freeListComplete(c freeList) bool {
	slots, free, live := c.ends()
	left := slots - live
	for next := free; next != 0; left-- {
		if left == 0 || c.link(next-1) == inUse {
			return false
		}
		next = c.link(next - 1)
	}
	return left == 0
}

// INVARIANT free-is-zero: the item of a free slot is the zero T.

func (r *slotTable[T]) alive(i uint32) bool { return i < r.slots && *r.links.at(i) == inUse }

func (r *slotTable[T]) at(i uint32) *T { return r.items.at(i) }

func (r *slotTable[T]) edit(i, epoch uint32) *T { return r.items.edit(i, epoch) }

// add hands out a slot; its item is the zero T.
func (r *slotTable[T]) add(epoch uint32) uint32 {
	i := r.slots
	if r.free != 0 {
		i = r.free - 1
		r.free = *r.links.at(i)
	} else {
		r.slots++
		r.items.reach(i, epoch)
		r.links.reach(i, epoch)
	}
	*r.links.edit(i, epoch) = inUse
	r.live++
	return i
}

// drop frees a slot.
func (r *slotTable[T]) drop(i, epoch uint32) {
	var zero T
	*r.items.edit(i, epoch) = zero
	*r.links.edit(i, epoch) = r.free
	r.free = i + 1
	r.live--
}

// all yields the slots in use, in order.
func (r *slotTable[T]) all(yield func(i uint32, item *T) bool) {
	for i := range r.slots {
		if *r.links.at(i) == inUse && !yield(i, r.items.at(i)) {
			return
		}
	}
}

func (r *slotTable[T]) frozen() slotTable[T] {
	return slotTable[T]{items: r.items.frozen(), links: r.links.frozen(), slots: r.slots, free: r.free, live: r.live}
}

func (r *slotTable[T]) ends() (slots, free, live uint32) { return r.slots, r.free, r.live }

func (r *slotTable[T]) link(i uint32) uint32 { return *r.links.at(i) }

func (r *slotTable[T]) begin(free uint32) { r.free = free }

func (r *slotTable[T]) restore(link, epoch uint32) uint32 {
	i := r.slots
	r.slots++
	r.items.reach(i, epoch)
	r.links.reach(i, epoch)
	if link == inUse {
		r.live++
	}
	*r.links.edit(i, epoch) = link
	return i
}
