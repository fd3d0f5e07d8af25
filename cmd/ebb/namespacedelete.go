package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebbdb/ebb/client"
)

func newNamespaceDelete(s *session) *cobra.Command {
	var now, yes bool
	var grace time.Duration
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a namespace with all of its keys", Args: argsBetween(1, 1, "NAME"),
		Long: `Delete takes a namespace with all of its keys out of use: it refuses questions and writes from then on. Within the grace
time ebb namespace undelete brings it back as it was. Until then its keys stay in memory; after that all shards forget them, and
the name can be used again when ebb namespace list does not show it any more. --now begins that at once, also for a namespace
that was deleted before, and cannot be taken back: it is refused without --yes. The namespace default cannot be deleted.

Tokens that name the namespace stay. They hold for a namespace of that name that is created later: revoke those that should not.`,
		Example: "  ebb namespace delete visits\n  ebb namespace delete visits --grace 1h\n  ebb namespace delete visits --now --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			if now && s.given["grace"] {
				return usagef("--now and --grace exclude each other")
			}
			if now {
				grace = 0
			}
			if grace == 0 && !yes {
				return usagef("without a grace time the keys of namespace %s are lost at once: `ebb namespace delete %s --now --yes` does it", args[0], args[0])
			}
			return s.deleteNamespace(cmd, args[0], grace)
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "forget its keys at once; they cannot be brought back")
	durationVar(cmd.Flags(), &grace, "grace", client.GraceDefault, 0, "for how long it can be undeleted")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it although it cannot be taken back")
	return cmd
}

func (s *session) deleteNamespace(cmd *cobra.Command, name string, grace time.Duration) error {
	ctx, c, done, err := s.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	d, err := c.DeleteNamespace(ctx, name, grace)
	if strings.HasPrefix(nextStep(err), "create it: ") {
		return advised(err, "list those that there are: ebb namespace list")
	}
	if err != nil {
		return err
	}
	row := deletionRow(&d)
	if s.output == "json" {
		return printJSON(s.term.out, struct {
			Name     string        `json:"name"`
			Deletion *deletionJSON `json:"deletion"`
		}{name, row})
	}
	if d.Purging {
		fmt.Fprintf(s.term.err, "namespace %s is deleted, and its keys are being purged\n", name)
		return nil
	}
	fmt.Fprintf(s.term.err, "namespace %s is deleted; until %s `ebb namespace undelete %s` brings it back\n", name, row.Purge, name)
	return nil
}

func newNamespaceUndelete(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "undelete NAME", Short: "Bring a deleted namespace back, within its grace time", Args: argsBetween(1, 1, "NAME"),
		Example: "  ebb namespace undelete visits",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c, done, err := s.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			live, _, err := c.AllNamespaces(ctx)
			if err != nil {
				return err
			}
			ns, err := c.UndeleteNamespace(ctx, args[0])
			if err != nil {
				return err
			}
			if slices.ContainsFunc(live, func(n client.Namespace) bool { return n.Name == ns.Name }) {
				fmt.Fprintf(s.term.err, "note: namespace %s is not deleted\n", ns.Name)
			}
			return s.printNamespaces([]client.Namespace{ns})
		},
	}
}
