package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// What a node keeps to while 64 random requests are under way at a time, under GOMEMLIMIT=512MiB:
//
//	peak <= idle + residentFactor x (bytes of requests admitted at once + limits of their answers) + residentSlack
//	peak <= residentMax
const (
	residentLimit  = "512MiB"
	residentAtOnce = 64
	residentFactor = 4
	residentSlack  = 64 << 20
	residentMax    = 640 << 20
	// probeMax is how long a health probe takes at most where other tests run too, besides how late the machine is at
	// that moment. EBB_RESIDENT_PROBE sets what is promised where nothing else runs: 100ms.
	probeMax = time.Second
	// residentKinds are those that run unless EBB_RESIDENT_KINDS says otherwise: "all", or "tell", which asks nothing.
	residentKinds = "all"
)

// Priorities (nice) of the processes. The load yields to the node, so that probes wait for the node, not for the load.
// The prober goes before both, so that it measures the node and not itself. Without the right to that it runs as the
// node does. They share a session: where the kernel groups processes by session, priorities count within one.
const (
	loadNice   = 10
	proberNice = -10
)

// residentNode is a process of one node.
type residentNode struct {
	grpc, http, admin string
	pid               int
	conns             []*grpc.ClientConn // several, as clients have them
	client            *http.Client
}

// residentAt returns a node that listens at these addresses, and what closes the connections to it.
func residentAt(grpcAddr, httpAddr string) (n *residentNode, leave func(), err error) {
	n = &residentNode{grpc: grpcAddr, http: httpAddr}
	n.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: residentAtOnce}}
	leave = func() {
		for _, conn := range n.conns {
			conn.Close()
		}
		n.client.CloseIdleConnections()
	}
	for range 8 {
		conn, err := grpc.NewClient(n.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			leave()
			return nil, nil, err
		}
		n.conns = append(n.conns, conn)
	}
	return n, leave, nil
}

func startResident(ctx context.Context, t *testing.T) *residentNode {
	t.Helper()
	var addrs [3]string
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addrs[i] = l.Addr().String()
		l.Close()
	}
	n, leave, err := residentAt(addrs[0], addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	n.admin = addrs[2]
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, binary(t), "serve", "--data-dir", filepath.Join(dir, "data"), "--shards", "4",
		"--gossip", "-", "--grpc", n.grpc, "--http", n.http, "--admin", n.admin)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT="+residentLimit)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		leave()
		if said, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the node's log ends:\n%s", said[max(0, len(said)-4<<10):])
		}
		log.Close()
	})
	n.pid = cmd.Process.Pid
	for n.probe(ctx, "/readyz") != nil {
		if ctx.Err() != nil {
			t.Fatal("the node is not ready")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return n
}

// probe asks the admin listener.
func (n *residentNode) probe(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		return err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

var residentLine = regexp.MustCompile(`(?m)^(VmRSS|VmHWM):\s+(\d+) kB`)

// resident is how many bytes of memory the process takes, and the most it has taken since forget.
func (n *residentNode) resident(t *testing.T) (now, peak int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range residentLine.FindAllSubmatch(status, -1) {
		kb, err := strconv.ParseInt(string(m[2]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if string(m[1]) == "VmRSS" {
			now = kb << 10
		} else {
			peak = kb << 10
		}
	}
	return now, peak
}

// forget has the peak begin anew.
func (n *residentNode) forget(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", n.pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
}

// furnish gives the node something to answer with.
func (n *residentNode) furnish(ctx context.Context, t *testing.T) {
	t.Helper()
	c := ebbv1grpc.NewEbbClient(n.conns[0])
	kinds := []ebbv1.Kind{
		ebbv1.Kind_KIND_UNSPECIFIED, ebbv1.Kind_KIND_DISTINCT, ebbv1.Kind_KIND_SET, ebbv1.Kind_KIND_TOPK,
	}
	for k := range 20 {
		req := &ebbv1.IncrementRequest{}
		for i := range 5_000 {
			req.Increments = append(req.Increments, &ebbv1.Increment{
				Key:  fmt.Appendf(nil, "%d/%d", k%len(kinds), k),
				Bin:  fmt.Appendf(nil, "bin-%d", i),
				Kind: kinds[k%len(kinds)],
			})
		}
		resp, err := c.Increment(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, refusal := range resp.GetRefused() {
			t.Fatalf("furnish: %v", refusal.GetError())
		}
	}
}

// settled waits until the process takes no less any more, and returns what that is.
func (n *residentNode) settled(ctx context.Context, t *testing.T) int64 {
	t.Helper()
	now, _ := n.resident(t)
	for ctx.Err() == nil {
		before := now
		time.Sleep(200 * time.Millisecond)
		if now, _ = n.resident(t); now >= before {
			break
		}
	}
	return now
}

// startAt starts a process with a priority (nice). A process without the right to a higher one starts with its own.
func startAt(cmd *exec.Cmd, nice int) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine: it could not take back a lower priority
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, 0, nice)
		started <- cmd.Start()
	}()
	return <-started
}

// A node that gets random requests at every door, 64 at a time, keeps to its memory and answers its probes. The load
// and the prober are processes of their own. EBB_RESIDENT_SECONDS says for how long.
func TestResidentMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real process under load")
	}
	length := 8 * time.Second
	if v := os.Getenv("EBB_RESIDENT_SECONDS"); v != "" {
		s, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		length = time.Duration(s) * time.Second
	}
	promised := probeMax
	if v := os.Getenv("EBB_RESIDENT_PROBE"); v != "" {
		var err error
		if promised, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), length+2*time.Minute)
	defer cancel()
	n := startResident(ctx, t)
	n.furnish(ctx, t)
	idle := n.settled(ctx, t)
	seed := uint64(time.Now().UnixNano())
	n.forget(t)

	finish := n.startLoad(ctx, t, seed)
	probes := n.probeFor(ctx, t, length)
	_, peak := n.resident(t)
	load := finish()
	t.Logf("seed %d: idle %d MiB, peak %d MiB, %d MiB under way at once", seed, idle>>20, peak>>20, load.Most>>20)
	const limits = residentAtOnce * proto.MessageBytesMax // of answers
	grew := max(0, float64(peak-idle-residentSlack))
	t.Logf("c = %.2f, or %.2f of requests alone", grew/float64(load.Most+limits), grew/float64(load.Most))
	t.Log(probes)
	for kind, c := range load.Counts {
		t.Logf("%-20s %6d admitted, %6d refused for want of memory", kind, c[0], c[1])
	}
	t.Logf("%d MiB of requests and %d MiB of answers in all", load.Sent>>20, load.Answers>>20)
	if bound := idle + residentFactor*(load.Most+limits) + residentSlack; peak > bound {
		t.Errorf("%d MiB are resident: the bound is %d", peak>>20, bound>>20)
	}
	if peak > residentMax {
		t.Errorf("%d MiB are resident: the limit is %d", peak>>20, int64(residentMax)>>20)
	}
	if load.Sent == 0 || probes.Count == 0 {
		t.Errorf("%d bytes were admitted, and %d probes answered", load.Sent, probes.Count)
	}
	if probes.Slowest > promised {
		t.Errorf("a probe took %v more than the machine was late: the limit is %v", probes.Slowest, promised)
	}
}

// startLoad starts the process that sends requests. finish ends it, and returns what it has sent.
func (n *residentNode) startLoad(ctx context.Context, t *testing.T, seed uint64) (finish func() loadReport) {
	t.Helper()
	kinds := cmp.Or(os.Getenv("EBB_RESIDENT_KINDS"), residentKinds)
	cmd := exec.CommandContext(ctx, residentLoad, n.grpc, n.http, strconv.FormatUint(seed, 10), kinds)
	stop, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := startAt(cmd, loadNice); err != nil {
		t.Fatal(err)
	}
	return func() (report loadReport) {
		t.Helper()
		stop.Close()
		if err := errors.Join(cmd.Wait(), json.Unmarshal(out.Bytes(), &report)); err != nil {
			t.Fatalf("load: %v", err)
		}
		return report
	}
}

// probeFor probes the node for a time, by a process of its own.
func (n *residentNode) probeFor(ctx context.Context, t *testing.T, length time.Duration) (report probeReport) {
	t.Helper()
	cmd := exec.CommandContext(ctx, residentProber, n.admin, length.String())
	// It never waits for a collection of its own, and no signal of Go's scheduler interrupts its calls.
	cmd.Env = append(os.Environ(), "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := startAt(cmd, proberNice); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cmd.Wait(), json.Unmarshal(out.Bytes(), &report)); err != nil {
		t.Fatalf("prober: %v", err)
	}
	return report
}
