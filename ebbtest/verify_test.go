package ebbtest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/ebbtest"
)

// verify compares all replicas, and returns also why shards were asked about again, each reason once in a row.
func verify(t *testing.T, client *ebb.Client, atMost time.Duration) (checks []ebb.ShardCheck, waited []string, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), atMost)
	defer cancel()
	began := time.Now()
	checks, err := client.Verify(ctx, func(left []ebb.ShardCheck) {
		for i := range left {
			if why := left[i].Uncompared(); len(waited) == 0 || waited[len(waited)-1] != why {
				waited = append(waited, why)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return checks, waited, time.Since(began)
}

// Replicas are said to be equal when all of them were compared. Without a majority nothing is: each shard says what is
// missing and that it has no leader, within the time that was given. When the others are back, all is well.
func TestVerifyWithoutAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(3), ebbtest.Shards(4))
		client := c.Client()
		increment(t, client, "default", "link", "de")
		checks, _, _ := verify(t, client, time.Minute)
		for i := range checks {
			if err := checks[i].Err(); err != nil || len(checks[i].Replicas) != 3 || checks[i].Leader == "" {
				t.Fatalf("all nodes are up: %v, %+v", err, checks[i])
			}
		}

		c.Kill(2)
		time.Sleep(10 * time.Second) // others lead what it led
		checks, waited, took := verify(t, client, time.Minute)
		for i := range checks {
			err := checks[i].Err()
			if !errors.Is(err, ebb.ErrIncomplete) || !strings.Contains(err.Error(), "was not compared: no answer from ebb-2") || len(checks[i].Replicas) != 2 {
				t.Errorf("one node is away: %v, %+v", err, checks[i])
			}
		}
		if len(waited) != 1 {
			t.Errorf("it waited for %q", waited)
		}
		if took > 20*time.Second {
			t.Errorf("it took %v", took)
		}

		c.Kill(1)
		time.Sleep(10 * time.Second) // the leaders have found out
		checks, _, took = verify(t, client, 4*time.Second)
		for i := range checks {
			check := &checks[i]
			if check.Equal || check.Err() == nil || check.Uncompared() != "no leader; no answer from ebb-1, ebb-2; one whole copy alone, on ebb-0, where 3 are wanted" {
				t.Errorf("two nodes are away: %v, %+v", check.Err(), check)
			}
		}
		if took > 4*time.Second {
			t.Errorf("it took %v, and was given 4s", took)
		}

		c.Restart(1, 2)
		checks, _, _ = verify(t, client, time.Minute)
		for i := range checks {
			if err := checks[i].Err(); err != nil || len(checks[i].Replicas) != 3 {
				t.Errorf("all are back: %v, %+v", err, checks[i])
			}
		}
	})
}

// A cluster of one has one replica of each shard, which is all that there is to be.
func TestVerifyASingleNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ebbtest.New(t, ebbtest.Nodes(1))
		checks, waited, _ := verify(t, c.Client(), time.Minute)
		for i := range checks {
			if err := checks[i].Err(); err != nil || len(checks[i].Replicas) != 1 {
				t.Errorf("%v, %+v", err, checks[i])
			}
		}
		if len(waited) > 0 {
			t.Errorf("it waited for %q", waited)
		}
	})
}
