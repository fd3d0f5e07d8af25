package shard

import "github.com/ebbdb/ebb/sketch"

// due is a slot and the time of its cleanup.
type due struct {
	at   sketch.Tick
	slot uint32
}

func (a due) before(b due) bool {
	return a.at < b.at || a.at == b.at && a.slot < b.slot
}

// heap orders slots by the time of their next cleanup, then by slot. The order is total, so the result does not depend
// on the order of insertion. The heap is derived from the times kept with the slots and not part of the replicated
// state.
type heap struct {
	items []due
	// places has the position of a slot in items, plus one. Heaps over the same slots share it: a slot is in one of
	// them at most.
	places *[]uint32
}

// top returns the next cleanup.
func (h *heap) top() (due, bool) {
	if len(h.items) == 0 {
		return due{}, false
	}
	return h.items[0], true
}

// set adds a slot, or moves it.
func (h *heap) set(slot uint32, at sketch.Tick) {
	for uint32(len(*h.places)) <= slot {
		*h.places = append(*h.places, 0)
	}
	i := int((*h.places)[slot]) - 1
	if i < 0 {
		i = len(h.items)
		h.items = append(h.items, due{})
	}
	h.put(i, due{at: at, slot: slot})
	h.down(h.up(i))
}

// remove removes a slot, which must be in the heap.
func (h *heap) remove(slot uint32) {
	i := int((*h.places)[slot]) - 1
	last := h.items[len(h.items)-1]
	h.items = h.items[:len(h.items)-1]
	(*h.places)[slot] = 0
	if last.slot == slot {
		return
	}
	h.put(i, last)
	h.down(h.up(i))
}

func (h *heap) put(i int, d due) {
	h.items[i] = d
	(*h.places)[d.slot] = uint32(i + 1)
}

func (h *heap) up(i int) int {
	d := h.items[i]
	for i > 0 && d.before(h.items[(i-1)/2]) {
		h.put(i, h.items[(i-1)/2])
		i = (i - 1) / 2
	}
	h.put(i, d)
	return i
}

func (h *heap) down(i int) {
	d := h.items[i]
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if child+1 < len(h.items) && h.items[child+1].before(h.items[child]) {
			child++
		}
		if !h.items[child].before(d) {
			break
		}
		h.put(i, h.items[child])
		i = child
	}
	h.put(i, d)
}
