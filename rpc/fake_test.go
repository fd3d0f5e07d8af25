package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// fake is every service at once; a nil func answers what an empty cluster would.
type fake struct {
	apply        func(context.Context, *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error)
	increment    func(context.Context, *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error)
	ask          func(context.Context, *ebbv1.AskRequest) (*ebbv1.AskResponse, error)
	shardAsk     func(context.Context, *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error)
	setNamespace func(context.Context, *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error)
	table        *ebbv1.Table
}

func (f *fake) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	if f.apply != nil {
		return f.apply(ctx, req)
	}
	resp := &ebbv1.ApplyResponse{}
	for range req.GetCommands() {
		resp.Results = append(resp.Results, &ebbv1.CommandResult{Applied: 1})
	}
	return resp, nil
}

func (f *fake) Increment(ctx context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
	if f.increment != nil {
		return f.increment(ctx, req)
	}
	return &ebbv1.IncrementResponse{Applied: uint64(len(req.GetIncrements()))}, nil
}

func (f *fake) Bits(_ context.Context, req *ebbv1.BitsRequest) (*ebbv1.BitsResponse, error) {
	return &ebbv1.BitsResponse{Changed: make([]uint64, len(req.GetChanges()))}, nil
}

func (f *fake) Ask(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	if f.ask != nil {
		return f.ask(ctx, req)
	}
	resp := &ebbv1.AskResponse{}
	for _, q := range req.GetQuestions() {
		resp.Answers = append(resp.Answers, emptyAnswer(q))
	}
	return resp, nil
}

func emptyAnswer(q *ebbv1.Question) *ebbv1.Answer {
	a := &ebbv1.Answer{Coverage: &ebbv1.Coverage{ShardsTotal: 1, ShardsAnswered: 1}}
	if q.GetCountKeys() != nil {
		a.Value = &ebbv1.Answer_CountKeys{CountKeys: &ebbv1.KeyCount{}}
	} else {
		a.Value = &ebbv1.Answer_Distribution{Distribution: &ebbv1.Distribution{Keys: q.GetDistribution().GetKeys()}}
	}
	return a
}

func (f *fake) Table() *ebbv1.Table { return f.table }

func (f *fake) SetNamespace(ctx context.Context, req *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
	if f.setNamespace != nil {
		return f.setNamespace(ctx, req)
	}
	return &ebbv1.SetNamespaceResponse{Namespace: proto.FillNamespace(req.GetNamespace(), proto.DefaultNamespaceSettings())}, nil
}

func (f *fake) DeleteNamespace(_ context.Context, req *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error) {
	return &ebbv1.DeleteNamespaceResponse{Namespace: &ebbv1.Namespace{
		Name: req.GetName(), Deletion: &ebbv1.NamespaceDeletion{DeletedUs: 5, PurgeUs: 5 + req.GetGraceUs()},
	}}, nil
}

func (f *fake) UndeleteNamespace(_ context.Context, req *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error) {
	return &ebbv1.UndeleteNamespaceResponse{Namespace: &ebbv1.Namespace{Name: req.GetName()}}, nil
}

func (f *fake) Status(context.Context, *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	return &ebbv1.StatusResponse{ClusterId: "c", Nodes: []*ebbv1.NodeStatus{{Phase: "serving"}, {Phase: "serving"}}}, nil
}

func (f *fake) NamespaceUsage(context.Context, *ebbv1.NamespaceUsageRequest) (*ebbv1.NamespaceUsageResponse, error) {
	return &ebbv1.NamespaceUsageResponse{
		Namespaces: []*ebbv1.NamespaceUsage{{Name: "default", Keys: 2, Bytes: 300}, {Name: "other"}},
	}, nil
}

func (f *fake) Acknowledged(context.Context, *ebbv1.AcknowledgedRequest) (*ebbv1.AcknowledgedResponse, error) {
	return &ebbv1.AcknowledgedResponse{}, nil
}

func (f *fake) NodeUsage(context.Context, *ebbv1.NodeUsageRequest) (*ebbv1.NodeUsageResponse, error) {
	return &ebbv1.NodeUsageResponse{Node: "ebb-0"}, nil
}

func (f *fake) ChangeCluster(_ context.Context, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	return &ebbv1.ChangeClusterResponse{Epoch: 7, Moves: []*ebbv1.Move{{Shard: 1, From: req.GetDrain(), To: "ebb-1", Why: req.GetDrain() + " is drained", Phase: "planned"}}}, nil
}

func (f *fake) Manage(_ context.Context, req *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	return &ebbv1.ManageResponse{Record: &ebbv1.ShardRecord{Shard: req.GetOrder()}}, nil
}

func (f *fake) NodeStatus(context.Context, *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	return &ebbv1.StatusResponse{ClusterId: "c", Nodes: []*ebbv1.NodeStatus{{Phase: "serving"}}}, nil
}

// local is the fake's own shards.
type local struct{ f *fake }

func (l local) Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	if l.f.shardAsk != nil {
		return l.f.shardAsk(ctx, req)
	}
	resp := &ebbv1.ShardAskResponse{}
	for _, q := range req.GetQuestions() {
		resp.Answers = append(resp.Answers, &ebbv1.ShardAnswer{Value: &ebbv1.ShardAnswer_Answer{Answer: emptyAnswer(q.GetQuestion())}})
	}
	return resp, nil
}

// Audited knows a checksum of entries above 100, which is their index.
func (l local) Audited(_ context.Context, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	return &ebbv1.AuditedResponse{Known: req.GetIndex() > 100, Checksum: req.GetIndex()}, nil
}

func (l local) Repair(_ context.Context, req *ebbv1.RepairRequest) (*ebbv1.RepairResponse, error) {
	if req.GetShard() != 1 {
		return nil, proto.ErrNotLeader.Errorf("no replica of shard %d", req.GetShard())
	}
	return &ebbv1.RepairResponse{}, nil
}

// ReadIndex says 100 more than what the other replica has applied.
func (l local) ReadIndex(_ context.Context, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	resp := &ebbv1.ReadIndexResponse{}
	for _, applied := range req.GetApplied() {
		resp.Results = append(resp.Results, &ebbv1.ReadIndex{Index: applied + 100})
	}
	return resp, nil
}

func (f *fake) services() Services {
	return Services{
		Router: f, Coordinator: f, Keys: f, Queries: f, Local: local{f}, Cluster: f,
		Node: "ebb-0", Version: "test", Logger: slog.New(slog.DiscardHandler),
	}
}

// serve runs a gRPC server of s in memory and returns a connection to it.
func serve(t testing.TB, s Services, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return serveOn(t, NewGRPC(s), opts...)
}

// serveOn runs a server in memory.
func serveOn(t testing.TB, srv *grpc.Server, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithPerRPCCredentials(nodeCaller{}),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///ebb-0", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it served
			t.Errorf("serve: %v", err)
		}
	})
	return conn
}

// nodeCaller shows what a node shows, in calls of asNode.
type nodeCaller struct{}

type nodeCallKey struct{}

func asNode(ctx context.Context, a *Access) context.Context {
	return context.WithValue(ctx, nodeCallKey{}, a)
}

func (nodeCaller) GetRequestMetadata(ctx context.Context, uri ...string) (map[string]string, error) {
	if a, ok := ctx.Value(nodeCallKey{}).(*Access); ok {
		return a.Credentials().GetRequestMetadata(ctx, uri...)
	}
	return nil, nil
}

func (nodeCaller) RequireTransportSecurity() bool { return false }

func marshal(t testing.TB, m protobuf.Message) []byte {
	t.Helper()
	b, err := protobuf.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (f *fake) Delete(_ context.Context, req *ebbv1.DeleteRequest) (*ebbv1.DeleteResponse, error) {
	return &ebbv1.DeleteResponse{Deleted: uint64(len(req.GetKeys()))}, nil
}

func (f *fake) Expire(_ context.Context, req *ebbv1.ExpireRequest) (*ebbv1.ExpireResponse, error) {
	return &ebbv1.ExpireResponse{Changed: uint64(len(req.GetKeys()))}, nil
}

func (f *fake) StoreBitmap(context.Context, *ebbv1.StoreBitmapRequest) (*ebbv1.StoreBitmapResponse, error) {
	return &ebbv1.StoreBitmapResponse{Count: 1}, nil
}

func (f *fake) Rename(context.Context, *ebbv1.RenameRequest) (*ebbv1.RenameResponse, error) {
	return &ebbv1.RenameResponse{BytesMoved: 1}, nil
}

func (f *fake) ApplyWaiting(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	return f.Apply(ctx, req)
}
