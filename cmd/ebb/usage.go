package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
)

func newNamespaceUsage(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "usage [NAME]", Short: "What namespaces hold, the largest first, and their budgets",
		Args: argsBetween(0, 1, "[NAME]"),
		Long: `What namespaces hold in the whole cluster, replicas counted once, the largest first.
Bytes are of memory, about. Keys that have faded count until they leave. STATE is live, deleted
(it can be undeleted) or purging.

SHARE is the largest part of a node's memory limit that the replicas of a namespace take
there. From three quarters of its limit on, a node refuses what would make a namespace larger
that takes more than an equal part of it (EBB-1014). One that is alone has all of it.`,
		Example: "  ebb namespace usage\n  ebb namespace usage clicks -o json\n" +
			"  ebb namespace set clicks --max-bytes 1GiB --max-keys 1M",
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			return s.namespaceUsage(cmd, name)
		},
	}
}

type usageJSON struct {
	Name  string `json:"name"`
	Keys  uint64 `json:"keys"`
	Bytes uint64 `json:"bytes"`
	// the budget of the namespace; 0: there is none
	MaxBytes uint64 `json:"max_bytes"`
	MaxKeys  uint64 `json:"max_keys"`
	// the largest share of a node's memory limit, from 0 to 1, and that node; 0 without a limit
	Share float64 `json:"share"`
	Node  string  `json:"node"`
	// live, deleted or purging
	State string `json:"state"`
}

// usageRows returns what each namespace holds, and whether it is deleted.
func usageRows(usage []client.NamespaceUsage, deleted []client.Namespace) []usageJSON {
	states := map[string]string{}
	for _, ns := range deleted {
		states[ns.Name] = "deleted"
		if ns.Deletion.Purging {
			states[ns.Name] = "purging"
		}
	}
	rows := make([]usageJSON, 0, len(usage))
	for _, u := range usage {
		state := cmp.Or(states[u.Name], "live")
		rows = append(rows, usageJSON{u.Name, u.Keys, u.Bytes, u.MaxBytes, u.MaxKeys, u.Share, u.Node, state})
	}
	return rows
}

func (s *session) namespaceUsage(cmd *cobra.Command, name string) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	usage, unreachable, err := c.NamespaceUsage(ctx, name)
	if err != nil {
		return err
	}
	_, deleted, err := c.AllNamespaces(ctx)
	if err != nil {
		return err
	}
	rows := usageRows(usage, deleted)
	if s.output == "json" {
		missing := append([]string{}, unreachable...) // an empty list, not null
		return printJSON(s.term.out, map[string]any{"namespaces": rows, "unreachable": missing})
	}
	var table [][]string
	for _, r := range rows {
		table = append(table, r.row(s.output == "tsv"))
	}
	if err := s.printTable("NAMESPACE\tKEYS\tBYTES\tMAX KEYS\tMAX BYTES\tSHARE\tNODE\tSTATE", table); err != nil {
		return err
	}
	if len(unreachable) > 0 {
		fmt.Fprintf(s.term.err, "note: %s did not answer: what shards hold that are led there is missing\n",
			strings.Join(unreachable, ", "))
	}
	return nil
}

// row returns a line of the table; exact makes its numbers exact, for programs.
func (r *usageJSON) row(exact bool) []string {
	count := func(n uint64, text func(uint64) string) string {
		if exact {
			return strconv.FormatUint(n, 10)
		}
		return text(n)
	}
	limit := func(n uint64, text func(uint64) string) string {
		if n == 0 {
			return "-"
		}
		return count(n, text)
	}
	keys := func(n uint64) string { return strconv.FormatUint(n, 10) }
	share, node := "-", "-"
	if r.Node != "" {
		share, node = fmt.Sprintf("%.1f%%", 100*r.Share), r.Node
	}
	return []string{
		r.Name, count(r.Keys, keys), count(r.Bytes, bytesText), limit(r.MaxKeys, keys), limit(r.MaxBytes, bytesText),
		share, node, r.State,
	}
}

// readBytes reads a size with a unit, above 0.
func readBytes(flag, text string) (uint64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n == 0 {
		return 0, usagef("--%s %q: write it as 512MiB, 1GiB or none", flag, text)
	}
	return n, nil
}

// readCount reads a number that may have a unit such as k or M, from 1.
func readCount(flag, text string) (uint64, error) {
	v, unit, err := humanize.ParseSI(text)
	if err != nil || unit != "" || !(v >= 1 && v < 1<<53) || v != math.Trunc(v) {
		return 0, usagef("--%s %q: write it as 500000, 250k, 1M or none", flag, text)
	}
	return uint64(v), nil
}
