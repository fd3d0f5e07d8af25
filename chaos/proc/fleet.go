// Package proc runs clusters of real ebb processes on this machine, injects faults into them, and checks or measures
// how they behave.
package proc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options defines the fleet that Start runs.
type Options struct {
	Binary  string   // the ebb binary
	Dir     string   // below it, each node has a data directory and a log file
	Nodes   int      // 3 if 0
	Args    []string // further arguments of `ebb serve` for the nodes that the cluster starts with
	Every   []string // further arguments for all nodes, also for those that join
	Env     []string // further environment
	Testbed *Testbed // machines of their own for the nodes; nil: all listen on loopback and write to Dir
}

// Fleet is a cluster of processes.
type Fleet struct {
	opts  Options
	nodes []*process
	http  *http.Client // to the admin listeners
}

// process is the `ebb serve` of one node, across its restarts.
type process struct {
	name                      string
	grpc, http, gossip, admin string
	binary                    string   // the fleet's if empty; changed only while the process does not run
	args                      []string // its own further arguments; changed only while the process does not run
	machine                   *Machine // nil: none of its own

	mu   sync.Mutex // guards what follows; never held across a wait
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has been waited for
	cpu  time.Duration // CPU time of earlier processes of the node
}

// Start launches the nodes and returns when all of them are ready.
func Start(ctx context.Context, opts Options) (*Fleet, error) {
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return nil, err
	}
	f := &Fleet{opts: opts, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return opts.Testbed.Dial(ctx, addr) },
	}}}
	for range opts.Nodes {
		if err := f.place(); err != nil {
			return nil, err
		}
	}
	for i := range f.nodes {
		if err := f.Launch(i); err != nil {
			f.Close()
			return nil, err
		}
	}
	if err := f.WaitReady(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Join launches a further node, which gets the gossip addresses of all nodes, and returns its number.
func (f *Fleet) Join() (int, error) {
	if err := f.place(); err != nil {
		return 0, err
	}
	i := len(f.nodes) - 1
	return i, f.Launch(i)
}

// place adds a node to the fleet and assigns its machine and addresses.
func (f *Fleet) place() error {
	i := len(f.nodes)
	p := &process{name: "ebb-" + strconv.Itoa(i)}
	addrs, err := f.opts.Testbed.place(p, f.dataDirOf(p.name))
	if err != nil {
		return err
	}
	p.grpc, p.http, p.gossip, p.admin = addrs[0], addrs[1], addrs[2], addrs[3]
	f.nodes = append(f.nodes, p)
	return nil
}

// Leave releases the machine of node i and deletes its data. Its process must have ended, and the node must not be
// launched again.
func (f *Fleet) Leave(i int) error { return f.opts.Testbed.leave(f.nodes[i], f.DataDir(i)) }

// Wipe deletes all data of node i, which must not be running.
func (f *Fleet) Wipe(i int) error {
	dir := f.DataDir(i)
	if f.nodes[i].machine == nil {
		return os.RemoveAll(dir)
	}
	return f.nodes[i].machine.do(func() error { // the directory itself may be where a disk is mounted
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		for _, name := range names {
			err = errors.Join(err, os.RemoveAll(name))
		}
		return err
	})
}

// Runs reports whether the process of node i is running.
func (f *Fleet) Runs(i int) bool { return f.nodes[i].running() }

// Use sets the binary of node i from its next launch on. The node must not be running.
func (f *Fleet) Use(i int, binary string) { f.nodes[i].binary = binary }

// Give replaces the arguments of node i's own from its next launch on. The node must not be running.
func (f *Fleet) Give(i int, args ...string) { f.nodes[i].args = args }

// Launch starts node i (again), with the data it has.
func (f *Fleet) Launch(i int) error { return f.launch(i, exec.Command) }

func (f *Fleet) launch(i int, command func(name string, args ...string) *exec.Cmd) error {
	p := f.nodes[i]
	var join []string
	for _, other := range f.nodes {
		join = append(join, other.gossip)
	}
	args := []string{
		"serve", "--node", p.name, "--data-dir", f.DataDir(i),
		"--grpc", p.grpc, "--http", p.http, "--gossip", p.gossip, "--admin", p.admin,
		"--join", strings.Join(join, ","),
	}
	args = append(args, f.opts.Every...)
	args = append(args, p.args...)
	if i < f.opts.Nodes {
		args = append(args, "--bootstrap-expect", strconv.Itoa(f.opts.Nodes))
		args = append(args, f.opts.Args...)
	}
	log, err := os.OpenFile(f.LogFile(i), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := command(cmp.Or(p.binary, f.opts.Binary), args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), f.opts.Env...)
	if err := p.machine.starts(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		p.mu.Lock()
		p.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// LogFile is where node i writes its output.
func (f *Fleet) LogFile(i int) string { return filepath.Join(f.opts.Dir, f.nodes[i].name+".log") }

// WaitReady waits until every node is ready. It fails if a process has ended or when ctx ends.
func (f *Fleet) WaitReady(ctx context.Context) error {
	for i, p := range f.nodes {
		for !f.ready(ctx, p) {
			if !p.running() {
				return fmt.Errorf("%s has ended; the end of its log:\n%s", p.name, f.LogTail(i))
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", p.name, ctx.Err(), f.LogTail(i))
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

func (f *Fleet) ready(ctx context.Context, p *process) bool {
	_, err := f.fetch(ctx, "http://"+p.admin+"/readyz")
	return err == nil
}

func (f *Fleet) fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, err
}

// LogTail returns the end of node i's output.
func (f *Fleet) LogTail(i int) string {
	b, err := os.ReadFile(f.LogFile(i))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

// logSize returns the size of node i's log file in bytes; 0 if it cannot be read.
func (f *Fleet) logSize(i int) int64 {
	info, err := os.Stat(f.LogFile(i))
	if err != nil {
		return 0
	}
	return info.Size()
}

// logFrom returns the log of node i from byte offset at on.
func (f *Fleet) logFrom(i int, at int64) string {
	b, err := os.ReadFile(f.LogFile(i))
	if err != nil {
		return err.Error()
	}
	return string(b[min(at, int64(len(b))):])
}

func (p *process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill sends SIGKILL to node i and waits for its end.
func (f *Fleet) Kill(i int) { f.nodes[i].end(os.Kill) }

// Interrupt sends an interrupt signal to node i and waits for its end.
func (f *Fleet) Interrupt(i int) { f.nodes[i].end(os.Interrupt) }

func (p *process) end(sig os.Signal) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		_ = cmd.Process.Kill()
	}
	<-done
}

// Close kills every process.
func (f *Fleet) Close() {
	for _, p := range f.nodes {
		p.end(os.Kill)
	}
	f.http.CloseIdleConnections()
}

// Nodes returns the number of nodes, including those that have ended.
func (f *Fleet) Nodes() int { return len(f.nodes) }

// Name returns the name of node i.
func (f *Fleet) Name(i int) string { return f.nodes[i].name }

// GRPC returns the gRPC address of node i.
func (f *Fleet) GRPC(i int) string { return f.nodes[i].grpc }

// HTTP returns the HTTP address of node i.
func (f *Fleet) HTTP(i int) string { return f.nodes[i].http }

// Gossip returns the gossip address of node i.
func (f *Fleet) Gossip(i int) string { return f.nodes[i].gossip }

// DataDir is where node i keeps its data.
func (f *Fleet) DataDir(i int) string { return f.dataDirOf(f.nodes[i].name) }

// dataDirOf is where the node of that name keeps its data.
func (f *Fleet) dataDirOf(name string) string { return filepath.Join(f.opts.Dir, name) }

// Machine returns the machine of node i; nil if it has none of its own.
func (f *Fleet) Machine(i int) *Machine { return f.nodes[i].machine }

// Pause suspends the process of node i until Resume.
func (f *Fleet) Pause(i int) error { return f.nodes[i].signal(pause) }

// Resume continues the process of node i.
func (f *Fleet) Resume(i int) error { return f.nodes[i].signal(resume) }

// process returns the running process of the node, or its last one.
func (p *process) process() *os.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process
}

func (p *process) signal(send func(*os.Process) error) error {
	if err := send(p.process()); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Ready reports whether node i answers that it is ready.
func (f *Fleet) Ready(ctx context.Context, i int) bool { return f.ready(ctx, f.nodes[i]) }

// Admin returns the admin address of node i.
func (f *Fleet) Admin(i int) string { return f.nodes[i].admin }

// Addrs returns the gRPC addresses of all nodes.
func (f *Fleet) Addrs() []string {
	var out []string
	for _, p := range f.nodes {
		out = append(out, p.grpc)
	}
	return out
}

// CPU returns the CPU time that all nodes have used so far, including their earlier processes.
func (f *Fleet) CPU(ctx context.Context) (time.Duration, error) {
	var sum time.Duration
	for i := range f.nodes {
		used, err := f.NodeCPU(ctx, i)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// NodeCPU returns the CPU time that node i has used so far, including its earlier processes. For the running process it
// reads the metric process_cpu_seconds_total.
func (f *Fleet) NodeCPU(ctx context.Context, i int) (time.Duration, error) {
	p := f.nodes[i]
	p.mu.Lock()
	used := p.cpu
	p.mu.Unlock()
	if !p.running() {
		return used, nil
	}
	body, err := f.fetch(ctx, "http://"+p.admin+"/metrics")
	if err != nil {
		return 0, err
	}
	seconds, err := metric(body, "process_cpu_seconds_total")
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.name, err)
	}
	return used + time.Duration(seconds*float64(time.Second)), nil
}

// Metric returns the value of a metric without labels. Node i must be running.
func (f *Fleet) Metric(ctx context.Context, i int, name string) (float64, error) {
	body, err := f.fetch(ctx, "http://"+f.nodes[i].admin+"/metrics")
	if err != nil {
		return 0, err
	}
	return metric(body, name)
}

// metric finds the value of a metric without labels.
func metric(body []byte, name string) (float64, error) {
	for line := range bytes.Lines(body) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			return strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// PID returns the process id of node i, or that of its last process.
func (f *Fleet) PID(i int) int { return f.nodes[i].process().Pid }
