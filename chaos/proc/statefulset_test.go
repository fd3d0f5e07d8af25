package proc

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

func ask(t *testing.T, s *nameServer, name string) []string {
	t.Helper()
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", s.addr())
	}}
	addrs, err := r.LookupHost(t.Context(), name+".") // the dot keeps this machine's search list out
	if err != nil {
		if e, ok := err.(*net.DNSError); !ok || !e.IsNotFound { //nolint:errorlint // that is its type
			t.Fatal(err)
		}
	}
	slices.Sort(addrs)
	return addrs
}

// Names of single pods are remembered, also that there is none; names of several are not.
func TestNameServer(t *testing.T) {
	var mu sync.Mutex
	now := map[string][]netip.Addr{}
	put := func(name string, addrs ...string) {
		mu.Lock()
		defer mu.Unlock()
		now[name] = nil
		for _, a := range addrs {
			now[name] = append(now[name], netip.MustParseAddr(a))
		}
	}
	s, err := serveNames(1<<40, func(name string) ([]netip.Addr, bool) {
		mu.Lock()
		defer mu.Unlock()
		return now[name], name != "peers.svc"
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	put("peers.svc", "127.16.0.1", "127.16.0.2")
	put("one.peers.svc", "127.16.0.1")
	for _, c := range []struct {
		name string
		want []string
	}{
		{"peers.svc", []string{"127.16.0.1", "127.16.0.2"}},
		{"PEERS.svc", []string{"127.16.0.1", "127.16.0.2"}},
		{"one.peers.svc", []string{"127.16.0.1"}},
		{"two.peers.svc", nil},
	} {
		if got := ask(t, s, c.name); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	put("peers.svc", "127.16.0.3")
	put("one.peers.svc", "127.16.0.3")
	put("two.peers.svc", "127.16.0.2")
	for name, want := range map[string][]string{"peers.svc": {"127.16.0.3"}, "one.peers.svc": {"127.16.0.1"}, "two.peers.svc": nil} {
		if got := ask(t, s, name); !slices.Equal(got, want) {
			t.Errorf("later, %s: %v, want %v", name, got, want)
		}
	}
	if got := s.answer([]byte("nonsense")); got != nil {
		t.Errorf("nonsense is answered with %v", got)
	}
}

// A pod's variables are expanded in their order, and what listens on all addresses
// listens on the pod's, at ports of this machine.
func TestPodEnvironment(t *testing.T) {
	s := &StatefulSet{
		opts: SetOptions{Dir: "/volumes", Pod: Pod{Name: "ebb", Service: "ebb-peers", Env: []Variable{
			{"POD_NAME", ""},
			{"POD_IP", ""},
			{"EBB_NODE", "$(POD_NAME)"},
			{"EBB_JOIN", "ebb-peers.$(POD_NAMESPACE).svc:7071"},
			{"EBB_GRPC", "0.0.0.0:7070"},
			{"EBB_GOSSIP", "$(POD_IP):7071"},
			{"EBB_ADVERTISE_GRPC", "$(EBB_NODE).ebb-peers.$(POD_NAMESPACE).svc:7070"},
		}}},
		ports: map[string]string{"7070": "12000", "7071": "12001"},
		names: &nameServer{conn: discard{}},
	}
	env := s.environment(&pod{name: "ebb-1", ip: netip.MustParseAddr("127.16.0.9")})
	for name, want := range map[string]string{
		"EBB_NODE": "ebb-1", "EBB_JOIN": "ebb-peers.shop.svc:12001", "EBB_GRPC": "127.16.0.9:12000", "EBB_GOSSIP": "127.16.0.9:12001",
		"EBB_ADVERTISE_GRPC": "ebb-1.ebb-peers.shop.svc:12000", "EBB_DATA_DIR": "/volumes/ebb-1", "EBB_DNS": "127.0.0.1:53",
	} {
		if env[name] != want {
			t.Errorf("%s=%q, want %q", name, env[name], want)
		}
	}
}

// discard is a connection that has an address and no more.
type discard struct{ net.PacketConn }

func (discard) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53} }
