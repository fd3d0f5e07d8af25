package node

// Checksum returns a hash of everything that this node's replica of a shard
// replicates, and the index of the last entry that it includes. Replicas with
// the same index have the same hash, or have diverged. It reports false where
// this node has no replica of the shard, or not yet.
func (n *Node) Checksum(shard uint32) (index, sum uint64, ok bool) {
	g := n.groups.Load()
	if g == nil || int(shard) >= len(g.byShard) || g.byShard[shard] == nil {
		return 0, 0, false
	}
	view := g.byShard[shard].state.freeze()
	defer view.Release()
	return view.Applied(), view.Checksum(), true
}
