package rpc

import (
	"context"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// shardsServer is service Shards: for those who address shards themselves.
type shardsServer struct {
	ebbv1grpc.UnimplementedShardsServer
	*Services
}

// Apply refuses bad commands one by one: the others of the request belong to
// other shards, and other callers of the same client.
func (s *shardsServer) Apply(ctx context.Context, req *ebbv1.ApplyRequest) (*ebbv1.ApplyResponse, error) {
	n := len(req.GetCommands())
	if n == 0 || n > proto.BatchOpsMax {
		return nil, proto.ErrBatchTooLarge.Errorf("%d commands: a request has 1 to %d", n, proto.BatchOpsMax)
	}
	if size := protobuf.Size(req); size > proto.MessageBytesMax {
		return nil, errMessageTooLarge(size)
	}
	refused := checkCommands(req.GetCommands())
	if refused == nil {
		return s.Router.Apply(ctx, req)
	}
	return s.applySome(ctx, req, refused)
}

// applySome applies the commands of req that have no result yet.
func (s *shardsServer) applySome(ctx context.Context, req *ebbv1.ApplyRequest, results []*ebbv1.CommandResult) (*ebbv1.ApplyResponse, error) {
	good := &ebbv1.ApplyRequest{Forwarded: req.GetForwarded()}
	for i, c := range req.GetCommands() {
		if results[i] == nil {
			good.Commands = append(good.Commands, c)
		}
	}
	if len(good.GetCommands()) == 0 {
		return &ebbv1.ApplyResponse{Results: results}, nil
	}
	resp, err := s.Router.Apply(ctx, good)
	if err != nil {
		return nil, err
	}
	if len(resp.GetResults()) != len(good.GetCommands()) {
		return nil, proto.ErrInternal.Errorf("%d results for %d commands", len(resp.GetResults()), len(good.GetCommands()))
	}
	next := 0
	for i := range results {
		if results[i] == nil {
			results[i] = resp.GetResults()[next]
			next++
		}
	}
	return &ebbv1.ApplyResponse{Results: results}, nil
}

// checkCommands returns nil when all is well, else one result for each refused
// command and nil for the others.
func checkCommands(commands []*ebbv1.ShardCommand) []*ebbv1.CommandResult {
	var results []*ebbv1.CommandResult
	for i, c := range commands {
		err := checkCommand(c)
		if err == nil {
			continue
		}
		if results == nil {
			results = make([]*ebbv1.CommandResult, len(commands))
		}
		results[i] = &ebbv1.CommandResult{Error: err.Wire()}
	}
	return results
}

func checkCommand(c *ebbv1.ShardCommand) *proto.Error {
	if c.GetShard() == 0 || c.GetShard() > proto.ShardsMax {
		return proto.ErrWrongShard.Errorf("shard %d: shards are numbered from 1, to %d at most", c.GetShard(), proto.ShardsMax)
	}
	return proto.CheckCommand(c.GetCommand())
}

func (s *shardsServer) Ask(ctx context.Context, req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskResponse, error) {
	if err := checkShardAskRequest(req); err != nil {
		return nil, err
	}
	return s.Local.Ask(ctx, req)
}

func (s *shardsServer) NodeStatus(ctx context.Context, _ *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	return s.Cluster.NodeStatus(ctx)
}

// checkShardAskRequest allows one question in every shard for each that a
// client may ask.
func checkShardAskRequest(req *ebbv1.ShardAskRequest) error {
	const questionsMax = proto.QuestionsMax * proto.ShardsMax
	n := len(req.GetQuestions())
	if n == 0 || n > questionsMax {
		return proto.ErrBadCount.Errorf("%d questions: a request has 1 to %d", n, questionsMax)
	}
	if err := checkConsistency(req.GetConsistency(), req.GetMaxStalenessUs()); err != nil {
		return err
	}
	for i, q := range req.GetQuestions() {
		if err := proto.CheckShardQuestion(q); err != nil {
			return at("question", i, err)
		}
	}
	return nil
}

func errMessageTooLarge(size int) *proto.Error {
	return proto.ErrMessageTooLarge.Errorf("message of %d bytes: the limit is %d", size, proto.MessageBytesMax).
		WithHint("send it in smaller batches")
}
