package node

import (
	"errors"
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// A node takes checksums for a limited number of callers at a time, and asks the others to come back. No caller waits
// for a place while nodes wait for each other's entries.
func TestChecksumsAtOnce(t *testing.T) {
	c := newChecksums()
	var ends []func()
	for range checksumCallsAtOnce {
		end, err := c.begin()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	if _, err := c.begin(); !errors.Is(err, proto.ErrOverloaded) {
		t.Errorf("one more: %v", err)
	}
	ends[0]()
	if _, err := c.begin(); err != nil {
		t.Errorf("one more when one is done: %v", err)
	}
}
