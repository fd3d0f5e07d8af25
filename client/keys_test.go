package client_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	ebb "github.com/ebbdb/ebb/client"
)

// A list of names that together are larger than a message comes in pages, also when it is limited.
func TestKeysOfLongNames(t *testing.T) {
	t.Parallel()
	c := newWorld(t, 1).connect()
	const keys, limit = 9_000, 8_500
	long := strings.Repeat("x", 500)
	batch := make([]ebb.Increment, keys)
	for i := range batch {
		batch[i] = ebb.One(fmt.Sprintf("%05d%s", i, long), "US")
	}
	if err := c.Increment(context.Background(), "default", batch...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // on a slow machine
	defer cancel()
	n := 0
	for key, err := range c.Keys(ctx, "default", ebb.KeysQuery{Limit: limit}) {
		if err != nil {
			t.Fatalf("after %d keys: %v", n, err)
		}
		if key.Key != batch[n].Key {
			t.Fatalf("number %d is %.5s", n, key.Key)
		}
		n++
	}
	if n != limit {
		t.Errorf("%d keys", n)
	}
}
