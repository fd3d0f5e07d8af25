package node

import (
	"errors"
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// Fewer shards than nodes is refused before anything is opened, not once the
// founders have met.
func TestFewerShardsThanNodesIsRefused(t *testing.T) {
	c := Config{Shards: 2, BootstrapExpect: 3}.withDefaults()
	if err := c.check(); !errors.Is(err, proto.ErrBadRequest) {
		t.Errorf("2 shards for 3 nodes: %v", err)
	}
	c.Shards = 3
	if err := c.check(); err != nil {
		t.Errorf("3 shards for 3 nodes: %v", err)
	}
}
