package proc

import (
	"context"
	"fmt"
	"slices"

	"github.com/ebbdb/ebb/client"
)

// AtRest returns the nodes of a cluster, and whether the cluster is at rest: every shard has that many replicas, and
// none is left to move. Otherwise why says what is missing.
func AtRest(ctx context.Context, c *client.Client, replicas int) (nodes []string, whole bool, why string) {
	table, err := c.Table(ctx)
	if err != nil {
		return nil, false, err.Error()
	}
	for _, n := range table.GetNodes() {
		nodes = append(nodes, n.GetName())
	}
	for _, record := range table.GetPlacement() {
		target := record.GetTarget()
		for _, r := range record.GetReplicas() {
			moving := r.GetJoining() || r.GetLeaving() || record.GetShard() > 0 && len(target) > 0 && !slices.Contains(target, r.GetNode())
			if moving {
				return nodes, false, fmt.Sprintf("shard %d moves", record.GetShard())
			}
		}
		if record.GetShard() > 0 && len(record.GetReplicas()) != replicas {
			return nodes, false, fmt.Sprintf("shard %d has %d replicas", record.GetShard(), len(record.GetReplicas()))
		}
	}
	return nodes, true, ""
}
