package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// movesEvery is how often --wait checks whether all moves are done.
const movesEvery = 500 * time.Millisecond

func newCluster(s *session) *cobra.Command {
	return children(
		&cobra.Command{
			Use: "cluster", Short: "Nodes that come and go, and where replicas lie",
			Long: `Nodes join by themselves: ebb serve --join names the gossip address of a node of the
cluster. Replicas then move to them. A node that comes back with an empty disk, under its
own name, gets its replicas anew. A node that does not answer for --replace-after is given
up, and its replicas are made anew on others, unless a third of the nodes look dead.`,
			Example: `  ebb serve --node ebb-3 --join 10.0.0.1:7071 --grpc 10.0.0.4:7070 --gossip 10.0.0.4:7071
  ebb cluster plan --remove ebb-1
  ebb cluster remove ebb-1 --wait`,
		},
		newClusterNodes(s), newClusterShards(s), newClusterMoves(s), newClusterPlan(s),
		newClusterChange(s, "drain NODE", "Move all replicas away from a node, which stays a member", `  ebb cluster drain ebb-1 --dry-run
  ebb cluster drain ebb-1 --wait`,
			func(args []string) (*ebbv1.ChangeClusterRequest, error) { return drainRequest(args[0]), nil }),
		newClusterChange(s, "activate NODE", "Let a node that was drained take its share again", "  ebb cluster activate ebb-1",
			func(args []string) (*ebbv1.ChangeClusterRequest, error) {
				return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Activate{Activate: args[0]}}, nil
			}),
		newClusterChange(s, "remove NODE", "Move all replicas away from a node, and then end its membership: its process stops by itself", "  ebb cluster remove ebb-1 --wait",
			func(args []string) (*ebbv1.ChangeClusterRequest, error) { return removeRequest(args[0]), nil }),
		newClusterReplication(s),
		newClusterChange(s, "rebalance", "Level what nodes hold and lead to within one, where usually a tenth is let be", "  ebb cluster rebalance --dry-run",
			func([]string) (*ebbv1.ChangeClusterRequest, error) { return rebalanceRequest(), nil }),
		newClusterRecover(s), newClusterVerify(s),
	)
}

func drainRequest(node string) *ebbv1.ChangeClusterRequest {
	return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Drain{Drain: node}}
}

func removeRequest(node string) *ebbv1.ChangeClusterRequest {
	return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Remove{Remove: node}}
}

func rebalanceRequest() *ebbv1.ChangeClusterRequest {
	return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Rebalance{Rebalance: true}}
}

func replicationRequest(text string) (*ebbv1.ChangeClusterRequest, error) {
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n == 0 {
		return nil, usagef("replication %q: a number of replicas, such as 3", text)
	}
	return &ebbv1.ChangeClusterRequest{Change: &ebbv1.ChangeClusterRequest_Replication{Replication: uint32(n)}}, nil
}

// newClusterChange makes a command that changes the cluster.
func newClusterChange(s *session, use, short, example string, request func(args []string) (*ebbv1.ChangeClusterRequest, error)) *cobra.Command {
	var dry, wait bool
	_, names, takes := strings.Cut(use, " ")
	args := cobra.PositionalArgs(noArgs)
	if takes {
		args = argsBetween(1, 1, names)
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := request(args)
			if err != nil {
				return err
			}
			if dry && wait {
				return usagef("--dry-run and --wait: one of them")
			}
			req.DryRun = dry
			return s.changeCluster(cmd, req, wait)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would move, and why")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when everything has moved")
	return cmd
}

func newClusterPlan(s *session) *cobra.Command {
	var drain, remove, replication string
	var rebalance bool
	cmd := &cobra.Command{
		Use: "plan", Short: "What is to move, and why; or what would if a node went", Args: noArgs,
		Example: `  ebb cluster plan
  ebb cluster plan --remove ebb-1
  ebb cluster plan --replication 5`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req, given := new(ebbv1.ChangeClusterRequest), 0
			for _, f := range []string{"drain", "remove", "replication", "rebalance"} {
				if s.given[f] {
					given++
				}
			}
			var err error
			switch {
			case given > 1:
				return usagef("one change at a time: --drain, --remove, --replication or --rebalance")
			case drain != "":
				req = drainRequest(drain)
			case remove != "":
				req = removeRequest(remove)
			case replication != "":
				req, err = replicationRequest(replication)
			case rebalance:
				req = rebalanceRequest()
			}
			if err != nil {
				return err
			}
			req.DryRun = true
			return s.changeCluster(cmd, req, false)
		},
	}
	cmd.Flags().StringVar(&drain, "drain", "", "if this `node` were drained")
	cmd.Flags().StringVar(&remove, "remove", "", "if this `node` were removed")
	cmd.Flags().StringVar(&replication, "replication", "", "if each shard had so many replicas: `n`")
	cmd.Flags().BoolVar(&rebalance, "rebalance", false, "if what nodes hold were levelled")
	return cmd
}

func newClusterMoves(s *session) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "moves", Short: "What moves now, and what is to follow", Args: noArgs, Example: "  ebb cluster moves --wait",
		Long: `What moves now, and what is to follow.

SENT is what the new replica was sent of the shard's snapshots, HELD what it had and was not sent, and LEFT what is
still to come of the one that is being sent. Nodes send snapshots no faster than their --move-rate (see ebb serve).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.changeCluster(cmd, &ebbv1.ChangeClusterRequest{DryRun: true}, wait)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "return when everything has moved")
	return cmd
}

// moveJSON is one move as --json prints it.
type moveJSON struct {
	Shard uint32 `json:"shard"`
	Phase string `json:"phase"`
	From  string `json:"from,omitempty"`
	To    string `json:"to,omitempty"`
	Why   string `json:"why"`
	Waits string `json:"waits,omitempty"`
	Sent  uint64 `json:"sent_bytes"` // of snapshots, sent to the new replica
	Held  uint64 `json:"held_bytes"` // of the snapshot, already held by the new replica
	Left  uint64 `json:"left_bytes"` // still to be sent
}

func (s *session) changeCluster(cmd *cobra.Command, req *ebbv1.ChangeClusterRequest, wait bool) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	begun, before := time.Now(), snapshotTraffic{}
	if wait {
		before = readSnapshotTraffic(cmd.Context(), c, s.timeout)
	}
	resp, err := s.changeOnce(cmd.Context(), c, req)
	moved := wait && len(resp.GetMoves()) > 0
	if err == nil && wait {
		resp, err = s.waitForMoves(cmd.Context(), c, resp)
	}
	if err != nil {
		return err
	}
	if moved && s.output != "json" && s.output != "tsv" {
		sent := readSnapshotTraffic(cmd.Context(), c, s.timeout).since(before)
		_, err := fmt.Fprintf(s.term.out, "everything has moved, in %v%s; %v\n", time.Since(begun).Round(100*time.Millisecond), departure(req), sent)
		return err
	}
	return s.printMoves(resp, req.GetDryRun() && req.GetChange() != nil)
}

func (s *session) changeOnce(ctx context.Context, c *client.Client, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return c.ChangeCluster(ctx, req)
}

// waitForMoves asks again until no moves are left. It prints their number whenever it changes.
func (s *session) waitForMoves(ctx context.Context, c *client.Client, resp *ebbv1.ChangeClusterResponse) (*ebbv1.ChangeClusterResponse, error) {
	said := -1
	for len(resp.GetMoves()) > 0 {
		if n := len(resp.GetMoves()); n != said {
			said = n
			fmt.Fprintf(s.term.err, "%d moves left%s\n", n, because(resp.GetWaits()))
		}
		select {
		case <-time.After(movesEvery):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		var err error
		if resp, err = s.changeOnce(ctx, c, &ebbv1.ChangeClusterRequest{DryRun: true}); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// departure returns which node is no member any more when all moves are done; "" for other changes.
func departure(req *ebbv1.ChangeClusterRequest) string {
	if node := req.GetRemove(); node != "" {
		return "; " + node + " is no member any more"
	}
	return ""
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

func (s *session) printMoves(resp *ebbv1.ChangeClusterResponse, dry bool) error {
	moves := make([]moveJSON, 0, len(resp.GetMoves()))
	var rows [][]string
	data := 0
	for _, m := range resp.GetMoves() {
		moves = append(moves, moveJSON{m.GetShard(), m.GetPhase(), m.GetFrom(), m.GetTo(), m.GetWhy(), m.GetWaits(), m.GetSentBytes(), m.GetHeldBytes(), m.GetLeftBytes()})
		why := m.GetWhy()
		if m.GetWaits() != "" {
			why += "; it waits: " + m.GetWaits()
		}
		row := []string{strconv.FormatUint(uint64(m.GetShard()), 10), m.GetPhase(), orDash(m.GetFrom()), orDash(m.GetTo())}
		for _, n := range []uint64{m.GetSentBytes(), m.GetHeldBytes(), m.GetLeftBytes()} {
			row = append(row, s.amount(m.GetPhase() == "joining", n))
		}
		rows = append(rows, append(row, why))
		if m.GetTo() != "" && m.GetShard() != 0 && m.GetPhase() != "leading" {
			data++
		}
	}
	if s.output != "json" {
		for _, w := range resp.GetWarnings() {
			fmt.Fprintln(s.term.err, "warning:", w)
		}
	}
	switch {
	case s.output == "json":
		return printJSON(s.term.out, map[string]any{
			"moves": moves, "epoch": resp.GetEpoch(), "waits": resp.GetWaits(), "warnings": append([]string{}, resp.GetWarnings()...), "dry_run": dry,
		})
	case s.output == "tsv":
		return s.printTable("", rows)
	case len(moves) == 0:
		_, err := fmt.Fprintln(s.term.out, "nothing to move")
		return err
	}
	if err := s.printTable("SHARD\tPHASE\tFROM\tTO\tSENT\tHELD\tLEFT\tWHY", rows); err != nil {
		return err
	}
	verb := "to go"
	if dry {
		verb = "would be made"
	}
	_, err := fmt.Fprintf(s.term.out, "\n%d moves %s, %d of them with data%s\n", len(moves), verb, data, because(resp.GetWaits()))
	return err
}

// amount returns a number of bytes, exact in TSV; "-" if it is not known.
func (s *session) amount(known bool, n uint64) string {
	switch {
	case !known:
		return "-"
	case s.output == "tsv":
		return strconv.FormatUint(n, 10)
	}
	return bytesText(n)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// clusterNodeJSON is one node as `ebb cluster nodes --json` prints it.
type clusterNodeJSON struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Alive    bool   `json:"alive"`
	Answers  bool   `json:"answers"` // the node answers, so its replicas are known
	Zone     string `json:"zone,omitempty"`
	Replicas int    `json:"replicas"` // of data shards, held by the node
	Wanted   int    `json:"wanted"`   // of data shards, assigned to the node by the table, including those on their way
	Leads    int    `json:"leads"`
	Votes    bool   `json:"votes"` // has a vote in the control group
	GRPC     string `json:"grpc"`
	Version  string `json:"version"`
}

func newClusterNodes(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "nodes", Short: "The members, what is wanted of them and what they hold", Args: noArgs, Example: "  ebb cluster nodes --json",
		Long: `The members, what is wanted of them and what they hold.

REPLICAS of data shards, and how many of them a node leads, are what it says itself: a node that does not answer says nothing (-). WANTED is how many
the cluster's table gives it, also those on their way. VOTES says whether it votes in the control group, which is counted nowhere else here.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, c, done, err := s.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			table, err := c.Table(ctx)
			if err != nil {
				return err
			}
			status, err := c.Status(ctx)
			if err != nil {
				return err
			}
			members := nodesOf(table, status)
			if s.output == "json" {
				return printJSON(s.term.out, map[string]any{"cluster_id": table.GetClusterId(), "replication": table.GetReplication(), "nodes": members})
			}
			var rows [][]string
			for _, m := range members {
				holds, leads := "-", "-"
				if m.Answers {
					holds, leads = strconv.Itoa(m.Replicas), strconv.Itoa(m.Leads)
				}
				rows = append(rows, []string{m.Name, m.State, yesNo(m.Alive), orDash(m.Zone), holds, strconv.Itoa(m.Wanted), leads, yesNo(m.Votes), m.GRPC, m.Version})
			}
			return s.printTable("NODE\tSTATE\tALIVE\tZONE\tREPLICAS\tWANTED\tLEADS\tVOTES\tGRPC\tVERSION", rows)
		},
	}
}

func (s *session) table(cmd *cobra.Command) (*ebbv1.Table, error) {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return nil, err
	}
	defer done()
	return c.Table(ctx)
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

// nodesOf returns the members in the table. What a node holds and leads comes from its own report, because reports of
// other nodes may be old.
func nodesOf(table *ebbv1.Table, status *ebbv1.StatusResponse) []*clusterNodeJSON {
	members := make([]*clusterNodeJSON, 0, len(table.GetNodes()))
	byName := make(map[string]*clusterNodeJSON)
	for _, n := range table.GetNodes() {
		m := &clusterNodeJSON{Name: n.GetName(), State: stateNames[n.GetState()], Alive: n.GetAlive(), Zone: n.GetZone(), GRPC: n.GetGrpcAddress(), Version: n.GetVersion()}
		members, byName[m.Name] = append(members, m), m
	}
	for _, record := range table.GetPlacement() {
		for _, r := range record.GetReplicas() {
			switch m := byName[r.GetNode()]; {
			case m == nil:
			case record.GetShard() == 0:
				m.Votes = m.Votes || !r.GetNonvoter() && !r.GetLeaving()
			default:
				m.Wanted++
			}
		}
	}
	for _, n := range status.GetNodes() {
		m := byName[n.GetNode().GetName()]
		if m == nil {
			continue
		}
		m.Answers = true
		m.Replicas, m.Leads = heldBy(n)
	}
	return members
}

var stateNames = map[ebbv1.NodeState]string{
	ebbv1.NodeState_NODE_STATE_UNSPECIFIED: "active",
	ebbv1.NodeState_NODE_STATE_DRAINING:    "drained",
	ebbv1.NodeState_NODE_STATE_LEAVING:     "leaving",
}

// placedJSON is one shard as `ebb cluster shards --json` prints it.
type placedJSON struct {
	Shard     uint32   `json:"shard"`
	Leader    string   `json:"leader"`
	Preferred string   `json:"preferred"`
	Replicas  []string `json:"replicas"`
	Joining   []string `json:"joining,omitempty"`
	Leaving   []string `json:"leaving,omitempty"`
	Target    []string `json:"target,omitempty"`
}

func newClusterShards(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "shards", Short: "Where the replicas of each shard lie, and where they are to", Args: noArgs, Example: "  ebb cluster shards -o tsv",
		Long: `Where the replicas of each shard lie, and where they are to.

LEADER is the node that says it leads the shard; a shard without one takes no writes.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, c, done, err := s.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			table, err := c.Table(ctx)
			if err != nil {
				return err
			}
			status, err := c.Status(ctx)
			if err != nil {
				return err
			}
			shards := placesOf(table, status)
			if s.output == "json" {
				return printJSON(s.term.out, map[string]any{"epoch": table.GetEpoch(), "shards": shards})
			}
			var rows [][]string
			join := func(names []string) string { return orDash(strings.Join(names, " ")) }
			for _, p := range shards {
				rows = append(rows, []string{strconv.FormatUint(uint64(p.Shard), 10), orDash(p.Leader), p.Preferred, join(p.Replicas), join(p.Joining), join(p.Leaving)})
			}
			return s.printTable("SHARD\tLEADER\tPREFERRED\tREPLICAS\tJOINING\tLEAVING", rows)
		},
	}
}

// placesOf returns the shards in the table. The leader of a shard comes from that node's own report, because other
// nodes may still name a leader that is gone.
func placesOf(table *ebbv1.Table, status *ebbv1.StatusResponse) []placedJSON {
	leaders := make(map[uint32]string)
	for _, sh := range digest(status).Shards {
		leaders[sh.Shard] = sh.Leader
	}
	shards := make([]placedJSON, 0, len(table.GetPlacement()))
	for _, record := range table.GetPlacement() {
		p := placedJSON{Shard: record.GetShard(), Leader: leaders[record.GetShard()], Preferred: record.GetPreferred(), Target: record.GetTarget(), Replicas: []string{}}
		for _, r := range record.GetReplicas() {
			switch {
			case r.GetJoining():
				p.Joining = append(p.Joining, r.GetNode())
			case r.GetLeaving():
				p.Leaving = append(p.Leaving, r.GetNode())
			default:
				p.Replicas = append(p.Replicas, r.GetNode())
			}
		}
		slices.Sort(p.Replicas)
		shards = append(shards, p)
	}
	return shards
}
