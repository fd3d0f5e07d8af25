package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Pod is what a manifest says of the pods of a StatefulSet, as far as it matters
// to processes. deploy/testdata/pod.json has it for production.
type Pod struct {
	Name, Service string // of the StatefulSet, and of its headless Service
	Replicas      int
	Env           []Variable // in the order in which they are expanded
	Startup       Probe
	Live          Probe
	Ready         Probe
	PreStop       int // seconds of sleep before SIGTERM
	Grace         int // seconds from the beginning of PreStop to SIGKILL
}

// Variable is one of a pod's environment. Those that the manifest takes from
// elsewhere (the pod's name, its address) have no value there.
type Variable struct{ Name, Value string }

// Probe is an HTTP probe of a path of the admin listener.
type Probe struct {
	Path                       string
	Period, Timeout, Threshold int // seconds, seconds, failures in a row
}

// ReadPod reads a description of pods.
func ReadPod(path string) (Pod, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Pod{}, err
	}
	var p Pod
	return p, json.Unmarshal(raw, &p)
}

// SetOptions says what to run and how.
type SetOptions struct {
	Binary string
	Dir    string // below it, each pod has a volume and a log file
	Pod    Pod
	Env    []string // further environment of the pods
	// Haste divides the periods of probes, the sleep of preStop and the 30 s for which DNS answers are cached; 1 if 0.
	Haste int
}

// Namespace is the Kubernetes namespace in the DNS names of a StatefulSet.
const Namespace = "shop"

// StatefulSet runs processes as Kubernetes runs pods. Each ordinal keeps its name and its volume; each of its pods gets
// a new address 127.x.y.z. StatefulSet probes pods as kubelet would, and kills those that fail the startup or the
// liveness probe. Its DNS server caches the names of single pods, so these may be outdated.
type StatefulSet struct {
	opts  SetOptions
	ports map[string]string // port of the manifest -> a free port of this machine
	names *nameServer

	mu       sync.Mutex // guards what follows
	pods     []*pod     // by ordinal; nil while there is none
	last     netip.Addr // the last address that was given to a pod
	restarts []string   // why kubelet has killed pods
	closed   bool
}

// pod is one pod of an ordinal, with its process and its address.
type pod struct {
	name    string
	ordinal int
	ip      netip.Addr
	env     map[string]string
	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd has been waited for
	stop    context.CancelFunc
	wg      sync.WaitGroup

	// guarded by StatefulSet.mu
	ready, leaving bool
}

// StartSet makes all pods at once and returns without waiting for them.
func StartSet(opts SetOptions) (*StatefulSet, error) {
	opts.Haste = max(opts.Haste, 1)
	addrs, err := FreeAddresses(4)
	if err != nil {
		return nil, err
	}
	s := &StatefulSet{opts: opts, ports: make(map[string]string), pods: make([]*pod, opts.Pod.Replicas), last: netip.MustParseAddr("127.16.0.0")}
	for i, port := range []string{"7070", "7080", "7071", "7081"} {
		_, s.ports[port], _ = strings.Cut(addrs[i], ":")
	}
	if s.names, err = serveNames(30*time.Second/time.Duration(opts.Haste), s.lookup); err != nil {
		return nil, err
	}
	for i := range s.pods {
		if err := s.create(i); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// lookup answers DNS questions. Each pod has a name, and the headless Service stands for all pods, ready or not. The
// name of the other Service stands for the ready pods; Kubernetes would answer with its virtual address. cached says
// whether the answer may be cached: only names of single pods may.
func (s *StatefulSet) lookup(name string) (addrs []netip.Addr, cached bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	suffix := "." + Namespace + ".svc"
	peers := s.opts.Pod.Service + suffix
	for _, p := range s.pods {
		switch {
		case p == nil:
		case name == p.name+"."+peers, name == peers, name == s.opts.Pod.Name+suffix && p.ready && !p.leaving:
			addrs = append(addrs, p.ip)
		}
	}
	return addrs, name != s.opts.Pod.Name+suffix && name != peers
}

// create starts a pod for an ordinal, with a new address.
func (s *StatefulSet) create(ordinal int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("the set is closed")
	}
	s.last = s.last.Next()
	p := &pod{name: s.opts.Pod.Name + "-" + strconv.Itoa(ordinal), ordinal: ordinal, ip: s.last, done: make(chan struct{})}
	p.env = s.environment(p)
	if err := s.launch(p); err != nil {
		return err
	}
	s.pods[ordinal] = p
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.wg.Go(func() { s.kubelet(ctx, p) })
	return nil
}

// environment expands the manifest's variables for a pod. A listener on all addresses listens on the pod's address
// instead, because here all pods share the addresses of one machine.
func (s *StatefulSet) environment(p *pod) map[string]string {
	env := map[string]string{"POD_NAME": p.name, "POD_NAMESPACE": Namespace, "POD_IP": p.ip.String()}
	for _, v := range s.opts.Pod.Env {
		if v.Value == "" {
			continue
		}
		value := strings.ReplaceAll(expand(v.Value, env), "0.0.0.0:", p.ip.String()+":")
		for from, to := range s.ports {
			if rest, ok := strings.CutSuffix(value, ":"+from); ok {
				value = rest + ":" + to
				break
			}
		}
		env[v.Name] = value
	}
	env["EBB_DATA_DIR"] = s.volume(p.name)
	env["EBB_DNS"] = s.names.addr()
	return env
}

// expand replaces $(NAME).
func expand(value string, env map[string]string) string {
	for name, v := range env {
		value = strings.ReplaceAll(value, "$("+name+")", v)
	}
	return value
}

func (s *StatefulSet) volume(name string) string { return filepath.Join(s.opts.Dir, name) }

// launch starts a pod's process. s.mu is held.
func (s *StatefulSet) launch(p *pod) error {
	log, err := os.OpenFile(s.volume(p.name)+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(s.opts.Binary, "serve")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = s.opts.Env
	for name, value := range p.env {
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log and its state
		close(p.done)
	}()
	return nil
}

// kubelet probes a pod until ctx ends: startup first, then the two others.
func (s *StatefulSet) kubelet(ctx context.Context, p *pod) {
	spec := &s.opts.Pod
	if !s.until(ctx, p, spec.Startup, "startup", func(ok bool) bool { return ok }) {
		return
	}
	p.wg.Go(func() { s.until(ctx, p, spec.Live, "liveness", func(bool) bool { return false }) })
	failures := 0
	for s.pause(ctx, spec.Ready) {
		ok := s.probe(ctx, p, spec.Ready)
		if failures++; ok {
			failures = 0
		}
		s.mu.Lock()
		p.ready = ok || p.ready && failures < spec.Ready.Threshold
		s.mu.Unlock()
	}
}

// until probes a pod until enough returns true, and reports whether it did. It kills the pod when too many probes in a
// row have failed.
func (s *StatefulSet) until(ctx context.Context, p *pod, probe Probe, name string, enough func(ok bool) bool) bool {
	for failures := 0; s.pause(ctx, probe); {
		ok := s.probe(ctx, p, probe)
		if enough(ok) {
			return true
		}
		if failures++; ok {
			failures = 0
		}
		if failures >= probe.Threshold && ctx.Err() == nil {
			s.mu.Lock()
			s.restarts = append(s.restarts, fmt.Sprintf("%s: %d %s probes failed", p.name, failures, name))
			s.mu.Unlock()
			_ = p.cmd.Process.Kill()
			return false
		}
	}
	return false
}

func (s *StatefulSet) pause(ctx context.Context, probe Probe) bool {
	return sleep(ctx, time.Duration(probe.Period)*time.Second/time.Duration(s.opts.Haste)) == nil
}

// probe waits as long as kubelet would: Haste does not shorten the timeout.
func (s *StatefulSet) probe(ctx context.Context, p *pod, probe Probe) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(probe.Timeout)*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.env["EBB_ADMIN"]+probe.Path, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WaitReady waits until all pods are ready.
func (s *StatefulSet) WaitReady(ctx context.Context) error {
	for i := range s.pods {
		if err := s.waitReady(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (s *StatefulSet) waitReady(ctx context.Context, i int) error {
	for {
		s.mu.Lock()
		p := s.pods[i]
		ready := p != nil && p.ready
		s.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %v; the end of its log:\n%s", p.name, p.cmd.ProcessState, s.LogTail(i))
		default:
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", p.name, err, s.LogTail(i))
		}
	}
}

// Stop is how a pod ended.
type Stop struct {
	Pod    string
	Took   time.Duration // from SIGTERM to the end of the process
	Killed bool          // the process had not ended when its grace was over
	Code   int           // of its exit
	Log    string        // the output from SIGTERM on
}

// Delete ends a pod as kubelet does. Services drop it, preStop sleeps, and the process gets SIGTERM, then SIGKILL when
// its grace is over. Its volume stays.
func (s *StatefulSet) Delete(i int) Stop {
	s.mu.Lock()
	p := s.pods[i]
	p.leaving = true
	s.mu.Unlock()
	pre := time.Duration(s.opts.Pod.PreStop) * time.Second
	_ = sleep(context.Background(), pre/time.Duration(s.opts.Haste)) // never fails
	said := len(s.log(p.name))
	start := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself, which its code says
	end := Stop{Pod: p.name}
	timer := time.NewTimer(time.Duration(s.opts.Pod.Grace)*time.Second - pre)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		end.Killed = true
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	end.Took, end.Code, end.Log = time.Since(start), p.cmd.ProcessState.ExitCode(), s.log(p.name)[said:]
	p.stop()
	p.wg.Wait()
	s.mu.Lock()
	s.pods[i] = nil
	s.mu.Unlock()
	return end
}

// RollingRestart replaces all pods, from the last ordinal to the first. It waits until a new pod is ready before it
// ends the next one.
func (s *StatefulSet) RollingRestart(ctx context.Context) ([]Stop, error) {
	var stops []Stop
	for i := len(s.pods) - 1; i >= 0; i-- {
		stops = append(stops, s.Delete(i))
		if err := s.create(i); err != nil {
			return stops, err
		}
		if err := s.waitReady(ctx, i); err != nil {
			return stops, err
		}
	}
	return stops, nil
}

// Restarts returns which pods kubelet has killed, and why.
func (s *StatefulSet) Restarts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.restarts...)
}

// DNS is the address of the DNS server.
func (s *StatefulSet) DNS() string { return s.names.addr() }

// Doors returns the gRPC address for clients of the cluster: a name that stands for the ready pods, and a port.
func (s *StatefulSet) Doors() string {
	return s.opts.Pod.Name + "." + Namespace + ".svc:" + s.ports["7070"]
}

// GRPC returns the present gRPC address of a pod.
func (s *StatefulSet) GRPC(i int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[i].env["EBB_GRPC"]
}

func (s *StatefulSet) log(name string) string {
	raw, err := os.ReadFile(s.volume(name) + ".log")
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// LogTail returns the end of a pod's output, over all its lives.
func (s *StatefulSet) LogTail(i int) string {
	log := s.log(s.opts.Pod.Name + "-" + strconv.Itoa(i))
	return log[max(0, len(log)-4096):]
}

// Close kills everything.
func (s *StatefulSet) Close() {
	s.mu.Lock()
	s.closed = true
	pods := append([]*pod(nil), s.pods...)
	s.mu.Unlock()
	for _, p := range pods {
		if p != nil {
			p.stop()
			_ = p.cmd.Process.Kill() // it may have ended
			<-p.done
			p.wg.Wait()
		}
	}
	s.names.close()
}
