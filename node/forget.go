package node

import "time"

// forgetEvery is how often a node looks for others that the cluster no longer has.
const forgetEvery = 10 * time.Second

// forget ends connections to nodes that are no longer of the cluster, and drops what they said of themselves. They
// would be dialled for ever, and where nodes are replaced by ones of other names, more and more of them.
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
