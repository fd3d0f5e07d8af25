package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ebbdb/ebb/chaos/proc"
)

// testCommands are programs that tests start: this binary under these names.
var testCommands = map[string]func(){
	"ebb": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(run(ctx, os.Args[1:], terminal{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
	},
}

func TestMain(m *testing.M) { testscript.Main(m, testCommands) }

// The scripts are stories at a terminal. Each has four free addresses, $GRPC, $HTTP, $GOSSIP and $ADMIN, and $NOBODY,
// where no process listens; `await` waits for a node to be ready.
func TestScripts(t *testing.T) {
	var files []string
	for _, name := range scripts {
		found, err := filepath.Glob("testdata/script/" + name + ".txtar")
		if err != nil || len(found) == 0 {
			t.Fatalf("no script %s: %v", name, err)
		}
		files = append(files, found...)
	}
	testscript.Run(t, testscript.Params{
		Files:               files,
		RequireExplicitExec: true,
		Setup:               setupScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"await":  await,
			"until":  untilDone,
			"holds":  holds,
			"fetch":  fetchPage,
			"post":   post,
			"json":   checkJSON,
			"repeat": repeat,
			"bytes":  notText,
			"zip":    zipTable,
			"cut":    cutEnd,
			"sameid": sameBackup,
			"curls":  runCurls,
		},
	})
}

func setupScript(env *testscript.Env) error {
	names := []string{"GRPC", "HTTP", "GOSSIP", "ADMIN", "NOBODY"}
	addrs, err := proc.FreeAddresses(len(names))
	if err != nil {
		return err
	}
	for i, name := range names {
		env.Setenv(name, addrs[i])
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	env.Setenv("SOURCE", wd)
	env.Setenv("EBB_ADDR", env.Getenv("GRPC"))
	env.Setenv("EBB_TIMEOUT", "1m") // a machine that does other things answers late
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("NO_COLOR", "1")
	return nil
}

var curlLine = regexp.MustCompile(`^\$ curl -s localhost:7080(\S+) --json '(.*)'\n$`)

// curls FILE: sends what the curl commands of a document send, and compares the answers with the lines below them.
func runCurls(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: curls FILE")
	}
	now, sent, answer := time.Now().UTC().Format(time.RFC3339), 0, ""
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		if answer != "" && line != answer {
			ts.Fatalf("the answer is %s, and the document says %s", answer, line)
		}
		answer = ""
		found := curlLine.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		body := strings.NewReader(strings.ReplaceAll(found[2], "'$now'", now))
		resp, err := http.Post("http://"+ts.Getenv("HTTP")+found[1], "application/json", body)
		ts.Check(err)
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		ts.Check(err)
		answer, sent = string(text), sent+1
	}
	if sent == 0 {
		ts.Fatalf("%s has no curl command", args[0])
	}
}

var backupID = regexp.MustCompile(`\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{16}`)

// sameid LIST FILE: the backup that a file names is in a list of backups.
func sameBackup(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: sameid LIST FILE")
	}
	id := backupID.FindString(ts.ReadFile(args[1]))
	if id == "" || !strings.Contains(ts.ReadFile(args[0]), id) {
		ts.Fatalf("backup %q is not in the list", id)
	}
}

// holds FILE PATTERN: wait until a file that a background command writes holds a match.
func holds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: holds FILE PATTERN")
	}
	want := regexp.MustCompile(args[1])
	until := time.Now().Add(20 * time.Second)
	for time.Now().Before(until) {
		if text, err := os.ReadFile(ts.MkAbs(args[0])); err == nil && want.Match(text) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	ts.Fatalf("%s never held %q", args[0], args[1])
}

// await [PROBE]: wait until the node at $ADMIN answers yes to a probe, /readyz if none is named.
func await(ts *testscript.TestScript, neg bool, args []string) {
	url := "http://" + ts.Getenv("ADMIN") + strings.Join(append(args, "/readyz")[:1], "")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if ts.Getenv("EBB_TLS_ADMIN") != "" {
		url = "https" + strings.TrimPrefix(url, "http")
	}
	until := time.Now().Add(20 * time.Second)
	for time.Now().Before(until) {
		if resp, err := client.Get(url); err == nil {
			resp.Body.Close()
			if (resp.StatusCode == http.StatusOK) != neg {
				return
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	ts.Fatalf("%s: no", url)
}

// until COMMAND: runs a command of ebb until it succeeds, such as one that needs a storage version that is not in force
// yet.
func untilDone(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s: %v", strings.Join(args, " "), err)
		}
	}
}

// fetch PATH: GET from $HTTP, to standard output.
func fetchPage(ts *testscript.TestScript, _ bool, args []string) {
	resp, err := http.Get("http://" + ts.Getenv("HTTP") + args[0])
	keepPage(ts, resp, err)
}

// post sends a document to a path, and keeps the answer as fetch does.
func post(ts *testscript.TestScript, _ bool, args []string) {
	resp, err := http.Post("http://"+ts.Getenv("HTTP")+args[0], "application/json", strings.NewReader(args[1]))
	keepPage(ts, resp, err)
}

func keepPage(ts *testscript.TestScript, resp *http.Response, err error) {
	ts.Check(err)
	defer resp.Body.Close()
	body := make([]byte, 1<<20)
	n, _ := resp.Body.Read(body)
	ts.Check(os.WriteFile(ts.MkAbs("page"), []byte(fmt.Sprintf("%d\n%s\n", resp.StatusCode, body[:n])), 0o644))
}
