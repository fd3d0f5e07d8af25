package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
	"github.com/ebbdb/ebb/proto"
)

func newIncr(s *session) *cobra.Command {
	var at, by string
	cmd := &cobra.Command{
		Use: "incr KEY BIN...", Short: "Count something", Args: argsBetween(2, -1, "KEY BIN..."),
		Example: "  ebb incr clicks/country US\n  ebb incr clicks/country US BR --by 2.5 --at 2013-05-17T21:04:00Z",
		RunE: func(cmd *cobra.Command, args []string) error {
			amount, err := strconv.ParseFloat(by, 64)
			if err != nil && !math.IsInf(amount, 0) {
				return usagef("--by %q is not a number", by)
			}
			if e := proto.CheckAmount(amount); e != nil {
				return e
			}
			timeUS, err := instant(at)
			if err != nil {
				return err
			}
			var happened time.Time // now
			if timeUS != 0 {
				happened = time.UnixMicro(timeUS)
			}
			batch := make([]client.Increment, 0, len(args)-1)
			for _, bin := range args[1:] {
				batch = append(batch, client.Increment{Key: args[0], Bin: bin, Amount: amount, Time: happened})
			}
			return s.incr(cmd, batch)
		},
	}
	cmd.Flags().StringVar(&by, "by", "1", "`amount` to add to each bin")
	cmd.Flags().StringVar(&at, "at", "", "`time` of the event (RFC 3339, a date, or seconds since 1970) instead of now")
	return cmd
}

func (s *session) incr(cmd *cobra.Command, batch []client.Increment) error {
	c, err := s.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	if err := c.Increment(ctx, s.namespace, batch...); err != nil {
		return err
	}
	if s.output == "json" {
		return printJSON(s.term.out, map[string]int{"applied": len(batch)})
	}
	_, err = fmt.Fprintf(s.term.out, "counted %d\n", len(batch))
	return err
}
