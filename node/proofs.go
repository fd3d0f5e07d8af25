package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/rpc"
)

// Proofs between nodes, in a cluster with tokens:
//
//   - A node believes that a caller is a node only if the caller proves it (rpc.Access). So the first token waits until
//     every member proves itself to every other. While there are tokens, a node that proves nothing cannot join.
//   - The control leader checks both. The control group checks again, where commands have an order (cluster.Control).
//   - Builds before storage version 8 allowed tokens on several nodes without proofs. A node of this build does not
//     start among such nodes: it would not believe them, and a majority of nodes of this build would stop the
//     cluster. It ends before it has a replica that votes.

// putRetry is how long the control leader waits before it asks the members again, if the table has changed in between.
const putRetry = 20 * time.Millisecond

// hintStopAll is the hint how a cluster with tokens gets proofs.
const hintStopAll = "If the other nodes have none, they run on without this one until all of them get one: `ebb " +
	"token secret --out cluster.secret`, copy the file to " +
	"all nodes, stop all nodes, and start all of this build with --cluster-secret-file cluster.secret"

// proves reports whether this node can prove to others that it is one.
func (c *Config) proves() bool {
	return c.TLS.On() || len(c.RootTokens) > 0 || len(c.ClusterSecrets) > 0
}

// checkProofs returns an error if a table has tokens and other members, and this node cannot prove itself to those
// members.
func (c *Config) checkProofs(t *cluster.Table) error {
	if t == nil || t.Tokens().Len() == 0 || len(t.Nodes()) < 2 || c.proves() {
		return nil
	}
	return c.errProvesNothing()
}

func (c *Config) errProvesNothing() error {
	return proto.ErrBadRequest.Errorf("the cluster has tokens and several nodes, and node %s cannot prove to the "+
		"others that it is a node: "+
		"it has neither TLS, nor a cluster secret, nor a root token", c.Name).
		WithHint("if the other nodes have a secret, start this one with the same --cluster-secret-file (or with the " +
			"same --root-token-file, or with TLS). " + hintStopAll)
}

// checkPeerProofs returns an error if other nodes have tokens, and they or this node cannot prove themselves to each
// other. It judges by the reports, or by the error with which a node refused to report. Over TLS all nodes have
// certificates. A node with a root token checks no further: builds before storage version 8 prove that they have it
// too, and do not report it.
func (n *Node) checkPeerProofs(reports []report, refused error) error {
	if n.trust != nil || len(n.cfg.RootTokens) > 0 {
		return nil
	}
	_, accepted := n.access.ProofKeys()
	if refused != nil && len(accepted) == 0 {
		return n.cfg.errProvesNothing()
	}
	for _, r := range reports {
		switch {
		case !r.guarded:
		case len(accepted) == 0:
			return n.cfg.errProvesNothing()
		case !intersect(r.shown, accepted):
			return proto.ErrBadRequest.Errorf("the cluster has tokens, and node %s (ebb %s) does not prove to node %s "+
				"that it is a node: %s",
				r.node, r.record.GetVersion(), n.cfg.Name, provesBy(r.shown)).
				WithHint("to replace a secret, add the new one as the last line on all nodes first. " + hintStopAll)
		}
	}
	return nil
}

// provenReports is checkPeerProofs for a node that has no replicas yet. A node without proofs of its own believes the
// reports, and end is why it must end. A node with a secret does not: a peer without its secrets proves nothing, and
// must not end it. Such reports are left out, and doubt is why.
func (n *Node) provenReports(reports []report, refused error) (proven []report, doubt, end error) {
	err := n.checkPeerProofs(reports, refused)
	switch {
	case err == nil:
		return reports, refused, nil
	case !n.cfg.proves():
		return nil, nil, err
	}
	_, accepted := n.access.ProofKeys()
	return slices.DeleteFunc(reports, func(r report) bool {
		return r.guarded &&
			!intersect(r.shown, accepted)
	}), err, nil
}

// checkPeerProofsBefore8 is checkPeerProofs for a node that has replicas already. It is called before they run, for a
// cluster with tokens that may still have builds before storage version 8. From that version on, all members prove
// themselves.
func (n *Node) checkPeerProofsBefore8(ctx context.Context) error {
	table := n.Table()
	if table.Version() >= proto.VersionPeerProofs || table.Tokens().Len() == 0 {
		return nil
	}
	reports, refused := n.surveyed(ctx, n.others())
	return n.checkPeerProofs(n.trusted(reports), refused)
}

// because returns the end of a sentence about a refusal; "" without one.
func because(refused error) string {
	if refused == nil {
		return ""
	}
	return ": " + proto.AsError(refused).Message
}

func provesBy(shown []string) string {
	if len(shown) == 0 {
		return "it has no secret"
	}
	return "it has another secret"
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(one string) bool { return slices.Contains(b, one) })
}

// putToken proposes a token, on the control leader. For the first token of a cluster that is open to all, every member
// must prove to every other that it is a node. No member may join during that check.
func (n *Node) putToken(ctx context.Context, c *control, put *ebbv1.PutToken, key *ebbv1.IdempotencyKey) error {
	for {
		if err := n.proveFirst(c, put); err != nil {
			return err
		}
		_, err := c.propose(ctx, &ebbv1.ControlCommand{
			Body: &ebbv1.ControlCommand_PutToken{PutToken: put}, IdempotencyKey: key,
		})
		if !errors.Is(err, proto.ErrTooStale) {
			return err
		}
		select {
		case <-time.After(putRetry):
		case <-ctx.Done():
			return err
		}
	}
}

// proveFirst sets put.ProvenEpoch, if the token would be the first, to the epoch of the table whose members all prove
// that they are nodes. It refuses a token with which a member could not continue. A root token of this node is no proof
// that the other members have one.
func (n *Node) proveFirst(c *control, put *ebbv1.PutToken) error {
	table := c.state.control.Table()
	if table.Tokens().Len() > 0 {
		return nil
	}
	put.ProvenEpoch = table.Epoch()
	if n.trust != nil {
		return nil // every member has shown the certificate of a node
	}
	if len(table.Nodes()) > 1 {
		if err := n.allProve(table); err != nil {
			return err
		}
	}
	if table.Version() < proto.VersionPeerProofs {
		return proto.ErrStarting.Errorf("the first token needs storage version %d, and %d is in force",
			proto.VersionPeerProofs, table.Version()).
			WithHint("try again in a few seconds; `ebb status` says which nodes hold the version back")
	}
	return nil
}

// allProve returns an error unless the statuses of all members show that each can prove to each other that it is a
// node.
func (n *Node) allProve(table *cluster.Table) error {
	own := report{node: n.cfg.Name, record: n.record(), clock: n.cfg.Clock.Now()}
	own.shown, own.accepted = n.access.ProofKeys()
	reports := append(n.trusted(n.survey(n.ctx, n.others())), own) // in the name of this node, not of the caller
	sort.Slice(reports, func(i, j int) bool { return reports[i].node < reports[j].node })
	var why []string
	for _, record := range table.Nodes() {
		if !slices.ContainsFunc(reports, func(r report) bool { return r.node == record.GetName() }) {
			why = append(why, fmt.Sprintf("node %s does not answer", record.GetName()))
		}
	}
	for _, from := range reports {
		if len(from.shown) == 0 {
			why = append(why, fmt.Sprintf("node %s (ebb %s) has no secret", from.node, from.record.GetVersion()))
			continue
		}
		for _, to := range reports {
			if len(to.shown) > 0 && !intersect(from.shown, to.accepted) {
				why = append(why, fmt.Sprintf("node %s does not accept the secret of node %s", to.node, from.node))
			}
			if off := to.clock.Sub(from.clock); off > rpc.ProofLife/2 {
				why = append(why, fmt.Sprintf("the clock of node %s is %v ahead of that of node %s", to.node,
					off.Round(time.Second), from.node))
			}
		}
	}
	if len(why) == 0 {
		return nil
	}
	return proto.ErrBadRequest.Errorf("the first token of a cluster of %d nodes needs all of them to prove to each "+
		"other that they are nodes: %s",
		len(table.Nodes()), strings.Join(why, "; ")).WithHint(proto.HintProofs)
}
