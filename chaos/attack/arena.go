package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/chaos/proc"
)

// own and foreign are the namespaces of the arena. The roles reader and writer have rights in own only.
const (
	own     = "clicks"
	foreign = "secret"
)

// memoryLimit is the GOMEMLIMIT of each node.
const memoryLimit = "512MiB"

// Arena is a cluster of one mode, under attack.
type Arena struct {
	mode   Mode
	binary string
	dir    string
	fleet  *proc.Fleet
	tls    *tls.Config       // trusts the cluster's CA; nil without TLS
	tokens map[string]string // by role
	marks  []int64           // memory of each node at MarkMemory, in bytes
	at     map[string]string // addresses of the listeners of the first node
}

// open starts a cluster. Its files are below dir.
func open(ctx context.Context, mode Mode, binary, dir string) (a *Arena, err error) {
	a = &Arena{mode: mode, binary: binary, dir: dir, tokens: map[string]string{}}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	opts := proc.Options{
		Binary: binary, Dir: filepath.Join(dir, "nodes"), Nodes: 1,
		Args: []string{"--shards", "4", "--audit-log", filepath.Join(dir, "audit.log")},
		Env:  []string{"GOMEMLIMIT=" + memoryLimit},
	}
	switch mode {
	case Three:
		opts.Nodes, opts.Args = 3, []string{"--shards", "4"}
	case Sealed:
		if err := a.certify(ctx); err != nil {
			return nil, err
		}
		opts.Every = []string{
			"--tls-cert", a.cert("ebb-0.crt"), "--tls-key", a.cert("ebb-0.key"), "--tls-ca", a.cert("ca.crt"),
			"--tls-require-client-cert",
			"--gossip-keys", a.cert("gossip.keys"),
		}
	}
	if a.fleet, err = proc.Start(ctx, opts); err != nil {
		return nil, err
	}
	a.at = map[string]string{
		"grpc": a.fleet.GRPC(0), "http": a.fleet.HTTP(0), "gossip": a.fleet.Gossip(0),
		"admin": a.fleet.Admin(0),
	}
	if err := a.furnish(ctx); err != nil {
		a.close()
		return nil, fmt.Errorf("set up the cluster %s: %w", mode, err)
	}
	return a, nil
}

func (a *Arena) close() { a.fleet.Close() }

// nodes returns how many nodes the fleet has; 0 for an arena that a test has made.
func (a *Arena) nodes() int {
	if a.fleet == nil {
		return 0
	}
	return a.fleet.Nodes()
}

func (a *Arena) cert(name string) string { return filepath.Join(a.dir, "certs", name) }

// certify makes a CA and certificates: for the node, for a client of each role, and for a client without a role.
func (a *Arena) certify(ctx context.Context) error {
	at := []string{"--dir", filepath.Join(a.dir, "certs")}
	for _, args := range [][]string{
		{"cert", "ca"},
		{"cert", "node", "ebb-0", "--host", "127.0.0.1"},
		{"cert", "client", "operator", "--role", "operator"},
		{"cert", "client", "reader", "--role", "reader=" + own},
		{"cert", "client", "writer", "--role", "writer=" + own},
		{"cert", "client", "bare"},
	} {
		if out, err := exec.CommandContext(ctx, a.binary, append(args, at...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ebb %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	if out, err := exec.CommandContext(ctx, a.binary, "cert", "gossip-key", "--out",
		a.cert("gossip.keys")).CombinedOutput(); err != nil {
		return fmt.Errorf("ebb cert gossip-key: %w: %s", err, out)
	}
	pem, err := os.ReadFile(a.cert("ca.crt"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	a.tls = &tls.Config{RootCAs: pool, ServerName: "ebb-0", MinVersion: tls.VersionTLS12}
	return nil
}

// as returns the TLS configuration of a client with the certificate of a role, without a certificate for role "". It
// returns nil without TLS.
func (a *Arena) as(role string) (*tls.Config, error) {
	if a.tls == nil {
		return nil, nil
	}
	cfg := a.tls.Clone()
	if role == "" {
		return cfg, nil
	}
	pair, err := tls.LoadX509KeyPair(a.cert(role+".crt"), a.cert(role+".key"))
	cfg.Certificates = []tls.Certificate{pair}
	return cfg, err
}

// furnish makes namespaces, data and tokens.
func (a *Arena) furnish(ctx context.Context) error {
	for _, ns := range []string{own, foreign} {
		if err := a.until(ctx, "operator", "namespace", "create", ns); err != nil {
			return err
		}
		if err := a.until(ctx, "operator", "incr", "-n", ns, "k", "b"); err != nil {
			return err
		}
	}
	if err := a.upgraded(ctx); err != nil {
		return err
	}
	if a.mode != Tokens {
		return nil
	}
	for _, t := range [][2]string{
		{"operator", "operator"},
		{"reader", "reader=" + own},
		{"writer", "writer=" + own},
		{"stranger", "writer=" + foreign},
	} {
		file := filepath.Join(a.dir, t[0]+".token")
		if err := a.until(ctx, "operator", "token", "create", t[0], "--role", t[1], "--out", file, "--force"); err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		a.tokens[t[0]] = strings.TrimSpace(string(text))
	}
	return nil
}

// upgraded waits until the newest storage version is in force, because a new cluster cannot do everything before.
func (a *Arena) upgraded(ctx context.Context) error {
	for {
		out, err := a.ebb(ctx, "operator", "status", "--json")
		if err != nil {
			return err
		}
		var status struct {
			Storage uint32 `json:"storage_version"`
			Nodes   []struct {
				Storage uint32 `json:"storage_version"`
			} `json:"nodes"`
		}
		if err := json.Unmarshal(out, &status); err != nil {
			return err
		}
		if len(status.Nodes) > 0 && status.Nodes[0].Storage > 0 && status.Storage == status.Nodes[0].Storage {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// until repeats a command until it succeeds, because a new cluster refuses some commands in its first seconds.
func (a *Arena) until(ctx context.Context, role string, args ...string) error {
	for {
		_, err := a.ebb(ctx, role, args...)
		if err == nil || ctx.Err() != nil || strings.Contains(err.Error(), "exists") {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ebb runs a command of the binary under attack, as the holder of a role.
func (a *Arena) ebb(ctx context.Context, role string, args ...string) ([]byte, error) {
	flags := []string{"--addr", a.at["grpc"], "--timeout", "10s"}
	if a.tls != nil {
		flags = append(flags, "--tls-ca", a.cert("ca.crt"), "--tls-cert", a.cert(role+".crt"), "--tls-key",
			a.cert(role+".key"), "--tls-server-name", "ebb-0")
	}
	cmd := exec.CommandContext(ctx, a.binary, append(flags, args...)...)
	cmd.Env = append(os.Environ(), "EBB_TOKEN="+a.tokens[role])
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("ebb %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

// grpc connects with the certificate of a role, if the cluster uses TLS; for role "" without a certificate.
func (a *Arena) grpc(role string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	cfg, err := a.as(role)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if cfg != nil {
		creds = credentials.NewTLS(cfg)
	}
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(512 * mib)),
	}, opts...)
	return grpc.NewClient("passthrough:///"+a.at["grpc"], opts...)
}

// show returns a context with which a call sends the token of a role.
func (a *Arena) show(ctx context.Context, role string) context.Context {
	if text := a.tokens[role]; text != "" {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+text)
	}
	return ctx
}

// call invokes a method by its full name as the holder of a role.
func (a *Arena) call(ctx context.Context, role, method string, in, out any) error {
	conn, err := a.grpc(role)
	if err != nil {
		return err
	}
	defer conn.Close()
	return conn.Invoke(a.show(ctx, role), method, in, out)
}

// raw connects to a listener, over TLS if the listener uses TLS.
func (a *Arena) raw(ctx context.Context, listener string, protocols ...string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.at[listener])
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if a.tls == nil || listener == "gossip" || listener == "admin" {
		return conn, nil
	}
	cfg, err := a.as("reader")
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	cfg.NextProtos = protocols
	secured := tls.Client(conn, cfg)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secured, nil
}

// request is an HTTP request.
type request struct {
	listener     string // "http" if empty
	method, path string
	role         string
	host         string
	header       map[string]string
	body         string
}

// response is the answer to a request.
type response struct {
	status int
	header http.Header
	body   string
}

// http makes a request with the certificate or token of its role. It sends the path unchanged.
func (a *Arena) http(ctx context.Context, r request) (response, error) {
	cfg, err := a.as(r.role)
	if err != nil {
		return response{}, err
	}
	listener := cmp.Or(r.listener, "http")
	scheme := "http"
	if cfg != nil && listener == "http" {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.method, http.MethodGet), scheme+"://"+a.at[listener]+"/",
		strings.NewReader(r.body))
	if err != nil {
		return response{}, err
	}
	req.URL.Opaque = r.path // unchanged: the path of a URL would be normalized
	if strings.HasPrefix(r.path, "//") {
		req.URL.Opaque = "//" + a.at[listener] + r.path // else Go takes the path for a host
	}
	req.Host = cmp.Or(r.host, req.Host)
	if text := a.tokens[r.role]; text != "" {
		req.Header.Set("Authorization", "Bearer "+text)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: cfg, DisableKeepAlives: true,
		DisableCompression: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64*mib))
	return response{resp.StatusCode, resp.Header, string(body)}, err
}

// audit returns the content of the audit log; "" if the log cannot be read.
func (a *Arena) audit() string {
	text, err := os.ReadFile(filepath.Join(a.dir, "audit.log"))
	if err != nil {
		return ""
	}
	return string(text)
}

// Refresh implements Target.
func (a *Arena) Refresh(ctx context.Context) error {
	for i := range a.fleet.Nodes() {
		a.fleet.Interrupt(i)
		if err := a.fleet.Launch(i); err != nil {
			return err
		}
	}
	if err := a.fleet.WaitReady(ctx); err != nil {
		return err
	}
	return a.until(ctx, "operator", "get", "-n", own, "k", "b")
}

// MarkMemory implements Target. It makes the kernel reset the peak of each process.
func (a *Arena) MarkMemory() error {
	a.marks = a.marks[:0]
	for i := range a.fleet.Nodes() {
		pid, err := a.revive(i)
		if err != nil {
			return err
		}
		now, err := settled(pid)
		if err != nil {
			return err
		}
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
			return err
		}
		a.marks = append(a.marks, now)
	}
	return nil
}

// settled returns the memory of a process, after it has stopped growing from earlier work. It waits two seconds at
// most.
func settled(pid int) (now int64, err error) {
	for range 100 {
		before := now
		if now, err = memory(pid, "VmRSS:"); err != nil || now-before < mib {
			return now, err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return now, nil
}

// revive starts node i again if an earlier attempt has ended it, and returns its process id.
func (a *Arena) revive(i int) (pid int, err error) {
	if !a.fleet.Runs(i) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.fleet.Launch(i); err != nil {
			return 0, err
		}
		if err := a.fleet.WaitReady(ctx); err != nil {
			return 0, err
		}
	}
	return a.fleet.PID(i), nil
}

// Growth implements Target.
func (a *Arena) Growth() (most int64, err error) {
	for i, before := range a.marks {
		if !a.fleet.Runs(i) {
			return most, fmt.Errorf("%s has ended: %s", a.fleet.Name(i), lastLine(a.fleet.LogTail(i)))
		}
		peak, err := memory(a.fleet.PID(i), "VmHWM:")
		if err != nil {
			return most, err
		}
		most = max(most, peak-before)
	}
	return most, nil
}

// memory returns a field of /proc/PID/status, in bytes.
func memory(pid int, field string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), field)
	words := strings.Fields(rest)
	if !found || len(words) == 0 {
		return 0, fmt.Errorf("/proc/%d/status has no %s", pid, field)
	}
	kib, err := strconv.ParseInt(words[0], 10, 64)
	return kib << 10, err
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// Probe implements Target. All nodes must run. The first one must answer over gRPC, HTTP and its admin listener, and
// accept a gossip connection.
func (a *Arena) Probe(ctx context.Context) error {
	for i := range a.nodes() {
		if !a.fleet.Runs(i) {
			return fmt.Errorf("%s has ended: %s", a.fleet.Name(i), lastLine(a.fleet.LogTail(i)))
		}
	}
	conn, err := a.grpc("reader")
	if err != nil {
		return err
	}
	defer conn.Close()
	health, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return fmt.Errorf("grpc: %w", err)
	}
	if health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("grpc: %v", health.GetStatus())
	}
	if r, err := a.http(ctx, request{path: "/openapi.json", role: "reader"}); err != nil || r.status != http.StatusOK {
		return fmt.Errorf("http: %d, %w", r.status, err)
	}
	if r, err := a.http(ctx, request{listener: "admin", path: "/readyz"}); err != nil || r.status != http.StatusOK {
		return fmt.Errorf("admin: %d, %w", r.status, err)
	}
	gossip, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.at["gossip"])
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	return gossip.Close()
}
