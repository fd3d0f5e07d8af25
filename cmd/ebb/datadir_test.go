package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/chaos/proc"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// A fixture is the data directory of a single node, written by an older build and committed:
//
//	testdata/datadirs/COMMIT.tar.gz    ebb-0/ (the data directory), events.csv (what was imported), ops.token
//	testdata/datadirs/COMMIT.json      the questions, and what that build answered
//
// testdata/datadirs/README.md says how one is made.
const fixtureDir = "testdata/datadirs"

const (
	fixtureToken  = "ops.token"
	fixtureEvents = "events.csv"
	fixtureShards = 4
)

// recorded is what the older build said of a fixture.
type recorded struct {
	Commit  string           `json:"commit"`
	Storage uint32           `json:"storage"`
	Answers []recordedAnswer `json:"answers"`
	// The last command of a producer session that was left open, in the wire format of the older build, and a command
	// with an idempotency key.
	Shard     uint32 `json:"shard"`
	InSession []byte `json:"in_session"`
	UnderAKey []byte `json:"under_a_key"`
}

// recordedAnswer is one question, as arguments of ebb, and the JSON document that was printed.
type recordedAnswer struct {
	Args   []string `json:"args"`
	Answer any      `json:"answer"`
}

// fixtureBefore is what the older build is asked to do before it takes snapshots, fixtureAfter what then stands in
// its log only.
var fixtureBefore = [][]string{
	{"token", "create", "reader", "--role", "reader=*"},
	{"token", "create", "former", "--role", "writer=plain"},
	{"token", "revoke", "former"},

	{"namespace", "create", "history", "--clock", "event", "--half-life", "1h", "--threshold", "1e-9"},
	{"namespace", "create", "trends", "--clock", "event", "--half-life", "10m", "--slow-half-life", "6h"},
	{"namespace", "create", "visits", "--clock", "event", "--window", "1h"},
	{"namespace", "create", "plain", "--decay", "none"},
	{"namespace", "create", "bucket", "--clock", "event", "--decay", "linear", "--half-life", "1h"},
	{
		"namespace", "create", "compact", "--clock", "event", "--half-life", "1h", "--precision", "compact",
		"--floor", "prior",
	},
	{"namespace", "create", "people", "--bitmap-placement", "slice", "--universe", "all"},
	{"namespace", "create", "users", "--dictionary"},
	{"namespace", "create", "plays", "--rollups", "month"},

	{"import", fixtureEvents, "-n", "history", "--key", "clicks/{link}", "--bin", "country", "--time", "t"},
	{"import", fixtureEvents, "-n", "trends", "--key", "clicks/{link}", "--bin", "country", "--time", "t"},
	{"import", fixtureEvents, "-n", "compact", "--key", "=country", "--bin", "country", "--time", "t"},
	{"incr", "leak", "a", "b", "-n", "bucket", "--by", "5", "--at", "2026-01-01T09:30:00Z"},
	{"incr", "page", "cid", "-n", "visits", "--kind", "distinct", "--at", "2026-01-01T09:30:00Z"},

	{"incr", "clicks", "US", "US", "BR", "-n", "plain"},
	{"incr", "searches", "a", "b", "c", "c", "-n", "plain", "--kind", "topk"},
	{"incr", "hits", "/a", "/b", "/a", "-n", "plain", "--kind", "countmin"},
	{"incr", "visitors/monday", "ann", "bob", "cid", "-n", "plain", "--kind", "distinct"},
	{"incr", "players", "bob", "ann", "-n", "plain", "--kind", "linear"},
	{"incr", "fans/go", "ann", "bob", "cid", "-n", "plain", "--kind", "set"},
	{"incr", "fans/rust", "bob", "cid", "dan", "-n", "plain", "--kind", "set"},
	{"incr", "seen", "ann", "-n", "plain", "--kind", "bloom"},
	{"incr", "latency", "-n", "plain", "--kind", "quantile", "--value", "0.1,0.2,0.3"},
	{"incr", "views", "x", "-n", "plain", "--kind", "morris", "--by", "10000"},
	{"phrases", "add", "places", "New York", "Paris", "-n", "plain"},
	{"string", "set", "motd", "hello", "-n", "plain"},
	{"string", "set", "until", "the year 2200", "-n", "plain"},
	{"expire", "until", "--at", "2200-01-01", "-n", "plain"},
	{"incr", "gone", "x", "-n", "plain"},
	{"del", "gone", "-n", "plain"},
	{"incr", "old/name", "x", "-n", "plain"},
	{"rename", "old/name", "new/name", "-n", "plain"},
	{"incr", "faded", "US"},

	{"bits", "set", "premium", "17", "42", "70000", "1000..1999", "-n", "plain"},
	{"-n", "people", "bits", "set", "all", "0..999999"},
	{"-n", "people", "bits", "set", "premium", "17", "70000", "4294967296"},
	{"-n", "users", "bits", "set", "play/2011-11-01", "alice", "bob", "42", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
	{"-n", "plays", "bits", "set", "play/2011-11-01", "1", "2", "70000"},
}

var fixtureAfter = [][]string{
	{"namespace", "set", "plain", "--kind", "distinct"},
	{"incr", "page", "ann", "bob", "-n", "visits", "--at", "2026-01-01T10:00:00Z"},
	{"incr", "leak", "b", "c", "-n", "bucket", "--at", "2026-01-01T10:00:00Z"},
	{"incr", "clicks", "US", "FR", "-n", "plain"},
	{"incr", "searches", "c", "-n", "plain", "--by", "1.5"},
	{"incr", "hits", "/a", "-n", "plain", "--by", "2.5"},
	{"incr", "visitors/tuesday", "bob", "dan", "-n", "plain"},
	{"incr", "players", "dan", "-n", "plain"},
	{"incr", "fans/rust", "eva", "-n", "plain"},
	{"incr", "seen", "bob", "-n", "plain"},
	{"incr", "latency", "-n", "plain", "--kind", "quantile", "--value", "0.7"},
	{"incr", "views", "x", "-n", "plain", "--by", "500"},
	{"phrases", "add", "places", "Oslo", "-n", "plain"},
	{"feed", "places", "--into", "mentioned", "--kind", "distribution", "-n", "plain"},
	{"string", "set", "motd", "good morning", "-n", "plain"},
	{"bits", "clear", "premium", "1500", "-n", "plain"},
	{"-n", "people", "bits", "set", "country/US", "0..599999"},
	{"-n", "people", "query", "store both = premium & country/US"},
	{"-n", "users", "bits", "set", "play/2011-11-02", "alice", "carol"},
	{"-n", "plays", "bits", "set", "play/2011-11-02", "2", "3"},
}

// fixtureQuestions are what a new fixture records. Their answers do not depend on when they are asked.
var fixtureQuestions = [][]string{
	{"namespace", "list"},
	{"top", "clicks/a", "-n", "history"},
	{"query", "dist(clicks/*) in history"},
	{"surprise", "clicks/a", "--against", "clicks/b", "-n", "history"},
	{"trend", "clicks/a", "-n", "trends"},
	{"top", "country", "-n", "compact"},
	{"top", "leak", "-n", "bucket"},
	{"estimate", "page", "-n", "visits"},
	{"estimate", "page", "-n", "visits", "--window", "10m"},
	{"get", "clicks", "US", "BR", "FR", "-n", "plain"},
	{"estimate", "searches", "-n", "plain", "--top", "3"},
	{"estimate", "hits", "-n", "plain", "--bin", "/a", "--bin", "/never"},
	{"estimate", "visitors/monday", "visitors/tuesday", "-n", "plain"},
	{"estimate", "players", "-n", "plain", "--members"},
	{"estimate", "fans/go", "-n", "plain", "--members"},
	{"overlap", "fans/go", "fans/rust", "-n", "plain"},
	{"graph", "fans/*", "-n", "plain"},
	{"estimate", "seen", "-n", "plain", "--bin", "ann", "--bin", "bob", "--bin", "never"},
	{"estimate", "latency", "-n", "plain", "--quantile", "0.5,0.99"},
	{"estimate", "views", "-n", "plain"},
	{"phrases", "list", "places", "-n", "plain"},
	{"match", "places", "-n", "plain"},
	{"top", "mentioned", "-n", "plain"},
	{"string", "get", "motd", "-n", "plain"},
	{"string", "get", "until", "-n", "plain"},
	{"describe", "until", "-n", "plain"},
	{"get", "gone", "x", "-n", "plain"},
	{"keys", "-n", "plain"},
	{"keys", "-n", "people"},
	{"get", "new/name", "x", "-n", "plain"},
	{"get", "session", "x", "-n", "plain"},
	{"get", "under-a-key", "x", "-n", "plain"},
	{"bits", "count", "premium", "-n", "plain"},
	{"-n", "people", "query", "count(all - premium)"},
	{"-n", "people", "bits", "ids", "both"},
	{"-n", "people", "query", "count by country/* (premium)"},
	{"-n", "users", "query", "ids(play/2011-11-01 & play/2011-11-02)"},
	{"-n", "users", "bits", "get", "play/2011-11-01", "alice", "carol"},
	{"-n", "plays", "query", "count(play/2011-11)"},
	{"-n", "plays", "query", "cohort(play/2011-11-01 .. 2011-11-02)"},
	{"token", "list"},
}

// asked runs a command of a binary with the fixture's token, in the directory that it was unpacked to.
func asked(ctx context.Context, binary, dir string, f *proc.Fleet, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, binary, append([]string{"--addr", f.GRPC(0), "--timeout", "60s"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, strings.NewReader("from Oslo to New York\n"), &stdout,
		&stderr // feed reads it
	token := filepath.Join(dir, fixtureToken)
	if _, err := os.Stat(token); err == nil {
		cmd.Env = append(os.Environ(), "EBB_TOKEN_FILE="+token)
	}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("ebb %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.Bytes(), nil
}

// document asks a question, and returns what is printed but for what depends on when it was asked.
func document(ctx context.Context, binary, dir string, f *proc.Fleet, args ...string) (any, error) {
	out, err := asked(ctx, binary, dir, f, append([]string{"-o", "json"}, args...)...)
	if err != nil {
		return nil, err
	}
	var doc any
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, fmt.Errorf("ebb %s: %w", strings.Join(args, " "), err)
	}
	return timeless(doc), nil
}

// timeless drops what says when it was asked, and how much memory that takes.
func timeless(doc any) any {
	switch v := doc.(type) {
	case map[string]any:
		for key, value := range v {
			if strings.HasPrefix(key, "as_of") || strings.HasSuffix(key, "created") || key == "bytes" {
				delete(v, key)
				continue
			}
			v[key] = timeless(value)
		}
	case []any:
		for i := range v {
			v[i] = timeless(v[i])
		}
	}
	return doc
}

// agrees says that a document has all that an older build's has. A newer build may say more, and of how many bins a
// bloom has it states another error. Lifts have the sign of the difference since storage version 12, and an answer may
// cover more shards: a trend asks all when rates begin.
func agrees(got, want any) bool { return agreesOf(got, want, false) }

func agreesOf(got, want any, bloom bool) bool {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		bloom = bloom || w["kind"] == "bloom"
		for key, value := range w {
			switch {
			case key == "lift_bits":
				ok = ok && math.Signbit(number(g[key])) == (number(g["p"]) < number(g["baseline_p"]))
			case key == "shards_answered" || key == "shards_total":
				ok = ok && number(g[key]) >= number(value) && number(g["shards_answered"]) == number(g["shards_total"])
			case !bloom || key != "low" && key != "high" && key != "std_error":
				ok = ok && agreesOf(g[key], value, bloom)
			case key == "low":
				ok = ok && number(g[key]) <= number(g["value"])
			case key == "high":
				ok = ok && number(g[key]) >= number(g["value"])
			}
		}
		return ok
	case []any:
		g, ok := got.([]any)
		ok = ok && len(g) == len(w)
		for i := range w {
			ok = ok && agreesOf(g[i], w[i], bloom)
		}
		return ok
	}
	return got == want
}

// number is a number of a document; NaN for anything else.
func number(v any) float64 {
	if n, ok := v.(float64); ok {
		return n
	}
	return math.NaN()
}

// commands connects to a shard's door with the fixture's token.
func commands(ctx context.Context, t *testing.T, dir string, f *proc.Fleet) (apply func(shard uint32, command []byte) *ebbv1.CommandResult) {
	t.Helper()
	conn, err := grpc.NewClient(f.GRPC(0), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	token, err := os.ReadFile(filepath.Join(dir, fixtureToken))
	if err != nil {
		t.Fatal(err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.TrimSpace(string(token)))
	return func(shard uint32, command []byte) *ebbv1.CommandResult {
		t.Helper()
		resp, err := ebbv1grpc.NewShardsClient(conn).Apply(ctx,
			&ebbv1.ApplyRequest{Commands: []*ebbv1.ShardCommand{{Shard: shard, Command: command}}})
		if err != nil || len(resp.GetResults()) != 1 {
			t.Fatalf("apply: %v: %v", err, resp)
		}
		return resp.GetResults()[0]
	}
}

func wire(t *testing.T, c *ebbv1.Command) []byte {
	t.Helper()
	raw, err := pb.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func counting(key string, times int) *ebbv1.Command_Increments {
	in := &ebbv1.Increments{}
	for range times {
		in.Increments = append(in.Increments, &ebbv1.Increment{
			Key: []byte(key), Bin: []byte("x"),
			Kind: ebbv1.Kind_KIND_DISTRIBUTION,
		})
	}
	return &ebbv1.Command_Increments{Increments: in}
}

// fixtureRows are events of five hours, each with links of its own weights.
func fixtureRows() []byte {
	var b bytes.Buffer
	b.WriteString("t,link,country\n")
	for i := range 400 {
		fmt.Fprintf(&b, "%d,%c,%s\n", 1767258000+45*i, "aabc"[i*7%4], []string{"US", "BR", "DE", "US", "FR"}[i*i%5])
	}
	return b.Bytes()
}

// TestMakeDataDir writes the fixture of the commit in EBB_DATADIR: make datadir FROM=COMMIT.
func TestMakeDataDir(t *testing.T) {
	commit := os.Getenv("EBB_DATADIR")
	if commit == "" {
		t.Skip("writes a fixture by an older commit's build: make datadir FROM=COMMIT")
	}
	older := olderBinary(t, commit)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	f, err := proc.Start(ctx, proc.Options{Binary: older, Dir: dir, Nodes: 1, Args: []string{
		"--shards",
		fmt.Sprint(fixtureShards),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := os.WriteFile(filepath.Join(dir, fixtureEvents), fixtureRows(), 0o644); err != nil {
		t.Fatal(err)
	}
	do := func(commands ...[]string) {
		t.Helper()
		for _, args := range commands {
			if _, err := asked(ctx, older, dir, f, args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	said := recorded{Commit: commit, Storage: storageOf(t, older).Newest}
	do([]string{"token", "create", "ops", "--role", "operator", "--out", fixtureToken})
	awaitStorage(ctx, t, older, dir, f, said.Storage)
	do(fixtureBefore...)

	apply := commands(ctx, t, dir, f)
	said.Shard = proto.ShardOf("plain", []byte("session"), fixtureShards)
	opened := apply(said.Shard, wire(t, &ebbv1.Command{
		Namespace: "plain",
		Body:      &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}},
	}))
	if opened.GetSession() == 0 {
		t.Fatalf("no session: %v", opened)
	}
	session := func(sequence uint64) []byte {
		said.InSession = wire(t, &ebbv1.Command{
			Namespace: "plain", Body: counting("session", 1),
			Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{
				Session:  opened.GetSession(),
				Sequence: sequence,
			}},
		})
		return said.InSession
	}
	for i := range uint64(8) {
		apply(said.Shard, session(1+i))
	}
	for shard := range uint32(fixtureShards) {
		fillShard(t, shard+1, apply)
	}
	for {
		if n, err := f.Metric(ctx, 0, "ebb_node_snapshots_total"); err == nil && n >= fixtureShards {
			break
		}
		pauseOr(ctx, t, 100*time.Millisecond)
	}

	do(fixtureAfter...)
	apply(said.Shard, session(9))
	under := &ebbv1.IdempotencyKey{IssuedAtUs: time.Now().UnixMicro(), Hi: 1, Lo: 2}
	said.UnderAKey = wire(t, &ebbv1.Command{
		Namespace: "plain", Body: counting("under-a-key", 1),
		Identity: &ebbv1.Command_IdempotencyKey{IdempotencyKey: under},
	})
	apply(proto.ShardOf("plain", []byte("under-a-key"), fixtureShards), said.UnderAKey)
	for _, args := range fixtureQuestions {
		answer, err := document(ctx, older, dir, f, args...)
		if err != nil {
			t.Fatal(err)
		}
		said.Answers = append(said.Answers, recordedAnswer{args, answer})
	}
	f.Interrupt(0)
	if err := os.MkdirAll(fixtureDir, 0o755); err != nil {
		t.Fatal(err)
	}
	pack(t, dir, filepath.Join(fixtureDir, commit+".tar.gz"), f.Name(0), fixtureEvents, fixtureToken)
	doc, err := json.MarshalIndent(said, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(fixtureDir, commit+".json"), append(doc, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fillShard writes 5 MiB to a shard's log, which is what a node takes a snapshot for: few names, so that they
// compress.
func fillShard(t *testing.T, shard uint32, apply func(uint32, []byte) *ebbv1.CommandResult) {
	t.Helper()
	key := ""
	for i := 0; ; i++ {
		if key = fmt.Sprintf("fill/%d/%s", i, strings.Repeat("f", 400)); proto.ShardOf("plain", []byte(key), fixtureShards) == shard {
			break
		}
	}
	command := wire(t, &ebbv1.Command{Namespace: "plain", Body: counting(key, 500)})
	for wrote := 0; wrote < 5<<20; wrote += len(command) {
		if r := apply(shard, command); r.GetApplied() != 500 {
			t.Fatalf("shard %d: %v", shard, r)
		}
	}
}

// awaitStorage waits until a storage version is in force.
func awaitStorage(ctx context.Context, t *testing.T, binary, dir string, f *proc.Fleet, version uint32) {
	t.Helper()
	for {
		out, err := asked(ctx, binary, dir, f, "status", "--json")
		var said statusJSON
		if err == nil && json.Unmarshal(out, &said) == nil && said.Storage == version {
			return
		}
		pauseOr(ctx, t, 100*time.Millisecond)
	}
}

// pack writes files and directories of dir to a compressed tar.
func pack(t *testing.T, dir, name string, what ...string) {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, root := range what {
		err := filepath.WalkDir(filepath.Join(dir, root), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			body, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			err = w.WriteHeader(&tar.Header{
				Name: filepath.ToSlash(rel), Mode: 0o600, Size: int64(len(body)),
				Format: tar.FormatUSTAR,
			})
			if err == nil {
				_, err = w.Write(body)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d bytes", name, out.Len())
}

// unpack is the reverse of pack.
func unpack(t *testing.T, name, dir string) {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err == nil {
			err = os.WriteFile(path, body, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOlderDataDirs opens every committed data directory of an older build: this build gives the recorded answers,
// before and after the newest storage version is in force, counts nothing twice, writes on, and gives the same
// answers when it has been started again.
func TestOlderDataDirs(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real processes")
	}
	all, err := filepath.Glob(filepath.Join(fixtureDir, "*.tar.gz"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no fixture in %s: %v", fixtureDir, err)
	}
	for _, name := range all {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".tar.gz"), func(t *testing.T) { opensDataDir(t, name) })
	}
}

func opensDataDir(t *testing.T, name string) {
	var said recorded
	doc, err := os.ReadFile(strings.TrimSuffix(name, ".tar.gz") + ".json")
	if err != nil || json.Unmarshal(doc, &said) != nil || len(said.Answers) == 0 {
		t.Fatalf("no recorded answers: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	unpack(t, name, dir)
	f, err := proc.Start(ctx, proc.Options{Binary: binary(t), Dir: dir, Nodes: 1, Args: []string{
		"--shards",
		fmt.Sprint(fixtureShards),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log:\n%s", f.LogTail(0))
		}
		f.Close()
	})
	check := func(when string) {
		t.Helper()
		for _, a := range said.Answers {
			if got, err := document(ctx, binary(t), dir, f, a.Args...); err != nil || !agrees(got, a.Answer) {
				have, _ := json.Marshal(got)
				want, _ := json.Marshal(a.Answer)
				t.Errorf("%s: ebb %s: %v\n%s\nthe older build answered\n%s", when, strings.Join(a.Args, " "), err, have, want)
			}
		}
	}
	check("as opened")
	awaitStorage(ctx, t, binary(t), dir, f, proto.StorageVersion)
	apply := commands(ctx, t, dir, f)
	repeated := func() {
		t.Helper()
		apply(said.Shard, said.InSession) // answered as before or refused; check finds it when it counts
		apply(proto.ShardOf("plain", []byte("under-a-key"), fixtureShards), said.UnderAKey)
		for _, args := range fixtureBefore {
			if args[0] != "import" {
				continue
			}
			out, err := asked(ctx, binary(t), dir, f, args...)
			if err != nil || !strings.Contains(string(out), "rows: 0 counted,") {
				t.Errorf("an import that is repeated says %s, %v", out, err)
			}
		}
	}
	repeated()
	check("with the newest storage version")

	write := func(want float64) {
		t.Helper()
		if _, err := asked(ctx, binary(t), dir, f, "incr", "written/later", "x", "-n", "plain", "--kind", "distribution"); err != nil {
			t.Fatal(err)
		}
		out, err := asked(ctx, binary(t), dir, f, "get", "written/later", "x", "-n", "plain", "-o", "tsv")
		if cols := strings.Split(string(out), "\t"); err != nil || len(cols) < 2 || cols[1] != fmt.Sprint(want) {
			t.Errorf("what was written later counts %q, want %v: %v", out, want, err)
		}
	}
	write(1)
	f.Interrupt(0)
	if err := f.Launch(0); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	write(2)
	if _, err := asked(ctx, binary(t), dir, f, "del", "written/later", "-n", "plain"); err != nil {
		t.Fatal(err)
	}
	repeated()
	check("started again")
}
