package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

func newNamespaceClock(s *session) *cobra.Command {
	var set string
	cmd := &cobra.Command{
		Use: "clock NAME", Short: "The event clock of a namespace; --set sets it, also back", Args: argsBetween(1, 1, "NAME"),
		Long: `A namespace with --clock event lives by the times of its events: its now is the newest of them in any of its shards.
An event further ahead of it than --max-jump of the namespace is refused, unless it is confirmed: ebb import confirms a
time that later rows have too, and ebb incr --confirm-time one event.

--set gives the clock another time, which may be earlier, and is for operators. It begins a new epoch of the clock in
all shards: times that clients and nodes have seen before count no more. Of keys that forget, those that had an event
after that time are dropped: what they held before may be gone. All others count what they did at that time, but for
keys that had faded by the clock before: each write since has removed some of them. Rows of an import that were refused
because of their time are counted when the same import is run again.`,
		Example: "  ebb namespace clock history\n  ebb namespace clock history --set 2005-03-31T12:00:00Z",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !s.given["set"] {
				return s.showClock(cmd, args[0])
			}
			us, err := instant(set)
			if err != nil {
				return err
			}
			if us <= 0 {
				return usagef("--set %q: a time after 1970, such as 2005-03-31T12:00:00Z", set)
			}
			return s.setClock(cmd, args[0], time.UnixMicro(us))
		},
	}
	cmd.Flags().StringVar(&set, "set", "", "`time` to give the clock (RFC 3339, a date, or seconds since 1970)")
	return cmd
}

type clockJSON struct {
	Name string `json:"name"`
	// absent if there was no event yet
	Now      string  `json:"now,omitempty"`
	Epoch    uint64  `json:"epoch"`
	MaxJumpS float64 `json:"max_jump_s"`
	// when it was set last: to this time
	Set string `json:"set,omitempty"`
	// of --set: shards that have the new epoch, and those that did not answer yet
	Shards uint32   `json:"shards,omitempty"`
	Waits  []uint32 `json:"waits,omitempty"`
}

func clockRow(ns client.Namespace) clockJSON {
	r := clockJSON{Name: ns.Name, Epoch: ns.ClockEpoch, MaxJumpS: ns.MaxJump.Seconds()}
	if ns.ClockSet.UnixMicro() > 0 {
		r.Set = ns.ClockSet.UTC().Format(time.RFC3339Nano)
	}
	return r
}

func (s *session) showClock(cmd *cobra.Command, name string) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	ns, err := namedNamespace(ctx, c, name)
	if err != nil {
		return err
	}
	if ns.Clock != client.ClockEvent {
		return proto.ErrBadNamespace.Errorf("namespace %s lives by the time of day", name).
			WithHint("only namespaces with --clock event have a clock of their own")
	}
	if _, err := c.CountKeys(ctx, name); err != nil {
		return err
	}
	r := clockRow(ns)
	if clock, known := c.EventClock(name); known {
		r.Now, r.Epoch = time.UnixMicro(clock.NowUS).UTC().Format(time.RFC3339Nano), clock.Epoch
	}
	return s.printClock(r)
}

func (s *session) setClock(cmd *cobra.Command, name string, to time.Time) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	change, err := c.SetNamespaceClock(ctx, name, to)
	if err != nil {
		return err
	}
	r := clockRow(change.Namespace)
	r.Now, r.Shards, r.Waits = r.Set, change.Shards, change.Waits
	if len(r.Waits) > 0 {
		fmt.Fprintf(s.term.err, "shards %v did not answer: they begin the new epoch when they have a leader\n", r.Waits)
	}
	return s.printClock(r)
}

func (s *session) printClock(r clockJSON) error {
	if s.output == "json" {
		return printJSON(s.term.out, r)
	}
	now, jump := r.Now, "any"
	if now == "" {
		now = "-"
	}
	if r.MaxJumpS > 0 {
		jump = seconds(r.MaxJumpS).String()
	}
	rows := [][]string{{"name", r.Name}, {"now", now}, {"epoch", strconv.FormatUint(r.Epoch, 10)}, {"max-jump", jump}}
	if r.Shards > 0 {
		rows = append(rows, []string{"shards", strconv.FormatUint(uint64(r.Shards), 10)})
	}
	return s.printTable("CLOCK\tVALUE", rows)
}

// namedNamespace returns the settings of a namespace.
func namedNamespace(ctx context.Context, c *client.Client, name string) (client.Namespace, error) {
	all, err := c.Namespaces(ctx)
	if err != nil {
		return client.Namespace{}, err
	}
	i := slices.IndexFunc(all, func(n client.Namespace) bool { return n.Name == name })
	if i < 0 {
		return client.Namespace{}, proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", name).
			WithHint("list those that do: ebb namespace list")
	}
	return all[i], nil
}

func (r *namespaceJSON) maxJump() string {
	switch {
	case r.Clock != "event":
		return "-"
	case r.MaxJumpS == 0:
		return "none"
	}
	return seconds(r.MaxJumpS).String()
}

// confirmed is what confirms a time in the namespace of the session.
func (s *session) confirmed(ctx context.Context, c *client.Client) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	ns, err := namedNamespace(ctx, c, s.namespace)
	return client.ClockConfirmed(ns.ClockEpoch), err
}
