package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ebbdb/ebb/cluster"
)

// Agree waits until all replicas of every shard on living nodes are equal: the same entries applied, and the same
// checksum. When ctx ends, the error says which replicas are behind. If replicas that have applied the same entries
// differ, Agree returns an error at once.
func (c *Cluster) Agree(ctx context.Context) error {
	for {
		behind, err := c.compare()
		if err != nil || behind == "" {
			return err
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("replicas do not catch up: %s", behind)
		}
	}
}

// compare returns a shard whose replicas have applied different numbers of entries. It returns an error if replicas
// that have applied the same entries differ.
func (c *Cluster) compare() (behind string, err error) {
	for shard := uint32(1); shard <= c.opts.Shards; shard++ {
		sums := map[uint64]uint64{}
		var report strings.Builder
		for i := range c.Nodes() {
			n := c.Node(i)
			if n == nil {
				continue
			}
			index, sum, ok := n.Checksum(shard)
			if !ok {
				continue
			}
			fmt.Fprintf(&report, " %s has %d", c.Name(i), index)
			if other, ok := sums[index]; ok && other != sum {
				return "", fmt.Errorf("shard %d has diverged: after entry %d, %s has %x and another replica %x", shard, index, c.Name(i), sum, other)
			}
			sums[index] = sum
		}
		if len(sums) > 1 {
			behind = fmt.Sprintf("shard %d:%s", shard, report.String())
		}
	}
	return behind, nil
}

// Ahead returns the shard whose clock is furthest ahead of the bubble's time at any replica, and how far ahead it is.
func (c *Cluster) Ahead() (shard uint32, ahead time.Duration) {
	ahead = -1 << 62
	for i := range c.Nodes() {
		n := c.Node(i)
		if n == nil {
			continue
		}
		for _, r := range n.Status().GetReplicas() {
			if r.GetShard() == cluster.ControlShard {
				continue
			}
			if d := time.Until(time.UnixMicro(r.GetNowUs())); d > ahead {
				shard, ahead = r.GetShard(), d
			}
		}
	}
	return shard, ahead
}
