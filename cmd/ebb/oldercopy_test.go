package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/proto"
)

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
}

// shardsOf is what nodes that answer say of the shards; nil before one does.
func shardsOf(ctx context.Context, addrs string) []shardJSON {
	var st statusJSON
	_, out, _ := on(ctx, addrs, "--timeout", "20s", "status", "--shards", "--json")
	if json.Unmarshal([]byte(out), &st) != nil {
		return nil
	}
	return st.Shards
}

// shardOf waits for a shard of data that fits.
func shardOf(ctx context.Context, t *testing.T, f *proc.Fleet, what string, fits func(shardJSON) bool) uint32 {
	t.Helper()
	for {
		now := shardsOf(ctx, f.GRPC(0))
		if i := slices.IndexFunc(now, func(s shardJSON) bool { return s.Shard != 0 && fits(s) }); i >= 0 {
			return now[i].Shard
		}
		if ctx.Err() != nil {
			t.Fatalf("no shard %s: %+v", what, now)
		}
	}
}

// on runs a command in this process against nodes.
func on(ctx context.Context, addrs string, args ...string) (status int, out, said string) {
	var stdout, stderr bytes.Buffer
	status = run(ctx, append([]string{"--addr", addrs}, args...), terminal{
		in: strings.NewReader(""), out: &stdout, err: &stderr,
	})
	return status, stdout.String(), stderr.String()
}

// The data directories of two of three nodes are put back from older copies, after the third one led a shard and
// acknowledged more. Their replicas of it are named as short and elect no leader: the shard takes no writes, and
// answers reads that may be behind from the whole copy. `ebb cluster recover` keeps that copy, and nothing is lost in
// any shard.
func TestTwoOlderCopies(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	const shards, keys = 3, 12
	f := startFleet(t, "--shards", strconv.Itoa(shards))
	key := func(k int) string { return fmt.Sprint("k", k) }
	write := func() {
		t.Helper()
		for k := range keys {
			if _, err := ebb(ctx, t, f, "incr", key(k), "x", "-n", "plain"); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop := func(nodes ...int) {
		for _, i := range nodes {
			f.Interrupt(i)
		}
	}
	start := func(nodes ...int) {
		t.Helper()
		for _, i := range nodes {
			if err := f.Launch(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := ebb(ctx, t, f, "namespace", "create", "plain", "--decay", "none"); err != nil {
		t.Fatal(err)
	}
	write()
	older := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	stop(0, 1, 2)
	for i, dir := range older {
		copyTree(t, f.DataDir(i), dir)
	}
	start(0, 1, 2)
	if err := f.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	leads := func(s shardJSON) bool { return s.Leader == f.Name(0) }
	led := shardOf(ctx, t, f, "is led by the first node", leads)
	write()
	write()
	shardOf(ctx, t, f, "is still led by it", func(s shardJSON) bool { return s.Shard == led && leads(s) })
	stop(1, 2)
	shardOf(ctx, t, f, "has lost its leader", func(s shardJSON) bool { return s.Shard == led && s.Leader == "" })
	for i := 1; i < 3; i++ {
		if err := f.Wipe(i); err != nil {
			t.Fatal(err)
		}
		copyTree(t, older[i], f.DataDir(i))
	}
	start(1, 2)

	anywhere := func(key string) (status int, out, said string) {
		// A short replica takes seconds to refuse, since it cannot ask the control group; then the next one is asked.
		return on(ctx, f.GRPC(0), "--timeout", "10s", "get", key, "x", "-n", "plain", "--consistency", "any", "-o", "tsv")
	}
	shardOf(ctx, t, f, "has two short replicas", func(s shardJSON) bool {
		return s.Shard == led && slices.Contains(s.Short, f.Name(1)) && slices.Contains(s.Short, f.Name(2))
	})
	for k := range keys {
		if proto.ShardOf("plain", []byte(key(k)), shards) != led {
			continue
		}
		status, _, said := on(ctx, f.GRPC(0), "--timeout", "2s", "incr", key(k), "x", "-n", "plain")
		if status == exitOK {
			t.Errorf("%s is written while two of three replicas are short:\n%s", key(k), said)
		}
		if status, out, said := anywhere(key(k)); status != exitOK || out != "x\t3\t1\n" {
			t.Errorf("%s on the node with the whole copy: exit %d\n%s%s", key(k), status, out, said)
		}
	}
	for shard := range shards + 1 { // the control group first
		status, out, said := on(ctx, f.GRPC(0), "--timeout", "30s",
			"cluster", "recover", fmt.Sprint(shard), "--from", f.Name(0), "--yes", "--wait")
		if status != exitOK && (uint32(shard) == led || !strings.Contains(said, "it need not be recovered")) {
			t.Fatalf("recover shard %d: exit %d\n%s%s", shard, status, out, said)
		}
	}
	write()
	for k := range keys {
		out, err := ebb(ctx, t, f, "get", key(k), "x", "-n", "plain", "-o", "tsv")
		if err != nil || string(out) != "x\t4\t1\n" {
			t.Errorf("%s after the recovery: %v\n%s", key(k), err, out)
		}
	}
	mustVerify(ctx, t, f)
}
