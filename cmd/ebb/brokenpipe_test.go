package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A socket whose other end has closed does not end a command that ends with its reader.
func TestSocketDoesNotEndTheReader(t *testing.T) {
	ctx, shown, stop := withBrokenPipe(t.Context(), &session{term: terminal{out: os.Stdout, err: os.Stderr}})
	defer stop()
	for range 10 {
		writeToClosed(t)
	}
	if n, err := shown.term.err.Write(nil); n != 0 || err != nil {
		t.Errorf("standard error: %d, %v", n, err)
	}
	// a handler is called by a goroutine of the runtime: some time must pass until it would have been
	select {
	case <-ctx.Done():
		t.Errorf("it ended: %v", context.Cause(ctx))
	case <-time.After(100 * time.Millisecond):
	}
}

// writeToClosed writes to a socket whose other end has closed until that fails.
func writeToClosed(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	far.Close()
	for err == nil {
		_, err = near.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a write to a closed socket: %v", err)
	}
}

// A pipe whose reader has closed ends it.
func TestClosedPipeEndsTheReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, shown, stop := withBrokenPipe(t.Context(), &session{term: terminal{out: w, err: io.Discard}})
	defer stop()
	if _, err := shown.term.out.Write([]byte("x")); err != nil || ctx.Err() != nil {
		t.Fatalf("while it is read: %v, %v", err, ctx.Err())
	}
	r.Close()
	if _, err := shown.term.out.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a write to a closed pipe: %v", err)
	}
	if ctx.Err() == nil {
		t.Error("it does not end")
	}
}

// The demo outlives every node that is killed at its keys: 4 of them here, or as many as EBB_DEMO_KILLS says.
func TestDemoOutlivesKills(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real nodes")
	}
	kills := 4
	if n, err := strconv.Atoi(os.Getenv("EBB_DEMO_KILLS")); err == nil {
		kills = n
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(kills)*10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), "demo", "--http", "-", "--dir", t.TempDir())
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	until := func(what string) bool {
		for lines.Scan() {
			if strings.Contains(lines.Text(), what) {
				return true
			}
		}
		return false
	}
	if !until("[ebb-0 up, ebb-1 up, ebb-2 up]") {
		t.Error("the demo shows no nodes")
	}
	survived := 0
	for ; survived < kills; survived++ {
		fmt.Fprintln(keys, "k")
		if !until("nothing is lost") || !until("dead") {
			break
		}
		fmt.Fprintln(keys, "h")
		if !until("[ebb-0 up, ebb-1 up, ebb-2 up]") {
			break
		}
	}
	fmt.Fprintln(keys, "q")
	balanced := until("nothing lost, nothing counted twice")
	if err := cmd.Wait(); err != nil || survived < kills || !balanced {
		t.Errorf("%d kills of %d survived, balanced: %v, it ended with %v", survived, kills, balanced, err)
	}
	t.Logf("%d kills survived", survived)
}
