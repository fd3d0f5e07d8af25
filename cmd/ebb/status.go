package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

func newStatus(s *session) *cobra.Command {
	var shards bool
	var watch time.Duration
	cmd := &cobra.Command{
		Use: "status", Short: "Nodes, shards, leaders and lag", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			return s.repeat(cmd.Context(), watch, func() error {
				ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
				defer cancel()
				st, err := c.Status(ctx)
				if err != nil {
					return err
				}
				if err := s.printStatus(st, shards); err != nil {
					return err
				}
				table, err := c.Table(ctx)
				if few := tooFew(table, st.GetUnreachable()); err == nil && few != "" {
					fmt.Fprintln(s.term.err, "warning:", few)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&shards, "shards", false, "a line for each shard")
	durationVar(cmd.Flags(), &watch, "watch", 0, 0, "ask again at this interval until interrupted")
	return cmd
}

// tooFew returns a message if fewer nodes answer than a shard is to have replicas; "" if enough do.
func tooFew(table *ebbv1.Table, unreachable []string) string {
	answer := 0
	for _, n := range table.GetNodes() {
		if n.GetState() == ebbv1.NodeState_NODE_STATE_UNSPECIFIED && !slices.Contains(unreachable, n.GetName()) {
			answer++
		}
	}
	want := int(table.GetReplication())
	if answer >= want {
		return ""
	}
	return fmt.Sprintf("each shard is to have %d replicas, and %d nodes answer that may hold them: start the others again, or join new ones (ebb serve --join HOST:PORT)", want, answer)
}

// statusJSON is what `ebb status --json` prints.
type statusJSON struct {
	ClusterID   string      `json:"cluster_id"`
	Storage     uint32      `json:"storage_version"` // in force
	Tokens      uint32      `json:"tokens"`          // number of tokens
	Nodes       []nodeJSON  `json:"nodes"`
	Shards      []shardJSON `json:"shards"`
	Unreachable []string    `json:"unreachable"`
}

type nodeJSON struct {
	Name     string `json:"name"`
	GRPC     string `json:"grpc"`
	HTTP     string `json:"http"`
	Phase    string `json:"phase"`
	Detail   string `json:"detail,omitempty"`
	Leads    int    `json:"leads"`    // number of data shards that it leads
	Replicas int    `json:"replicas"` // of data shards
	LagMax   uint64 `json:"lag_max"`
	LogBytes uint64 `json:"log_bytes"`
	Version  string `json:"version"`
	Storage  uint32 `json:"storage_version"` // the newest that the node supports
	Guarded  bool   `json:"guarded"`         // callers need a token
	DiskSlow bool   `json:"disk_slow"`       // the node hands over its leaderships
	SyncUs   uint64 `json:"sync_us"`         // in three of six seconds the slowest sync took this or longer; 0: too few
}

type shardJSON struct {
	Shard    uint32            `json:"shard"`
	Leader   string            `json:"leader"`
	Term     uint64            `json:"term"`
	Commit   uint64            `json:"commit_index"`
	Lag      map[string]uint64 `json:"lag"` // how many entries each replica is behind the most advanced one
	Keys     uint64            `json:"keys"`
	Replicas int               `json:"replicas"`
	Short    []string          `json:"short,omitempty"`   // nodes whose replica lacks entries that it acknowledged
	Damaged  []string          `json:"damaged,omitempty"` // nodes whose replica is damaged
}

// heldBy counts a node's replicas of data shards, and how many of them lead.
func heldBy(n *ebbv1.NodeStatus) (replicas, leads int) {
	for _, r := range n.GetReplicas() {
		if r.GetShard() == 0 {
			continue // the control group
		}
		if replicas++; r.GetRole() == "leader" {
			leads++
		}
	}
	return replicas, leads
}

// digest makes a view by shard from the nodes' own reports.
func digest(st *ebbv1.StatusResponse) statusJSON {
	out := statusJSON{ClusterID: st.GetClusterId(), Storage: max(st.GetVersion(), 1), Tokens: st.GetTokens(), Unreachable: append([]string{}, st.GetUnreachable()...)}
	byShard := map[uint32]*shardJSON{}
	furthest := map[uint32]uint64{}
	for _, n := range st.GetNodes() {
		for _, r := range n.GetReplicas() {
			furthest[r.GetShard()] = max(furthest[r.GetShard()], r.GetCommitIndex())
		}
	}
	for _, n := range st.GetNodes() {
		nj := nodeJSON{
			Name: n.GetNode().GetName(), GRPC: n.GetNode().GetGrpcAddress(), HTTP: n.GetNode().GetHttpAddress(), Phase: n.GetPhase(),
			Detail: n.GetDetail(), LogBytes: n.GetLogBytes(), Version: n.GetNode().GetVersion(),
			Storage: proto.ReportedVersions(n.GetStorageOldest(), n.GetStorageNewest()).Newest, Guarded: n.GetGuarded(),
			DiskSlow: n.GetDiskSlow(), SyncUs: n.GetSyncUs(),
		}
		nj.Replicas, nj.Leads = heldBy(n)
		for _, r := range n.GetReplicas() {
			sj := byShard[r.GetShard()]
			if sj == nil {
				sj = &shardJSON{Shard: r.GetShard(), Lag: map[string]uint64{}}
				byShard[r.GetShard()] = sj
			}
			lag := furthest[r.GetShard()] - min(furthest[r.GetShard()], r.GetAppliedIndex())
			sj.Lag[nj.Name] = lag
			sj.Replicas++
			sj.Keys = max(sj.Keys, r.GetKeys())
			sj.Commit = furthest[r.GetShard()]
			nj.LagMax = max(nj.LagMax, lag)
			switch r.GetRole() {
			case "short":
				sj.Short = append(sj.Short, nj.Name)
			case "damaged":
				sj.Damaged = append(sj.Damaged, nj.Name)
			}
			if r.GetRole() == "leader" && r.GetTerm() >= sj.Term {
				sj.Leader, sj.Term = nj.Name, r.GetTerm()
			}
		}
		out.Nodes = append(out.Nodes, nj)
	}
	for _, sj := range byShard {
		out.Shards = append(out.Shards, *sj)
	}
	sort.Slice(out.Nodes, func(i, j int) bool { return out.Nodes[i].Name < out.Nodes[j].Name })
	sort.Slice(out.Shards, func(i, j int) bool { return out.Shards[i].Shard < out.Shards[j].Shard })
	return out
}

func (s *session) printStatus(st *ebbv1.StatusResponse, shards bool) error {
	d := digest(st)
	if s.output == "json" {
		return printJSON(s.term.out, d)
	}
	if s.output == "tsv" {
		if shards {
			return s.printTable("", shardRows(d))
		}
		return s.printTable("", nodeRows(d, func(n uint64) string { return strconv.FormatUint(n, 10) }))
	}
	fmt.Fprintf(s.term.out, "cluster %s, storage version %s\n%s\n\n", d.ClusterID, storageText(d), tokensText(d))
	if err := s.printTable("NODE\tPHASE\tLEADS\tREPLICAS\tLAG\tLOG\tGRPC\tHTTP", nodeRows(d, bytesText)); err != nil {
		return err
	}
	without := 0
	for _, sh := range d.Shards {
		if sh.Leader == "" {
			without++
		}
	}
	fmt.Fprintf(s.term.out, "\n%d shards and the control group, %d without a leader\n", max(len(d.Shards)-1, 0), without)
	for _, sh := range d.Shards {
		fmt.Fprint(s.term.out, defectText(sh))
	}
	if !shards {
		return nil
	}
	fmt.Fprintln(s.term.out)
	return s.printTable("SHARD\tLEADER\tTERM\tCOMMIT\tKEYS\tLAG", shardRows(d))
}

// defectText returns a line about replicas of a shard that do not take part; "" if all do.
func defectText(sh shardJSON) string {
	var defects []string
	if len(sh.Short) > 0 {
		defects = append(defects, "the replica lacks what it acknowledged on "+strings.Join(sorted(sh.Short), ", "))
	}
	if len(sh.Damaged) > 0 {
		defects = append(defects, "the replica is damaged on "+strings.Join(sorted(sh.Damaged), ", "))
	}
	if len(defects) == 0 {
		return ""
	}
	led := ""
	if sh.Leader == "" {
		led = ": it has no leader"
	}
	return fmt.Sprintf("shard %d: %s%s\n", sh.Shard, strings.Join(defects, "; "), led)
}

// storageText returns the storage version in force, and the nodes that prevent a newer one.
func storageText(d statusJSON) string {
	newest, behind := d.Storage, append([]string{}, d.Unreachable...)
	for _, n := range d.Nodes {
		newest = max(newest, n.Storage)
	}
	for _, n := range d.Nodes {
		if n.Storage < newest {
			behind = append(behind, n.Name)
		}
	}
	switch {
	case newest == d.Storage:
		return strconv.Itoa(int(d.Storage))
	case len(behind) == 0:
		return fmt.Sprintf("%d, about to be %d", d.Storage, newest)
	}
	return fmt.Sprintf("%d, to be %d when these have it: %s", d.Storage, newest, strings.Join(sorted(behind), ", "))
}

// tokensText says whether callers need a token, and on which nodes they do not.
func tokensText(d statusJSON) string {
	var open []string
	for _, n := range d.Nodes {
		if !n.Guarded {
			open = append(open, n.Name)
		}
	}
	switch {
	case len(open) == len(d.Nodes):
		return "no tokens: everybody may do everything"
	case len(open) > 0:
		return "callers need a token, but not at " + strings.Join(open, ", ") + ": start all nodes with the same --root-token-file"
	case d.Tokens == 0:
		return "callers need a root token; ebb token create makes others"
	}
	return fmt.Sprintf("callers need a token: there are %d", d.Tokens)
}

// nodeRows returns a row for each node; size formats a number of bytes.
func nodeRows(d statusJSON, size func(uint64) string) [][]string {
	var rows [][]string
	for _, n := range d.Nodes {
		phase := n.Phase
		if n.Detail != "" {
			phase += " (" + n.Detail + ")"
		}
		if n.DiskSlow {
			phase += ", disk slow"
		}
		rows = append(rows, []string{
			n.Name, phase, strconv.Itoa(n.Leads), strconv.Itoa(n.Replicas), strconv.FormatUint(n.LagMax, 10), size(n.LogBytes), n.GRPC, n.HTTP,
		})
	}
	for _, name := range d.Unreachable {
		rows = append(rows, []string{name, "unreachable", "-", "-", "-", "-", "-", "-"})
	}
	return rows
}

func shardRows(d statusJSON) [][]string {
	var rows [][]string
	for _, sh := range d.Shards {
		var lags []string
		for name, lag := range sh.Lag {
			lags = append(lags, fmt.Sprintf("%s:%d", name, lag))
		}
		leader := sh.Leader
		if leader == "" {
			leader = "none"
		}
		rows = append(rows, strings.Split(fmt.Sprintf("%d\t%s\t%d\t%d\t%d\t%s", sh.Shard, leader, sh.Term, sh.Commit, sh.Keys, strings.Join(sorted(lags), " ")), "\t"))
	}
	return rows
}

// bytesText formats a size with a binary unit.
func bytesText(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < 4 {
		v /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[i])
}
