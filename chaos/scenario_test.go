package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/chaos/sim"
	ebb "github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Each file tells a story about one cluster of whole nodes in virtual time.
// The prose is the documentation, and what stands below a dashed line is what
// must happen.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		began := time.Now()
		var virtual time.Duration
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			s := &story{t: t}
			defer func() {
				virtual = time.Since(start)
				s.end()
			}()
			datadriven.RunTest(t, path, s.tell)
		})
		t.Logf("%v of virtual time in %v", virtual.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	})
}

const (
	storyNamespace = "counts"
	storyKey       = "link"
	storyClient    = "10.0.1.1"
	storyShards    = 4
)

var storyShard = proto.ShardOf(storyNamespace, []byte(storyKey), storyShards)

// story is one file being told.
type story struct {
	t       *testing.T
	c       *sim.Cluster
	client  *ebb.Client
	doors   []*sim.Door
	old     int // what "old-leader" means: the last node called "leader"
	session uint64
}

func (s *story) tell(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "cluster":
		return s.start(d)
	case "incr": // incr n=5 [key=KEY] [bin=BIN] [distinct] [at=NODE] [within=3s]: through the SDK, or at one node without it
		return s.increment(d)
	case "burst": // burst n=40000 [batch=500]: so many increments of 1 through the SDK, each acknowledged
		return s.burst(d)
	case "set": // set KEY ids=(1,2,3): ids of a bitmap
		return s.set(d)
	case "query": // query TEXT: a question in the query language
		return s.query(d)
	case "shards": // shards KEY...: how many shards these keys lie on
		return s.shards(d)
	case "session": // opens a producer session by hand
		return s.open()
	case "send": // send sequence=1 n=5 [within=3s]: one command of that session to the leader
		return s.send(d)
	case "read": // read [at=NODE] [within=3s] [any]: what the key counts; linearizable unless any
		return s.read(d)
	case "isolate": // isolate NODE: from the other nodes; clients still reach it
		s.c.Isolate(s.node(d))
	case "mute": // mute NODE: what it says to clients is lost, what they say arrives
		s.c.Net.CutOneWay(s.c.IP(s.node(d)), storyClient)
	case "deafen": // deafen NODE: it hears no other node, and they hear it
		at := s.node(d)
		for i := range s.c.Nodes() {
			if i != at {
				s.c.CutOneWay(i, at)
			}
		}
	case "heal":
		s.c.Heal()
	case "wait": // wait 10m
		time.Sleep(s.duration(d.CmdArgs[0].Key))
	case "kill":
		s.each(d, s.c.Kill)
	case "power-cut":
		s.each(d, s.c.PowerLoss)
	case "restart":
		return s.restart(d)
	case "move": // move NODE ip=10.0.0.99: it dies and comes back elsewhere
		return s.move(d)
	case "clock": // clock NODE ahead=1h
		s.c.Clock(s.node(d)).Set(s.duration(s.arg(d, "ahead", "0s")))
	case "clocks":
		return s.clocks()
	case "members":
		return s.members()
	case "leader": // leader within=5s: waits for one that is not the old leader, unless that is fine
		return s.awaitLeader(d)
	case "replicas":
		return s.replicas()
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return "ok"
}

func (s *story) start(d *datadriven.TestData) string {
	nodes := 3
	d.MaybeScanArgs(s.t, "nodes", &nodes)
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var err error
	if s.c, err = sim.Start(ctx, sim.Options{Nodes: nodes, Shards: storyShards, Sync: 200 * time.Microsecond}); err != nil {
		s.t.Fatal(err)
	}
	if s.client, err = ebb.DialOptions(ctx, s.c.Addrs(), ebb.WithDialer(s.c.Dialer(storyClient))); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.client.CreateNamespace(ctx, ebb.Namespace{Name: storyNamespace, Decay: ebb.DecayNone}); err != nil {
		s.t.Fatal(err)
	}
	for i := range nodes {
		door, err := s.c.Door(storyClient, i)
		if err != nil {
			s.t.Fatal(err)
		}
		s.doors = append(s.doors, door)
	}
	return fmt.Sprintf("%d nodes serve", nodes)
}

func (s *story) end() {
	for _, d := range s.doors {
		d.Close()
	}
	s.client.Close()
	if err := s.c.Close(); err != nil {
		s.t.Error(err)
	}
	for _, err := range s.c.Collapses() {
		s.t.Error(err)
	}
	time.Sleep(sim.Linger)
}

func (s *story) arg(d *datadriven.TestData, name, otherwise string) string {
	d.MaybeScanArgs(s.t, name, &otherwise)
	return otherwise
}

func (s *story) duration(text string) time.Duration {
	v, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// node finds the node that a command names first.
func (s *story) node(d *datadriven.TestData) int { return s.named(d.CmdArgs[0].Key) }

func (s *story) named(name string) int {
	switch name {
	case "leader":
		s.old = s.c.Leader(storyShard)
		return s.old
	case "old-leader":
		return s.old
	}
	if i := s.c.Index(name); i >= 0 {
		return i
	}
	s.t.Fatalf("no node is called %q", name)
	return -1
}

// each does something to one node, or to all.
func (s *story) each(d *datadriven.TestData, do func(i int)) {
	if d.CmdArgs[0].Key != "all" {
		do(s.node(d))
		return
	}
	for i := range s.c.Nodes() {
		do(i)
	}
}

func (s *story) within(d *datadriven.TestData) (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.t.Context(), s.duration(s.arg(d, "within", "10s")))
}

func command(body *ebbv1.Command) []byte {
	body.Namespace = storyNamespace
	b, err := protobuf.Marshal(body)
	if err != nil {
		panic(err)
	}
	return b
}

func increments(n float64) *ebbv1.Command_Increments {
	return &ebbv1.Command_Increments{Increments: &ebbv1.Increments{
		Increments: []*ebbv1.Increment{{Key: []byte(storyKey), Bin: []byte("de"), Amount: &n}},
	}}
}

func (s *story) increment(d *datadriven.TestData) string {
	var n float64
	d.ScanArgs(s.t, "n", &n)
	ctx, cancel := s.within(d)
	defer cancel()
	var err error
	if at := s.arg(d, "at", ""); at != "" {
		_, err = s.doors[s.named(at)].Apply(ctx, storyShard, command(&ebbv1.Command{Body: increments(n)}))
	} else {
		in := ebb.Increment{Key: s.arg(d, "key", storyKey), Bin: s.arg(d, "bin", "de"), Amount: n}
		if d.HasArg("distinct") {
			in.Kind = ebb.KindDistinct
		}
		err = s.client.Increment(ctx, storyNamespace, in)
	}
	return outcome(err)
}

// burst adds 1 again and again, and says how often that was acknowledged.
func (s *story) burst(d *datadriven.TestData) string {
	n, batch := 0, 500
	d.ScanArgs(s.t, "n", &n)
	d.MaybeScanArgs(s.t, "batch", &batch)
	ctx, cancel := s.within(d)
	defer cancel()
	acknowledged := 0
	for acknowledged < n {
		ones := make([]ebb.Increment, min(batch, n-acknowledged))
		for i := range ones {
			ones[i] = ebb.One(storyKey, "de")
		}
		if err := s.client.Increment(ctx, storyNamespace, ones...); err != nil {
			return fmt.Sprintf("%d acknowledged, then %s", acknowledged, outcome(err))
		}
		acknowledged += len(ones)
	}
	return fmt.Sprintf("%d acknowledged", acknowledged)
}

func (s *story) set(d *datadriven.TestData) string {
	var ids []uint64
	for _, text := range d.CmdArgs[1].Vals {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	ctx, cancel := s.within(d)
	defer cancel()
	_, err := s.client.SetBits(ctx, storyNamespace, d.CmdArgs[0].Key, ids...)
	return outcome(err)
}

// query answers a question in the query language: with the number of ids or of different bins, or with bins and their
// counts.
func (s *story) query(d *datadriven.TestData) string {
	ctx, cancel := s.within(d)
	defer cancel()
	result, err := s.client.Query(ctx, d.Input+" in "+storyNamespace)
	switch answer := result.Answer.GetValue().(type) {
	case *ebbv1.Answer_Bitmap:
		return fmt.Sprintf("%d ids", answer.Bitmap.GetCount())
	case *ebbv1.Answer_Summary:
		return fmt.Sprintf("%v different bins", math.Round(answer.Summary.GetTotal().GetValue()))
	case *ebbv1.Answer_Distribution:
		var bins []string
		for _, bin := range answer.Distribution.GetBins() {
			bins = append(bins, fmt.Sprintf("%s %v", bin.GetBin(), bin.GetCount()))
		}
		return strings.Join(bins, ", ")
	default:
		return fmt.Sprintf("%v, %v", answer, err)
	}
}

func (s *story) shards(d *datadriven.TestData) string {
	on := map[uint32]bool{}
	for _, key := range d.CmdArgs {
		on[proto.ShardOf(storyNamespace, []byte(key.Key), storyShards)] = true
	}
	return fmt.Sprintf("%d keys on %d shards", len(d.CmdArgs), len(on))
}

func outcome(err error) string {
	switch {
	case err == nil:
		return "acknowledged"
	case errors.Is(err, ebb.ErrClockSkew):
		return "refused: the clock"
	}
	return "not acknowledged"
}

func (s *story) open() string {
	r, err := s.doors[s.named("leader")].Apply(s.t.Context(), storyShard, command(&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}}))
	if err != nil {
		return err.Error()
	}
	s.session = r.GetSession()
	return "opened"
}

func (s *story) send(d *datadriven.TestData) string {
	var n float64
	var sequence uint64
	d.ScanArgs(s.t, "n", &n)
	d.ScanArgs(s.t, "sequence", &sequence)
	ctx, cancel := s.within(d)
	defer cancel()
	_, err := s.doors[s.c.Leader(storyShard)].Apply(ctx, storyShard, command(&ebbv1.Command{
		Identity: &ebbv1.Command_Session{Session: &ebbv1.SessionIdentity{Session: s.session, Sequence: sequence}},
		Body:     increments(n),
	}))
	switch {
	case err != nil && ctx.Err() != nil:
		return "outcome unknown"
	case err != nil:
		return err.Error()
	}
	return "acknowledged"
}

func (s *story) read(d *datadriven.TestData) string {
	ctx, cancel := s.within(d)
	defer cancel()
	how := &ebbv1.ShardAskRequest{Consistency: ebbv1.Consistency_CONSISTENCY_LINEARIZABLE}
	if d.HasArg("any") {
		how.Consistency = ebbv1.Consistency_CONSISTENCY_ANY
	}
	if at := s.arg(d, "at", ""); at != "" {
		z, err := s.doors[s.named(at)].Sum(ctx, storyNamespace, storyKey, how)
		if err != nil {
			return "no answer"
		}
		return fmt.Sprint(z)
	}
	answer, err := s.client.Distribution(ctx, storyNamespace, storyKey)
	if err != nil {
		return "no answer"
	}
	return fmt.Sprint(answer.Z)
}

func (s *story) restart(d *datadriven.TestData) string {
	var nodes []int
	s.each(d, func(i int) { nodes = append(nodes, i) })
	return s.revive(d, nodes...)
}

// revive starts nodes and waits until all that live serve.
func (s *story) revive(d *datadriven.TestData, nodes ...int) string {
	ctx, cancel := s.within(d)
	defer cancel()
	var err error
	for _, i := range nodes {
		err = errors.Join(err, s.c.Restart(ctx, i))
	}
	if err = errors.Join(err, s.c.Ready(ctx)); err != nil {
		return err.Error()
	}
	return "serves"
}

func (s *story) move(d *datadriven.TestData) string {
	i := s.node(d)
	s.c.Kill(i)
	s.c.Move(i, s.arg(d, "ip", ""))
	return s.revive(d, i)
}

// clocks says how the shards' clocks are to the true time.
func (s *story) clocks() string {
	if shard, ahead := s.c.Ahead(); ahead > 500*time.Millisecond {
		return fmt.Sprintf("the clock of shard %d is %v ahead", shard, ahead)
	}
	return "no shard's clock is more than 500ms ahead of the time"
}

// members says which nodes each node believes to be alive.
func (s *story) members() string {
	var b strings.Builder
	for i, d := range s.doors {
		if s.c.Node(i) == nil {
			continue
		}
		alive, err := d.Alive(s.t.Context())
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "%s: %s\n", s.c.Name(i), strings.Join(alive, " "))
	}
	return b.String()
}

func (s *story) awaitLeader(d *datadriven.TestData) string {
	ctx, cancel := s.within(d)
	defer cancel()
	for ctx.Err() == nil {
		if i := s.c.Leader(storyShard); i >= 0 && (i != s.old || d.HasArg("any")) {
			return "elected"
		}
		time.Sleep(10 * time.Millisecond)
	}
	return "none"
}

func (s *story) replicas() string {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	if err := s.c.Agree(ctx); err != nil {
		return err.Error()
	}
	return "equal"
}
