package rpc

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Router sends writes to the leaders of their shards.
type Router interface {
	// Apply sends each command to its shard. A request marked as forwarded is
	// never forwarded again.
	Apply(context.Context, *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error)
	// ApplyWaiting is Apply that waits for shards which are electing a leader.
	ApplyWaiting(context.Context, *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error)
	// Increment splits a batch by shard and applies it.
	Increment(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error)
	// Bits edits bitmaps, each by a command of its own.
	Bits(context.Context, *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error)
}

// Coordinator answers questions from all shards that hold a part of the answer.
type Coordinator interface {
	Ask(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error)
}

// Local answers for the shards of this node alone.
type Local interface {
	Ask(context.Context, *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error)
	// ReadIndex returns the read indexes of shards that this node leads.
	ReadIndex(context.Context, *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error)
	// Audited returns the result of an audit of this node's replica of a shard.
	Audited(context.Context, *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error)
	// Repair begins to repair this node's replica of a shard.
	Repair(context.Context, *ebbv1.RepairRequest) (*ebbv1.RepairResponse, error)
}

// Cluster is this node's view of the cluster, and the operations that it may ask of the cluster.
type Cluster interface {
	// Table is this node's copy of the placement table, nil before it has one. The caller must not change it.
	Table() *ebbv1.Table
	// SetNamespace creates or changes a namespace, wherever the control group is led.
	SetNamespace(context.Context, *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error)
	// NamespaceUsage returns what namespaces hold in the whole cluster.
	NamespaceUsage(context.Context, *ebbv1.NamespaceUsageRequest) (*ebbv1.NamespaceUsageResponse, error)
	// NodeUsage returns what namespaces hold on this node.
	NodeUsage(context.Context, *ebbv1.NodeUsageRequest) (*ebbv1.NodeUsageResponse, error)
	// DeleteNamespace deletes a namespace, wherever the control group is led.
	DeleteNamespace(context.Context, *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error)
	// UndeleteNamespace cancels the deletion of a namespace, wherever the control group is led.
	UndeleteNamespace(context.Context, *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error)
	// Status reports on all nodes, this one first.
	Status(context.Context, *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error)
	// NodeStatus reports on this node alone.
	NodeStatus(context.Context, *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error)
	// ChangeCluster changes which nodes hold replicas, wherever the control group is led.
	ChangeCluster(context.Context, *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error)
	// CreateToken makes a token of a complete record, wherever the control group is led; req is the original request.
	CreateToken(ctx context.Context, req *ebbv1.CreateTokenRequest, record *ebbv1.TokenRecord) (*ebbv1.CreateTokenResponse, error)
	// RevokeToken ends a token, wherever the control group is led.
	RevokeToken(context.Context, *ebbv1.RevokeTokenRequest) (*ebbv1.RevokeTokenResponse, error)
	// TokenRecords returns the records of all tokens. The caller must not change them.
	TokenRecords() []*ebbv1.TokenRecord
	// Acknowledged returns how far logs of another node reached, as that node had reported to this one.
	Acknowledged(context.Context, *ebbv1.AcknowledgedRequest) (*ebbv1.AcknowledgedResponse, error)
	// Manage does what another node asks of the leader of the control group.
	Manage(context.Context, *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error)
}

// Services are the parts of a node to which the interfaces pass requests, and their settings.
type Services struct {
	Router      Router
	Coordinator Coordinator
	Keys        Keys
	Queries     Queries
	Local       Local
	Cluster     Cluster
	Backups     Backups

	// Access decides who may do what; everybody may do everything when nil.
	Access *Access

	// Hosts are the names that requests to an HTTP listener may have in the header Host; any when nil. Each listener
	// has a list of its own.
	Hosts *Hosts
	// Answers is the memory that answers of all interfaces may take together; without limit when nil.
	Answers *budget.Pool
	// Kept is the memory that the last answers of watches may take together; without limit when nil.
	Kept *budget.Pool

	// Watches counts and ends the watches of all interfaces; each interface has its own when nil.
	Watches *Watches

	// Budget is the memory of requests of all interfaces; each interface has its own when nil.
	Budget *Budget

	// Node is the name of this node.
	Node string
	// Version is the version of this binary.
	Version string
	// Ready returns why this node is not ready, or nil when it is. A nil func means that the node is ready.
	Ready func() error
	// Started returns what the node still does by itself before it can take part, or nil when that is done. It never
	// waits for other nodes. A nil func means that the node has started.
	Started func() error
	// Traces makes spans of requests over HTTP; those over gRPC get theirs by an option of NewGRPC. None when nil.
	Traces trace.TracerProvider
	// Logger is where panics of handlers go; slog.Default() when nil.
	Logger *slog.Logger
	// Registerer collects the metrics of the edges; none are kept when nil.
	Registerer prometheus.Registerer
	// Gatherer is what /metrics shows; prometheus.DefaultGatherer when nil.
	Gatherer prometheus.Gatherer
}

func (s *Services) logger() *slog.Logger {
	if s.Logger == nil {
		return slog.Default()
	}
	return s.Logger
}

func (s *Services) ready() error {
	if s.Ready == nil {
		return nil
	}
	return s.Ready()
}

func (s *Services) table() (*ebbv1.Table, error) {
	t := s.Cluster.Table()
	if t == nil {
		return nil, proto.ErrStarting.Errorf("node %s does not know the cluster's table yet", s.Node)
	}
	return t, nil
}
