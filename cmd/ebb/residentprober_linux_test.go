package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// residentProber is the name of the program that probes a node: residentProber ADMIN DURATION. It prints a probeReport.
//
// It does nothing else, and its threads use system calls that block: neither the load nor the scheduler of Go stands
// between a probe and the node. Other threads do nothing but sleep. How late they wake is how late the machine is.
const residentProber = "ebb-resident-prober"

const (
	probeEvery   = 5 * time.Millisecond
	probeTimeout = 5 * time.Second
	timerNap     = time.Millisecond
	timerLate    = time.Millisecond // less is not noted
)

func init() {
	testCommands[residentProber] = func() {
		if err := probeNode(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// probeReport is how long probes took.
type probeReport struct {
	Count    int
	Kept     time.Duration // the longest on a connection that is kept
	Fresh    time.Duration // the longest on a new connection, which is part of it
	Over50ms int           // of both kinds
	P99      time.Duration
	Late     time.Duration // the latest that the timer woke
	Slowest  time.Duration // the longest, less how late the timer woke in its time
}

// String implements fmt.Stringer.
func (r probeReport) String() string {
	return fmt.Sprintf("%d probes: p99 %v; %v at most on a kept connection, %v on new ones, %d over 50ms; "+
		"the machine was %v late at most; %v at most is the node's",
		r.Count, r.P99, r.Kept, r.Fresh, r.Over50ms, r.Late, r.Slowest)
}

// interval is a time between two moments, since the prober began.
type interval struct{ from, to time.Duration }

func (i interval) length() time.Duration { return i.to - i.from }

func probeNode(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments: ADMIN DURATION are expected", len(args))
	}
	admin, err := netip.ParseAddrPort(args[0])
	if err != nil {
		return err
	}
	length, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	p := &prober{start: time.Now(), at: &syscall.SockaddrInet4{Port: int(admin.Port()), Addr: admin.Addr().As4()}}
	p.request = fmt.Appendf(nil, "GET /livez HTTP/1.1\r\nHost: %s\r\n\r\n", admin)
	var timer sync.WaitGroup
	timer.Go(p.measureTimers)
	err = p.probeUntil(length)
	p.over.Store(true)
	timer.Wait()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p.report())
}

// prober probes a node, and measures how late the machine is.
type prober struct {
	start   time.Time
	at      *syscall.SockaddrInet4
	request []byte
	over    atomic.Bool

	kept, fresh []interval // probes
	late        []interval // from when the timer was due to when it woke
}

// measureTimers notes how late threads wake that only sleep. There is one on each core: where the machine runs one core
// late, what the node does there is late, wherever the prober is. It goes before all other threads of its core, so that
// the node cannot make it late. Without the right to that there is one thread, on any core, which runs as the prober
// does.
func (p *prober) measureTimers() {
	cores := allowedCores()
	lates := make([][]interval, len(cores))
	var timers sync.WaitGroup
	for i, core := range cores {
		timers.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			if err := goFirst(core); err == nil || i == 0 {
				lates[i] = p.measureTimer()
			}
		})
	}
	timers.Wait()
	p.late = slices.Concat(lates...)
}

// allowedCores are those that the process may run on; one of no number if they are not known.
func allowedCores() (cores []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil {
		for core := 0; len(cores) < set.Count(); core++ {
			if set.IsSet(core) {
				cores = append(cores, core)
			}
		}
	}
	if len(cores) == 0 {
		return []int{-1}
	}
	return cores
}

// goFirst has the thread run on one core alone, and there before all others.
func goFirst(core int) error {
	var one unix.CPUSet
	one.Set(core)
	first := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, first, 0); err != nil {
		return err
	}
	return unix.SchedSetaffinity(0, &one)
}

// measureTimer notes how late the thread wakes.
func (p *prober) measureTimer() (late []interval) {
	nap := syscall.NsecToTimespec(int64(timerNap))
	for !p.over.Load() {
		due := time.Since(p.start) + timerNap
		_ = syscall.Nanosleep(&nap, nil) // one that a signal cuts short is not late
		if woke := time.Since(p.start); woke-due > timerLate {
			late = append(late, interval{due, woke})
		}
	}
	return late
}

// probeUntil probes in turn on a connection that is kept and on a new one, as clients and kubelets do.
func (p *prober) probeUntil(length time.Duration) error {
	runtime.LockOSThread()
	conn, err := p.dial()
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer syscall.Close(conn)
	nap := syscall.NsecToTimespec(int64(probeEvery))
	for time.Since(p.start) < length {
		from := time.Since(p.start)
		if err := p.ask(conn); err != nil {
			return fmt.Errorf("probe on a kept connection: %w", err)
		}
		p.kept = append(p.kept, interval{from, time.Since(p.start)})
		_ = syscall.Nanosleep(&nap, nil)
		from = time.Since(p.start)
		if err := p.askFresh(); err != nil {
			return fmt.Errorf("probe on a new connection: %w", err)
		}
		p.fresh = append(p.fresh, interval{from, time.Since(p.start)})
		_ = syscall.Nanosleep(&nap, nil)
	}
	return nil
}

// dial returns a connection whose reads block, up to probeTimeout.
func (p *prober) dial() (int, error) {
	conn, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	timeout := syscall.NsecToTimeval(int64(probeTimeout))
	err = errors.Join( // without a limit of sending, the kernel continues a connect that a signal interrupts
		syscall.SetsockoptTimeval(conn, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &timeout),
		syscall.SetsockoptInt(conn, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
		syscall.Connect(conn, p.at))
	if err != nil {
		syscall.Close(conn)
		return 0, err
	}
	return conn, nil
}

func (p *prober) askFresh() error {
	conn, err := p.dial()
	if err != nil {
		return err
	}
	defer syscall.Close(conn)
	return p.ask(conn)
}

// ask sends a request and reads its answer, which is so short that it comes in one piece.
func (p *prober) ask(conn int) error {
	if _, err := syscall.Write(conn, p.request); err != nil {
		return err
	}
	var answer [4 << 10]byte
	n, err := syscall.Read(conn, answer[:])
	for err == syscall.EINTR {
		n, err = syscall.Read(conn, answer[:])
	}
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(answer[:n], []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(answer[:n], []byte("alive\n")) {
		return fmt.Errorf("the answer is %q", answer[:n])
	}
	return nil
}

// report sums up what was measured.
func (p *prober) report() probeReport {
	r := probeReport{Count: len(p.kept) + len(p.fresh)}
	var took []time.Duration
	for i, probes := range [][]interval{p.kept, p.fresh} {
		longest := []*time.Duration{&r.Kept, &r.Fresh}[i]
		for _, probe := range probes {
			took = append(took, probe.length())
			*longest = max(*longest, probe.length())
			r.Slowest = max(r.Slowest, probe.length()-p.lateIn(probe))
			if probe.length() > 50*time.Millisecond {
				r.Over50ms++
			}
		}
	}
	slices.Sort(took)
	if len(took) > 0 {
		r.P99 = took[len(took)*99/100]
	}
	for _, late := range p.late {
		r.Late = max(r.Late, late.length())
	}
	return r
}

// lateIn returns how late the timer was at most during a probe. Only the part in the time of the probe counts.
func (p *prober) lateIn(probe interval) (most time.Duration) {
	for _, late := range p.late {
		most = max(most, min(late.to, probe.to)-max(late.from, probe.from))
	}
	return most
}

// Only how late the timer was in the time of a probe is taken off it, and of several times the longest.
func TestProbeReport(t *testing.T) {
	const ms = time.Millisecond
	p := &prober{
		kept:  []interval{{0, 5 * ms}, {100 * ms, 200 * ms}},
		fresh: []interval{{300 * ms, 400 * ms}, {500 * ms, 560 * ms}},
		late: []interval{
			{50 * ms, 90 * ms},                        // between probes
			{90 * ms, 130 * ms}, {150 * ms, 170 * ms}, // 30 ms of the first are in a probe
			{310 * ms, 360 * ms}, {390 * ms, 500 * ms}, // 10 ms of the second are
		},
	}
	got := p.report()
	want := probeReport{
		Count: 4, Kept: 100 * ms, Fresh: 100 * ms, Over50ms: 3, P99: 100 * ms, Late: 110 * ms, Slowest: 70 * ms,
	}
	if got != want {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
