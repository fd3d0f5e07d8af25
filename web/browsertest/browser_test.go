package browsertest

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// wait is how long anything may take here that is to come about.
const wait = 20 * time.Second

//go:embed attempts.js
var attempts string

// built is the directory of the binary that build has made; "" without one.
var built string

// build compiles the binary once, unless EBB_BINARY names another one.
var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("EBB_BINARY"); path != "" {
		return path, nil
	}
	var err error
	if built, err = os.MkdirTemp("", "ebb-browser"); err != nil {
		return "", err
	}
	path := filepath.Join(built, "ebb")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/ebb")
	cmd.Dir, cmd.Stderr = filepath.Join("..", ".."), os.Stderr
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(code)
}

// chromium is the path of a browser. Without one the test is skipped, or fails where EBB_BROWSER is "required".
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const missing = "Chromium is not installed: apt-get install chromium"
	if os.Getenv("EBB_BROWSER") == "required" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// node is a process of `ebb serve`.
type node struct {
	http, admin, grpc, gossip string // host:port
}

var boxed = regexp.MustCompile(`│ (\w+) +(127\.0\.0\.1:\d+)`)

// serve starts a node with its defaults, but for the ports, and returns when it is ready.
func serve(t *testing.T, flags ...string) *node {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	const free = "127.0.0.1:0"
	cmd := exec.Command(path, append([]string{
		"serve", "--data-dir", t.TempDir(), "--grpc", free, "--http", free, "--gossip", free, "--admin", free,
	}, flags...)...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	n, ready, ended := &node{}, make(chan struct{}), make(chan string, 1)
	go func() {
		lines, last := bufio.NewScanner(said), ""
		for lines.Scan() {
			if m := boxed.FindStringSubmatch(lines.Text()); m != nil {
				n.address(m[1], m[2])
			}
			if strings.Contains(lines.Text(), "INF ready") {
				close(ready)
				_, _ = io.Copy(io.Discard, said) // so that the node does not wait
				return
			}
			last = lines.Text()
		}
		ended <- last
	}()
	select {
	case <-ready:
	case last := <-ended:
		t.Fatalf("the node has ended: %s", last)
	case <-time.After(wait):
		t.Fatal("the node is not ready")
	}
	n.get(t, "/incr?distribution=kept&field=secret&N=3")
	n.get(t, "/incr?distribution=doomed&field=x")
	return n
}

func (n *node) address(what, at string) {
	switch what {
	case "HTTP":
		n.http = at
	case "admin":
		n.admin = at
	case "gRPC":
		n.grpc = at
	case "gossip":
		n.gossip = at
	}
}

func (n *node) port() string { return n.http[strings.LastIndexByte(n.http, ':'):] }

// get asks the node as a program does.
func (n *node) get(t *testing.T, path string) string { return fetch(t, "http://"+n.http+path) }

func fetch(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v: %s", url, resp.Status, err, body)
	}
	return string(body)
}

// written are the keys and namespaces that the node has and was not started with, and "delete" if one is gone.
func (n *node) written(t *testing.T) map[string]bool {
	t.Helper()
	var listed struct {
		Keys struct{ Keys []struct{ Key string } }
	}
	decode(t, n.get(t, "/v1/ns/default/keys/**?limit=1000"), &listed)
	out := map[string]bool{"delete": true}
	for _, k := range listed.Keys.Keys {
		out[k.Key] = true
	}
	if out["doomed"] {
		delete(out, "delete")
	}
	delete(out, "doomed")
	delete(out, "kept")
	var spaces struct{ Namespaces []struct{ Name string } }
	decode(t, n.get(t, "/v1/namespaces"), &spaces)
	for _, ns := range spaces.Namespaces {
		if ns.Name != "default" {
			out[ns.Name] = true
		}
	}
	return out
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

var refusedLine = regexp.MustCompile(`(?m)^ebb_rpc_pages_refused_total\{door="(\w+)",reason="(\w+)"\} (\d+)$`)

// refused is how many requests of pages the node has refused, by door and reason.
func (n *node) refused(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, m := range refusedLine.FindAllStringSubmatch(fetch(t, "http://"+n.admin+"/metrics"), -1) {
		out[m[1]+" "+m[2]], _ = strconv.Atoi(m[3]) // digits
	}
	return out
}

// resolver stands for a name that its owner makes resolve to one address and later to another: all connections to the
// name come here, and go on to where it points at the time.
type resolver struct {
	listener net.Listener

	mu    sync.Mutex // guards what follows
	to    string
	conns []net.Conn
}

func newResolver(t *testing.T) *resolver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &resolver{listener: l}
	t.Cleanup(func() { _ = l.Close(); r.point("") })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go r.pass(conn)
		}
	}()
	return r
}

// point makes the name resolve to an address, and ends the connections to the one before.
func (r *resolver) point(to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

func (r *resolver) pass(conn net.Conn) {
	defer conn.Close()
	r.mu.Lock()
	to := r.to
	r.conns = append(r.conns, conn)
	r.mu.Unlock()
	there, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer there.Close()
	r.mu.Lock()
	r.conns = append(r.conns, there)
	r.mu.Unlock()
	go func() {
		_, _ = io.Copy(there, conn) // either side went away
		_ = there.Close()
	}()
	_, _ = io.Copy(conn, there) // either side went away
}

// attacker serves the page that tries it all.
func attacker(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>page</title><body><script>%s</script></body>", attempts)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// browse starts a browser in which page.test is this machine, and rebind.test what the resolver says.
func browse(t *testing.T, r *resolver) context.Context {
	t.Helper()
	rules := "MAP page.test 127.0.0.1, MAP rebind.test " + r.listener.Addr().String()
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(chromium(t)), chromedp.UserDataDir(t.TempDir()), chromedp.Headless, chromedp.NoSandbox, chromedp.NoFirstRun,
		chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.Flag("host-resolver-rules", rules),
	}
	ctx, free := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended
		end()
		free()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// tab is one page in a browser, and the requests of it that are under way.
type tab struct {
	ctx context.Context

	mu       sync.Mutex // guards what follows
	underWay map[network.RequestID]string
}

// open opens a page.
func open(t *testing.T, browser context.Context, url string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	p := &tab{ctx: ctx, underWay: map[network.RequestID]string{}}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if e.Type == network.ResourceTypeDocument {
			return // of a frame: other targets hear of its answer, and the page waits for it
		}
		p.underWay[e.RequestID] = e.Request.URL
	case *network.EventLoadingFinished:
		delete(p.underWay, e.RequestID)
	case *network.EventLoadingFailed:
		delete(p.underWay, e.RequestID)
	}
}

// settle waits until all that the page has sent is answered.
func (p *tab) settle(t *testing.T) {
	t.Helper()
	var left map[network.RequestID]string
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		p.mu.Lock()
		left = p.underWay
		done := len(left) == 0
		p.mu.Unlock()
		if done {
			return
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Fatalf("not answered: %v", left)
}

// try makes the attempts of one list against a listener, and returns what the page has read, by attempt.
func (p *tab) try(t *testing.T, list, base, prefix string) map[string]string {
	t.Helper()
	call := fmt.Sprintf("tryAll(%s, %q, %q)", list, base, prefix)
	read, err := chromedp.Run(p.ctx, chromedp.Evaluate[map[string]string](call, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	p.settle(t)
	return read
}

// leave has the page send its user to an address of the node.
func (p *tab) leave(t *testing.T, url string) {
	t.Helper()
	leave := chromedp.Evaluate[chromedp.Void](fmt.Sprintf("void (location.href = %q)", url))
	if err := chromedp.Do(p.ctx, leave); err != nil {
		t.Fatal(err)
	}
	var at string
	for deadline := time.Now().Add(wait); at != url; {
		var err error
		if at, err = chromedp.Run(p.ctx, chromedp.Location()); err != nil || time.Now().After(deadline) {
			t.Fatalf("the page is at %s: %v", at, err)
		}
	}
	p.settle(t)
}
