package main

import (
	"compress/gzip"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/chaos/proc"
)

// Every example in the help of a command is run as it stands, in a shell, against a real node that has what the
// example speaks of. Those that cannot be run here are listed with the reason, and must at least be command lines that
// their command takes.

// unrunnable are the examples that a test cannot run, by the words that they begin with.
var unrunnable = []struct{ words, why string }{
	{"ebb bench", "takes minutes and gigabytes"},
	{"ebb chaos", "takes minutes, or the sources"},
	{"ebb accuracy", "takes minutes, or hours"},
	{"ebb serve --node", "has addresses of other machines"},
	{"ebb cluster plan --remove ebb-1", "needs that node"},
	{"ebb cluster plan --replication 5", "needs five nodes"},
	{"ebb cluster drain", "needs that node"},
	{"ebb cluster activate", "needs that node"},
	{"ebb cluster replication 3", "needs three nodes"},
	{"ebb cluster remove", "needs that node"},
	{"ebb cluster recover", "needs a shard that has lost its majority: TestRecoverShard of node has one"},
	{"ebb backup s3:", "needs a store of objects"},
	{"ebb restore", "needs an empty cluster: testdata/script/backup.txtar restores"},
	{"ebb demo", "lasts: TestDemoEndsWithItsReader and others run it"},
	{"ebb token list", "needs a cluster with tokens: testdata/script/tokens.txtar has one"},
	{"ebb token create", "needs a cluster with tokens: testdata/script/tokens.txtar has one"},
	{"ebb token revoke", "needs a cluster with tokens: testdata/script/tokens.txtar has one"},
	{"ebb status --tls-ca", "needs a cluster with TLS: testdata/script/tls.txtar has one"},
	{"ebb serve --tls-cert", "needs the certificates: testdata/script/tls.txtar makes them"},
}

// lasting are the examples that only end when they are interrupted.
var lasting = []string{"ebb serve", "--watch", "ebb alert clicks/today --against clicks/usual\n"}

// prepared is run once before the examples.
const prepared = `
ebb incr clicks/country US US BR MY
ebb incr clicks/link/a US BR && ebb incr clicks/link/b US && ebb incr clicks/link/A6qOVH MY MY
ebb incr clicks/usual US US US BR --by 100 && ebb incr clicks/today MY --by 1000 && ebb incr clicks/tody MY
ebb incr visitors/today ann --kind distinct && ebb incr visitors/yesterday bob --kind distinct
ebb incr players/all ann bob --kind set && ebb incr players/paying ann --kind set && ebb incr players/banned bob --kind set
ebb incr visits/a ann --kind distinct && ebb incr visits/b bob --kind distinct
ebb incr hits /index.html --kind countmin && ebb incr searches ebb --kind topk && ebb incr seen ann --kind bloom
ebb incr players ann --kind linear && ebb incr fans ann --kind set && ebb incr latency --kind quantile --value 0.2
ebb incr stars/go ann bob --kind set && ebb incr stars/rust ann --kind set && ebb incr stars/python bob --kind set
ebb phrases add places "New York" Paris && ebb string set motd hello && ebb incr link/1 US && ebb incr link/4711 US
ebb incr tmp/a x && ebb incr session/ann x && ebb incr session/bob x && ebb incr clicks/new x
ebb namespace create clicks --half-life 10m --slow-half-life 6h && ebb -n clicks incr clicks/country US MY
ebb -n clicks incr link/4711 US
ebb bits set play/2011-11-01 17 42 && ebb bits set premium 17
ebb namespace create users --dictionary && ebb namespace create hourly --kind distinct --window 1h
ebb -n hourly incr visitors ann
ebb namespace create archive --clock event && ebb -n archive incr songs x --at 2026-11-20
ebb namespace create sets --kind set --decay none --set-hash murmur3
ebb -n sets incr stars/go ann && ebb -n sets incr stars/rust ann
`

// live waits until the namespace visits is there: one of its name may still be purged.
const live = "until ebb namespace create visits --kind distinct || " +
	"ebb namespace list -o tsv | grep '^visits.*live$'; do ebb namespace undelete visits || sleep 0.2; done"

// before is what an example needs right before it is run, by the words it begins with.
var before = []struct{ words, run string }{
	{"ebb namespace set visits", live},
	{"ebb namespace delete visits", live},
	{"ebb namespace show visits", live},
	{"ebb namespace undelete visits", live + "; ebb namespace delete visits"},
	{"ebb namespace create visits", "! ebb namespace list -o tsv | grep ^visits"},
	{"ebb cert ca --dir", "rm -rf certs"},
	{"ebb estimate 'visitors/*'", "ebb del visitors/monday visitors/tuesday || true"},
	{
		"ebb overlap visitors/monday",
		"ebb incr visitors/monday ann bob --kind set && ebb incr visitors/tuesday ann --kind set",
	},
	{"ebb rename clicks/tody", "ebb incr clicks/tody US && (ebb del clicks/today || true)"},
	{"ebb rename clicks/new", "ebb incr clicks/new US && ebb incr clicks/today US"},
	{"ebb alert clicks/today", "ebb incr clicks/today MY --by 1000"},
	{"ebb surprise clicks/today", "ebb incr clicks/today MY --by 1000"},
	{"ebb expire clicks/today", "ebb incr clicks/today MY"},
	{"ebb source drop", "ebb import clicks.tsv -n history --key g --bin user --time t " +
		"--source import/history/clicks.tsv/e6d4afe7de938463"},
}

// exampleFiles are what examples read.
var exampleFiles = map[string]string{
	"clicks.tsv":   "t\tg\tcountry\tuser\n1790000000\ta\tUS\tann\n",
	"requests.csv": "path,seconds\n/a,0.5\n",
	"plays.csv":    "t,song\n17/05/2026 21:04,x\n",
	"sets.jsonl":   `{"key":"stars/go","value_base64":"AAAAAAAAABEAAAAAAAAACQAAAAAAAAAH"}` + "\n",
	"premium.txt":  "17\n42\n",
	"places.txt":   "London\nRome\n",
	"article.txt":  "From New York to Paris.\n",
	"articles.txt": "Paris\nNew York\n",
	"config.json":  "{}\n",
	"question.txt": "top 3 clicks/country\n",
	"page-on-call": "#!/bin/sh\necho paged\n",
}

// zippedFiles are what examples read compressed.
var zippedFiles = map[string]string{
	"clicks.tsv.gz": exampleFiles["clicks.tsv"],
	"sets.jsonl.gz": exampleFiles["sets.jsonl"],
	"log.gz":        "{\"code\":\"200\"}\n",
	"plays.csv.gz":  "day,user_id\n2011-11-01,17\n",
}

func TestHelpExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real node")
	}
	h := newHelpWorld(t)
	h.run(prepared, false)
	ran, left := 0, 0
	everyCommand(quietRoot(), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			if line, _, _ = strings.Cut(line, "   #"); line == "" {
				continue
			}
			if why := whyUnrun(line); why != "" {
				left++
				h.takes(line)
				continue
			}
			ran++
			for _, b := range before {
				if strings.HasPrefix(line, b.words) {
					h.run(b.run, false)
				}
			}
			h.run(line, isLasting(line))
		}
	})
	if ran < 100 {
		t.Errorf("only %d examples were run", ran)
	}
	t.Logf("%d examples were run, %d are only command lines", ran, left)
}

func whyUnrun(line string) string {
	for _, u := range unrunnable {
		if strings.HasPrefix(line, u.words) {
			return u.why
		}
	}
	return ""
}

func isLasting(line string) bool {
	for _, words := range lasting {
		if strings.Contains(line+"\n", words) {
			return true
		}
	}
	return false
}

// helpWorld is a node, and a directory with what examples read.
type helpWorld struct {
	t   *testing.T
	dir string
	env []string
	// places are those in examples, and where they are here.
	places *strings.Replacer
}

func newHelpWorld(t *testing.T) *helpWorld {
	t.Helper()
	h := &helpWorld{t: t, dir: t.TempDir()}
	bin := filepath.Dir(binary(t))
	addrs, err := proc.FreeAddresses(8)
	if err != nil {
		t.Fatal(err)
	}
	h.env = append(os.Environ(), "PATH="+h.dir+":"+bin+":"+os.Getenv("PATH"), "EBB_ADDR="+addrs[0], "HOME="+h.dir,
		"EBB_ADMIN="+addrs[3], "NO_COLOR=1", "EBB_TIMEOUT=1m")
	h.places = strings.NewReplacer("/var/backups/ebb", "backups", "127.0.0.1:7081", addrs[3])
	for name, text := range exampleFiles {
		h.write(name, []byte(text))
	}
	for name, text := range zippedFiles {
		var b strings.Builder
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text)) // a Builder takes everything
		_ = z.Close()
		h.write(name, []byte(b.String()))
	}
	node := exec.Command(binary(t), "serve", "--data-dir", filepath.Join(h.dir, "data"),
		"--grpc", addrs[0], "--http", addrs[1], "--gossip", addrs[2], "--admin", addrs[3], "--shards", "4")
	node.Env = h.env
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = node.Process.Signal(os.Interrupt)
		_ = node.Wait()
	})
	h.run("for i in 1 2 3 4 5 6 7 8 9 10; do ebb probe ready && exit 0; sleep 1; done; exit 1", false)
	// dictionaries need a storage version, which is in force a moment later
	h.run("until ebb -n x namespace create users-first --dictionary; do sleep 0.2; done", false)
	return h
}

func (h *helpWorld) write(name string, text []byte) {
	if err := os.WriteFile(filepath.Join(h.dir, name), text, 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a line in a shell, and returns what it prints. One that lasts is interrupted after a second, and must not
// have ended before.
func (h *helpWorld) run(line string, lasts bool) string {
	h.t.Helper()
	limit := time.Minute
	if lasts {
		limit = time.Second
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", "set -o pipefail\n"+h.places.Replace(line))
	cmd.Dir, cmd.Env = h.dir, h.env
	if lasts && strings.HasPrefix(line, "ebb serve") {
		cmd.Env = append(cmd.Env, "EBB_GRPC=127.0.0.1:0", "EBB_HTTP=-", "EBB_GOSSIP=-", "EBB_ADMIN=-",
			"EBB_DATA_DIR="+filepath.Join(h.dir, "other"))
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	switch {
	case lasts && ctx.Err() == nil:
		h.t.Errorf("$ %s\nit ended by itself: %v\n%s", line, err, out)
	case !lasts && err != nil:
		h.t.Errorf("$ %s\n%v\n%s", line, err, out)
	}
	return string(out)
}

// takes checks that a command takes a line: its flags and arguments.
func (h *helpWorld) takes(line string) {
	h.t.Helper()
	words := strings.Fields(strings.ReplaceAll(line, "'", ""))
	root := quietRoot()
	cmd, args, err := root.Find(words[1:])
	if err == nil {
		err = cmd.ParseFlags(args)
	}
	if err == nil && cmd.Args != nil {
		err = cmd.Args(cmd, cmd.Flags().Args())
	}
	if err == nil && cmd == root {
		err = errors.New("there is no such command")
	}
	if err != nil {
		h.t.Errorf("$ %s\n%v", line, err)
	}
}
