package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// oneProcess is a cluster of one real node, and a bare connection to it.
func oneProcess(ctx context.Context, t *testing.T, dir string) (*proc.Fleet, ebbv1grpc.EbbClient) {
	t.Helper()
	f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: dir, Nodes: 1, Args: []string{"--shards", "2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	conn, err := grpc.NewClient(f.GRPC(0), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return f, ebbv1grpc.NewEbbClient(conn)
}

// A batch, a message and a response over their limits are refused with the limit
// in the error, and nothing of them is counted.
func TestOverTheLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real process")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f, raw := oneProcess(ctx, t, t.TempDir())
	long := func(n int) []byte { return bytes.Repeat([]byte("k"), n) }
	batch := func(n int, key, bin []byte) *ebbv1.IncrementRequest {
		req := &ebbv1.IncrementRequest{}
		for range n {
			req.Increments = append(req.Increments, &ebbv1.Increment{Key: key, Bin: bin})
		}
		return req
	}
	for name, c := range map[string]struct {
		req  *ebbv1.IncrementRequest
		code *proto.Error
		want string
	}{
		"batch by number":   {batch(proto.BatchOpsMax+1, []byte("k"), []byte("b")), proto.ErrBatchTooLarge, "10000"},
		"batch by bytes":    {batch(3000, long(400), []byte("b")), proto.ErrBatchTooLarge, "1048576"},
		"message":           {batch(40_000, long(proto.KeyLenMax), []byte("b")), proto.ErrMessageTooLarge, "4194304"},
		"a key, first":      {batch(1, long(proto.KeyLenMax+1), []byte("b")), proto.ErrBadKey, "512"},
		"a bin":             {batch(1, []byte("k"), long(proto.BinLenMax+1)), proto.ErrBadBin, "256"},
		"an empty key":      {batch(1, nil, []byte("b")), proto.ErrBadKey, "1 to 512"},
		"an empty bin":      {batch(1, []byte("k"), nil), proto.ErrBadBin, "1 to 256"},
		"an empty batch":    {batch(0, nil, nil), proto.ErrBadRequest, "1 to 10000"},
		"a batch that fits": {batch(proto.BatchOpsMax, []byte("fits"), []byte("b")), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := raw.Increment(ctx, c.req)
			err = ebbv1grpc.FromStatus(err)
			if err == nil && len(resp.GetRefused()) > 0 {
				err = proto.FromWire(resp.GetRefused()[0].GetError())
			}
			if c.code == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, c.code) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v: want %v and %s", err, c.code, c.want)
			}
		})
	}
	c := dialFleet(ctx, t, f)
	if keys, err := c.CountKeys(ctx, "default"); err != nil || keys.Value != 1 {
		t.Errorf("%v keys are there, %v: only the batch that fits should be", keys.Value, err)
	}
	t.Run("response", func(t *testing.T) { responseOverTheLimit(ctx, t, c, raw) })
	t.Run("questions", func(t *testing.T) {
		req := &ebbv1.AskRequest{}
		for range proto.QuestionsMax + 1 {
			req.Questions = append(req.Questions, allOf("fits"))
		}
		_, err := raw.Ask(ctx, req)
		if err = ebbv1grpc.FromStatus(err); err == nil || !strings.Contains(err.Error(), "more than 1000 questions: that is the limit of AskRequest") {
			t.Errorf("%v questions: %v", len(req.Questions), err)
		}
	})
}

func allOf(key string) *ebbv1.Question {
	return &ebbv1.Question{Ask: &ebbv1.Question_Distribution{Distribution: &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_All{All: true},
	}}}
}

// responseOverTheLimit asks for a distribution that is larger than an answer may be.
func responseOverTheLimit(ctx context.Context, t *testing.T, c *client.Client, raw ebbv1grpc.EbbClient) {
	w := c.Writer(client.WriterOptions{OnError: func(err error) { t.Errorf("write: %v", err) }})
	for i := range 30_000 {
		if err := w.Add(ctx, "huge", fmt.Sprintf("%0250d", i), 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	resp, err := raw.Ask(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{allOf("huge"), allOf("fits")}})
	if err = ebbv1grpc.FromStatus(err); err == nil {
		err = proto.FromWire(resp.GetAnswers()[0].GetError())
	}
	if !errors.Is(err, proto.ErrResponseTooLarge) || !strings.Contains(fmt.Sprint(err), "the limit of an answer is") {
		t.Errorf("an answer of 8 MB: %v", err)
	}
	if _, err := c.Distribution(ctx, "default", "huge"); !errors.Is(err, proto.ErrResponseTooLarge) {
		t.Errorf("the client says %v", err)
	}
	if d, err := c.Top(ctx, "default", "huge", 10); err != nil || len(d.Bins) != 10 || d.BinsTotal != 30_000 || !d.Brief {
		t.Errorf("its first ten: %v", err)
	}
}

// mounted makes dir a small file system, or skips where that is not allowed.
func mounted(t *testing.T, dir, options string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("this user may not mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// A disk that is full refuses writes and ends nothing. With a larger one writes go on by themselves, and all that was
// acknowledged is there.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a disk")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := filepath.Join(t.TempDir(), "small")
	mounted(t, dir, "size=120m")
	f, _ := oneProcess(ctx, t, dir)
	mustEbb(ctx, t, f, "namespace", "create", "ledger", "--decay", "none")
	filler := filepath.Join(f.DataDir(0), "filler")
	if err := fillUp(filler); err != nil {
		t.Fatal(err)
	}
	acknowledged := fill(ctx, t, f)
	_, err := ebb(ctx, t, f, "incr", "k", "b", "-n", "ledger", "--timeout", "1s")
	says(t, fmt.Sprint(err), "node ebb-0 has no disk space left", "EBB-1015", "try:  free some space")

	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	c := dialFleet(ctx, t, f)
	for err = errors.New("none yet"); err != nil && ctx.Err() == nil; {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err = c.Increment(try, "ledger", client.One("k", "last"))
		cancel()
	}
	got, err := c.Count(ctx, "ledger", "k")
	if err != nil || got.Value < float64(acknowledged)+1 {
		t.Errorf("%v is there of %d acknowledged: %v", got.Value, acknowledged+1, err)
	}
	t.Logf("%d acknowledged, %v there", acknowledged, got.Value)
}

// fill writes until a write fails, and returns how many did not.
func fill(ctx context.Context, t *testing.T, f *proc.Fleet) int {
	t.Helper()
	c := dialFleet(ctx, t, f)
	batch := make([]client.Increment, 2000)
	for n := 0; ; n += len(batch) {
		for i := range batch {
			batch[i] = client.Increment{Key: "k", Bin: fmt.Sprintf("%0200d", i), Amount: 1}
		}
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := c.Increment(try, "ledger", batch...)
		cancel()
		if err != nil {
			return n
		}
	}
}

// Directories and addresses that cannot be used.
func TestPlacesThatCannotBeUsed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	base := t.TempDir()
	serve := func(t *testing.T, dir string, args ...string) string {
		t.Helper()
		said, _ := serveUntilItEnds(ctx, t, append([]string{"--data-dir", dir, "--grpc", "127.0.0.1:0", "--gossip", "-"}, args...)...)
		return said
	}
	t.Run("a newer version", func(t *testing.T) {
		dir := filepath.Join(base, "newer")
		write(t, filepath.Join(dir, "node.json"), `{"layout":99,"node":"ebb-0"}`)
		says(t, serve(t, dir), dir, "storage version 99", fmt.Sprintf("this program knows 1 to %d", proto.StorageVersion), "EBB-4004", "try:  start the ebb that wrote it")
	})
	t.Run("damaged", func(t *testing.T) {
		dir := filepath.Join(base, "damaged")
		write(t, filepath.Join(dir, "node.json"), `{"layout":`)
		says(t, serve(t, dir), dir, "node.json is damaged", "EBB-4002", "try:  restore node.json")
	})
	t.Run("somebody else's", func(t *testing.T) {
		dir := filepath.Join(base, "photos")
		write(t, filepath.Join(dir, "holiday.jpg"), "")
		says(t, serve(t, dir), dir, "not empty and not ebb's", "holiday.jpg")
	})
	t.Run("a file", func(t *testing.T) {
		file := filepath.Join(base, "file")
		write(t, file, "")
		says(t, serve(t, file), file, "is not a directory")
	})
	t.Run("read-only", func(t *testing.T) {
		dir := filepath.Join(base, "read-only")
		mounted(t, dir, "size=1m")
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		says(t, serve(t, dir), dir, "is read-only", "try:  mount it for writing")
	})
	t.Run("not permitted", func(t *testing.T) {
		dir := filepath.Join(base, "immutable")
		write(t, filepath.Join(dir, "lost+found"), "")
		if err := exec.CommandContext(ctx, "chattr", "+i", dir).Run(); err != nil {
			t.Skipf("no immutable directories here: %v", err)
		}
		defer func() {
			if err := exec.CommandContext(ctx, "chattr", "-i", dir).Run(); err != nil {
				t.Error(err)
			}
		}()
		says(t, serve(t, dir), dir, "may not be used by this user", "try:")
	})
	t.Run("too small", func(t *testing.T) {
		dir := filepath.Join(base, "tiny")
		mounted(t, dir, "size=10m")
		says(t, serve(t, dir), dir, "MiB are free", "at least 64")
	})
	t.Run("another node's, and locked", func(t *testing.T) {
		f, _ := oneProcess(ctx, t, filepath.Join(base, "fleet"))
		says(t, serve(t, f.DataDir(0)), f.DataDir(0), "locked by another process", "EBB-4005", "try:")
		says(t, serve(t, filepath.Join(base, "second"), "--grpc", f.GRPC(0)), f.GRPC(0), "address already in use", "--grpc")
		f.Interrupt(0)
		says(t, serve(t, f.DataDir(0), "--node", "ebb-1", "--gossip", "127.0.0.1:0", "--bootstrap-expect", "2"), "belongs to node ebb-0", "--node ebb-0")
	})
	for _, flag := range []string{"grpc", "http", "admin", "gossip"} {
		t.Run("an address that does not resolve: "+flag, func(t *testing.T) {
			more := []string{"--bootstrap-expect", "2", "--gossip", "127.0.0.1:0", "--" + flag, "nowhere.invalid:1"}
			says(t, serve(t, filepath.Join(base, "unresolvable"), more...), "nowhere.invalid")
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// An import that is one source too many names the command that makes room, and
// ends as a refusal; other errors are left as they are.
func TestRoomForSources(t *testing.T) {
	for _, test := range []struct {
		err  error
		room bool
		code int
	}{
		{fmt.Errorf("import: %w", proto.ErrTooManySources.Errorf("source x is one too many")), true, exitRefused},
		{fmt.Errorf("import: %w", proto.ErrSourceFenced.Errorf("source x was taken over")), false, exitRefused},
	} {
		var said bytes.Buffer
		code := exitCode(&said, adviseTooManySources(test.err))
		if room := strings.Contains(said.String(), "ebb source drop NAME"); room != test.room || code != test.code {
			t.Errorf("exit code %d, %s", code, &said)
		}
	}
	if err := adviseTooManySources(nil); err != nil {
		t.Error(err)
	}
}
