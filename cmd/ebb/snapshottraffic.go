package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ebbdb/ebb/client"
)

// snapshotTraffic is how many bytes of snapshots nodes have received so far. Its keys have the node and the start of
// its process, because the counters of a node end with its process.
type snapshotTraffic map[string]snapshotBytes

// snapshotBytes counts the bytes of snapshots that a node received, and the bytes that it held already.
type snapshotBytes struct{ received, held uint64 }

// String describes the bytes in a sentence.
func (s snapshotBytes) String() string {
	return fmt.Sprintf("%s of snapshots were sent, and %s were there", bytesText(s.received), bytesText(s.held))
}

// readSnapshotTraffic asks all nodes for their counters. A node that does not answer is left out.
func readSnapshotTraffic(ctx context.Context, c *client.Client, timeout time.Duration) snapshotTraffic {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	all := make(snapshotTraffic)
	st, err := c.Status(ctx)
	if err != nil {
		return all
	}
	for _, n := range st.GetNodes() {
		all[fmt.Sprint(n.GetNode().GetName(), n.GetStartedUs())] = snapshotBytes{n.GetReceivedBytes(), n.GetHeldBytes()}
	}
	return all
}

// since returns what nodes have received since an earlier reading: everything, for a node that has started since.
func (t snapshotTraffic) since(before snapshotTraffic) (sum snapshotBytes) {
	for node, now := range t {
		sum.received += now.received - before[node].received
		sum.held += now.held - before[node].held
	}
	return sum
}
