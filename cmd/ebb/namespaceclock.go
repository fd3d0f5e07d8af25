package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

func newNamespaceClock(s *session) *cobra.Command {
	var set string
	cmd := &cobra.Command{
		Use: "clock NAME", Short: "Show or set the event clock of a namespace", Args: argsBetween(1, 1, "NAME"),
		Long: `The event clock of a namespace is the latest time of its events, in any shard,
also of those that their key refused (EBB-2015, EBB-2016). Answers are
of that time, and events age by it. An event that is dated more than max_jump ahead of it is
refused, since one wrong date would make all others look old (ebb namespace set --max-jump).

--set sets the clock in all shards, forward or back: forward where a gap in the times is
real, back where a wrong date was taken. Where it goes back, keys with a later event begin anew,
and sets, distincts and blooms that were written to while it was ahead; the others are as
they were at that time. Keys that have faded by the later time are removed with later writes:
set the clock back soon. It needs the role admin, is in the audit log, and cannot be undone.`,
		Example: `  ebb namespace clock archive
  ebb namespace clock archive --set 2026-11-26T08:00:00Z`,
		RunE: func(cmd *cobra.Command, args []string) error { return s.namespaceClock(cmd, args[0], set) },
	}
	cmd.Flags().StringVar(&set, "set", "", "`time` ("+timeForms+") to set the clock to")
	return cmd
}

func (s *session) namespaceClock(cmd *cobra.Command, name, set string) error {
	to, err := instant(set)
	if err != nil {
		return err
	}
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	if err := s.mustHaveEventClock(ctx, c, name, set != ""); err != nil {
		return err
	}
	clock, err := c.EventClock(ctx, name)
	if err == nil && clock != nil && set != "" {
		before := clock.Now
		clock, err = c.SetEventClock(ctx, name, time.UnixMicro(to))
		if err == nil && clock != nil && clock.Now.Before(before) {
			fmt.Fprintf(s.term.err, "the clock was set back from %s: keys with a later event than %s begin anew, and what is not known "+
				"of keys that were removed is in the bounds of absent and new keys, which may be large until it has faded\n",
				stampOf(before), stampOf(time.UnixMicro(to)))
		}
	}
	switch {
	case err != nil:
		return err
	case clock == nil:
		return proto.ErrStarting.Errorf("event clocks are shown and set from storage version %d on", proto.VersionEventClocks).
			WithHint("upgrade all nodes: see ebb cluster status")
	}
	return s.printClock(name, clock)
}

// mustHaveEventClock refuses a namespace that does not exist or that has no event clock. If the clock is to be set, it
// also refuses a namespace whose clock cannot be set.
func (s *session) mustHaveEventClock(ctx context.Context, c *client.Client, name string, set bool) error {
	ns, err := existing(ctx, c, name)
	switch {
	case err != nil || ns == nil:
		return err
	case ns.Clock != client.ClockEvent:
		return noEventClock(name)
	case set && ns.Decay == client.DecayLinear:
		return proto.ErrBadNamespace.Errorf(
			"namespace %s: under linear decay what is stored are times, so that its clock cannot be set", name).
			WithHint("to take later dates: ebb namespace set " + name + " --max-jump none; " +
				"after a wrong date, write to another namespace")
	}
	return nil
}

func noEventClock(name string) error {
	return proto.ErrBadNamespace.Errorf("namespace %s has no event clock: it lives by wall clock, the time of the nodes", name).
		WithHint("ebb namespace set " + name + " --clock event has it live by the times of its events from now on; " +
			"what is there counts as old as the wall clock says")
}

func (s *session) printClock(name string, clock *client.EventClock) error {
	if s.output == "json" {
		return printJSON(s.term.out, map[string]any{
			"namespace": name, "epoch": clock.Epoch, "now": stampOf(clock.Now), "oldest": stampOf(clock.Oldest),
		})
	}
	if clock.Now.IsZero() {
		fmt.Fprintf(s.term.out, "the event clock of namespace %s has not begun: there was no event yet\n", name)
		return nil
	}
	fmt.Fprintf(s.term.out, "the event clock of namespace %s is at %s\n", name, stampOf(clock.Now))
	if clock.Oldest != clock.Now {
		oldest := "has had no event yet"
		if !clock.Oldest.IsZero() {
			oldest = "is at " + stampOf(clock.Oldest)
		}
		fmt.Fprintf(
			s.term.out,
			"the shard that is behind most %s; it follows when it is written to\n",
			oldest,
		)
	}
	return nil
}

// stampOf formats a time; "" for the zero time.
func stampOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
