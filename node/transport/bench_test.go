package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ebbdb/ebb/internal/trust"
)

// cpuTime is what this process has used, user and system.
func cpuTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// ballast makes the heap as large as a small node's, so that the collector runs
// as seldom as there.
func ballast(b *testing.B) {
	heap := make([]byte, 128<<20)
	b.Cleanup(func() { runtime.KeepAlive(heap) })
}

// loopback starts nodes on real sockets, as a machine's own cluster would.
func loopback(b *testing.B, names ...string) map[string]*Mux {
	b.Helper()
	return line{checks: true}.loopback(b, names...)
}

// line is what protects connections.
type line struct{ checks, tls bool }

func (l line) String() string { return fmt.Sprintf("checks=%t/tls=%t", l.checks, l.tls) }

// credentials are those of servers, and of who dials.
func (l line) credentials(b *testing.B, checks *Checks) (server, asker credentials.TransportCredentials) {
	b.Helper()
	server, asker = insecure.NewCredentials(), insecure.NewCredentials()
	if l.tls {
		now := time.Now()
		ca, err := trust.NewAuthority("bench", now, now.Add(time.Hour))
		if err != nil {
			b.Fatal(err)
		}
		pair, err := ca.Pair(trust.Request{Name: "bench", Hosts: []string{"127.0.0.1"}, From: now, To: now.Add(time.Hour)})
		if err != nil {
			b.Fatal(err)
		}
		known := x509.NewCertPool()
		known.AppendCertsFromPEM(ca.PEM)
		server = credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13})
		asker = credentials.NewTLS(&tls.Config{RootCAs: known, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13})
	}
	if l.checks {
		server = checkedCredentials{server, checks}
	}
	return server, asker
}

func (l line) loopback(b *testing.B, names ...string) map[string]*Mux {
	b.Helper()
	ballast(b)
	checks := quietChecks()
	server, asker := l.credentials(b, checks)
	addrs, nodes := map[string]string{}, map[string]*Mux{}
	for _, name := range names {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		addrs[name] = listener.Addr().String()
		m := New(Config{Node: name, DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(asker)}, Dial: func(ctx context.Context, node string) (net.Conn, error) {
			dial := func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", addrs[node])
			}
			if l.checks {
				return checks.Dial(ctx, dial)
			}
			return dial(ctx)
		}})
		s := grpc.NewServer(grpc.Creds(server), grpc.InitialWindowSize(streamWindow), grpc.InitialConnWindowSize(connWindow))
		m.Register(s)
		nodes[name] = m
		var served sync.WaitGroup
		served.Go(func() { _ = s.Serve(listener) })
		b.Cleanup(func() { m.Close(); s.Stop(); served.Wait() })
	}
	return nodes
}

func header(node string, id int) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: 3, ID: fmt.Append(nil, id), Addr: fmt.Appendf(nil, "%s/%d", node, id)}
}

func appendOf(node string, id, entries, bytes int) *raft.AppendEntriesRequest {
	r := &raft.AppendEntriesRequest{RPCHeader: header(node, id), Term: 7, PrevLogEntry: 1000, PrevLogTerm: 7, LeaderCommitIndex: 990}
	r.Leader = r.Addr
	for i := range entries {
		r.Entries = append(r.Entries, &raft.Log{Index: 1001 + uint64(i), Term: 7, Data: make([]byte, bytes), AppendedAt: time.Now()})
	}
	return r
}

// BenchmarkAppendEntries is one round trip, with callers in as many groups at
// the same time. cpu-us/op is what both sides used together.
func BenchmarkAppendEntries(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		for _, bytes := range []int{256, 4 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("callers=%d/bytes=%d", callers, bytes), func(b *testing.B) { benchAppend(b, line{checks: true}, callers, bytes) })
		}
	}
}

// BenchmarkLines is what it costs that no bit is inverted unnoticed.
func BenchmarkLines(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for _, bytes := range []int{256, 4 << 10, 64 << 10} {
			for _, l := range []line{{}, {checks: true}, {tls: true}, {checks: true, tls: true}} {
				b.Run(fmt.Sprintf("%v/callers=%d/bytes=%d", l, callers, bytes), func(b *testing.B) { benchAppend(b, l, callers, bytes) })
			}
		}
	}
}

func benchAppend(b *testing.B, l line, callers, bytes int) {
	nodes := l.loopback(b, "a", "b")
	var groups []*Group
	for i := range callers {
		b.Cleanup(echo(nodes["b"].Group(uint32(i+1), Address("b", uint64(i+1)))))
		groups = append(groups, nodes["a"].Group(uint32(i+1), Address("a", uint64(i+1))))
	}
	call := func(i int) {
		var resp raft.AppendEntriesResponse
		if err := groups[i].AppendEntries("", Address("b", uint64(i+1)), appendOf("a", i+1, 1, bytes), &resp); err != nil || !resp.Success {
			b.Error(err)
		}
	}
	call(0)
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	cpu := cpuTime()
	b.ResetTimer()
	for i := range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				call(i)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime()-cpu).Nanoseconds())/1e3/float64(b.N), "cpu-us/op")
}

// BenchmarkIdle is a second of three nodes of real rafts that only keep their
// leaders. cores/node is what one of them uses, Raft included.
func BenchmarkIdle(b *testing.B) {
	for _, c := range []struct {
		groups  uint32
		timeout time.Duration
	}{{64, time.Second}, {256, 3 * time.Second}, {1024, 5 * time.Second}} {
		b.Run(fmt.Sprintf("groups=%d/timeout=%s", c.groups, c.timeout), func(b *testing.B) {
			names := []string{"a", "b", "c"}
			nodes := loopback(b, names...)
			var rafts []*raft.Raft
			for g := uint32(1); g <= c.groups; g++ {
				for i, s := range servers(g, names...).Servers {
					rafts = append(rafts, idleRaft(b, nodes[names[i]], g, s, c.timeout))
				}
			}
			led := func() (n uint32) {
				for _, r := range rafts {
					if r.State() == raft.Leader {
						n++
					}
				}
				return n
			}
			for start := time.Now(); led() < c.groups; time.Sleep(100 * time.Millisecond) {
				if time.Since(start) > 2*time.Minute {
					b.Fatalf("%d of %d groups have a leader", led(), c.groups)
				}
			}
			time.Sleep(3 * time.Second) // until it is quiet
			cpu, start := cpuTime(), time.Now()
			b.ResetTimer()
			for range b.N {
				time.Sleep(time.Second)
			}
			b.StopTimer()
			b.ReportMetric((cpuTime()-cpu).Seconds()/time.Since(start).Seconds()/3, "cores/node")
			if led() != c.groups {
				b.Errorf("%d of %d groups have a leader", led(), c.groups)
			}
		})
	}
}

func idleRaft(b *testing.B, m *Mux, group uint32, s raft.Server, timeout time.Duration) *raft.Raft {
	b.Helper()
	cfg := raftConfig(string(s.ID))
	cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = timeout, timeout, timeout/2
	store, snaps, g := raft.NewInmemStore(), raft.NewInmemSnapshotStore(), m.Group(group, s.Address)
	if err := raft.BootstrapCluster(cfg, store, store, snaps, g, servers(group, "a", "b", "c")); err != nil {
		b.Fatal(err)
	}
	r, err := raft.NewRaft(cfg, &testFSM{}, store, store, snaps, g)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		f := r.Shutdown()
		_ = g.Close()
		_ = f.Error()
	})
	return r
}
