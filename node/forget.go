package node

import "time"

// forgetEvery is how often a node looks for nodes that the cluster no longer has.
const forgetEvery = 10 * time.Second

// forget closes connections to nodes that are no longer in the cluster, and drops their cached statuses. Otherwise this
// node would dial them for ever. Where nodes are replaced under other names, their number would grow.
func (n *Node) forget() {
	table := n.Table()
	if len(table.Nodes()) == 0 {
		return // the members are not known yet
	}
	known := func(node string) bool { return table.Node(node) != nil }
	n.mux.Forget(known)
	n.peers.Forget(known)
	n.statuses.forget(known)
}
