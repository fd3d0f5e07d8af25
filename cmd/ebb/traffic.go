package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ebbdb/ebb/client"
)

// traffic is what nodes were sent of snapshots, by node and start of its process, until now. A node that ends takes its part of it along.
type traffic map[string]sent

// sent is bytes of snapshots that came to a node, and of those that did not have to since they were there.
type sent struct{ came, held uint64 }

// String says it in a sentence.
func (s sent) String() string {
	return fmt.Sprintf("%s of snapshots were sent, and %s were there", bytesText(s.came), bytesText(s.held))
}

// trafficOf asks all nodes. One that does not answer is missing.
func trafficOf(ctx context.Context, c *client.Client, timeout time.Duration) traffic {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	all := make(traffic)
	st, err := c.Status(ctx)
	if err != nil {
		return all
	}
	for _, n := range st.GetNodes() {
		all[fmt.Sprint(n.GetNode().GetName(), n.GetStartedUs())] = sent{n.GetReceivedBytes(), n.GetHeldBytes()}
	}
	return all
}

// since is what came after another reading: all of it to a node that has started meanwhile.
func (t traffic) since(before traffic) (sum sent) {
	for node, now := range t {
		sum.came += now.came - before[node].came
		sum.held += now.held - before[node].held
	}
	return sum
}
