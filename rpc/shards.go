package rpc

import (
	"cmp"
	"context"
	"slices"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// shardsServer is service Shards: for callers that address shards themselves.
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
	refused := checkCommands(req.GetCommands(), s.commandCheck(ctx))
	if refused == nil {
		return s.Router.Apply(ctx, req)
	}
	return s.applySome(ctx, req, refused)
}

// applySome applies the commands of req that have no result yet.
func (s *shardsServer) applySome(ctx context.Context, req *ebbv1.ApplyRequest, results []*ebbv1.CommandResult) (*ebbv1.ApplyResponse, error) {
	good := &ebbv1.ApplyRequest{Forwarded: req.GetForwarded(), Caller: req.GetCaller()}
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

// checkCommands returns nil if all commands are allowed. Otherwise it returns a result with an error for each refused
// command, and nil for the others. may checks whether the caller may apply a command; nil allows all.
func checkCommands(commands []*ebbv1.ShardCommand, may func([]byte) error) []*ebbv1.CommandResult {
	var results []*ebbv1.CommandResult
	for i, c := range commands {
		err := checkCommand(c)
		if err == nil && may != nil {
			if denied := may(c.GetCommand()); denied != nil {
				err = asError(denied)
			}
		}
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
	once, at := askedOnce(spreadOut(req))
	if once == req {
		once = proto.WithQuestions(req, req.GetQuestions())
	}
	once.AnswerBytes = min(cmp.Or(once.GetAnswerBytes(), partsBytesMax), partsBytesMax)
	resp, err := s.Local.Ask(ctx, once)
	if err != nil {
		return nil, err
	}
	if at != nil {
		answers := make([]*ebbv1.ShardAnswer, len(at))
		for i, j := range at {
			answers[i] = resp.GetAnswers()[j]
		}
		resp = &ebbv1.ShardAskResponse{Answers: answers}
	}
	limitParts(resp.GetAnswers(), req.GetAnswerBytes())
	return resp, nil
}

// askedOnce returns a request in which no question to a shard is repeated. For each given question it also returns the
// index of its question in that request; nil when all are different.
func askedOnce(req *ebbv1.ShardAskRequest) (*ebbv1.ShardAskRequest, []int) {
	firsts := proto.RepeatedShardQuestions(req.GetQuestions())
	if firsts == nil {
		return req, nil
	}
	out, at := proto.WithQuestions(req, nil), make([]int, len(firsts))
	for i, first := range firsts {
		if first != i {
			at[i] = at[first]
			continue
		}
		at[i] = len(out.Questions)
		out.Questions = append(out.Questions, req.GetQuestions()[i])
	}
	return out, at
}

// gathered merges successive questions that ask several shards the same. The merged question is sent once.
func gathered(req *ebbv1.ShardAskRequest) *ebbv1.ShardAskRequest {
	same := func(a, b *ebbv1.ShardQuestion) bool {
		return a.GetQuestion() == b.GetQuestion() && a.GetPartial() == b.GetPartial() &&
			a.GetBeginnings() == b.GetBeginnings() && a.GetSettingsVersion() == b.GetSettingsVersion() &&
			a.GetNamespaceVersion() == b.GetNamespaceVersion() && a.GetHashSeed() == b.GetHashSeed() &&
			protobuf.Equal(a.GetClock(), b.GetClock())
	}
	list, any := req.GetQuestions(), false
	for i := 1; i < len(list) && !any; i++ {
		any = same(list[i], list[i-1])
	}
	if !any {
		return req
	}
	out := proto.WithQuestions(req, nil)
	for i, q := range list {
		if i > 0 && same(q, list[i-1]) {
			last := out.Questions[len(out.Questions)-1]
			last.Also = append(last.Also, q.GetShard())
			continue
		}
		out.Questions = append(out.Questions, ofShard(q.GetShard(), q))
	}
	return out
}

// ofShard is a question for one shard alone.
func ofShard(number uint32, q *ebbv1.ShardQuestion) *ebbv1.ShardQuestion {
	return &ebbv1.ShardQuestion{
		Shard: number, Question: q.GetQuestion(), Partial: q.GetPartial(), Clock: q.GetClock(),
		Beginnings: q.GetBeginnings(), SettingsVersion: q.GetSettingsVersion(),
		NamespaceVersion: q.GetNamespaceVersion(), HashSeed: q.GetHashSeed(),
	}
}

// spreadOut undoes gathered: it makes one question for each shard.
func spreadOut(req *ebbv1.ShardAskRequest) *ebbv1.ShardAskRequest {
	if !slices.ContainsFunc(req.GetQuestions(), func(q *ebbv1.ShardQuestion) bool { return len(q.GetAlso()) > 0 }) {
		return req
	}
	out := proto.WithQuestions(req, nil)
	for _, q := range req.GetQuestions() {
		if len(q.GetAlso()) == 0 {
			out.Questions = append(out.Questions, q)
			continue
		}
		for _, number := range append([]uint32{q.GetShard()}, q.GetAlso()...) {
			out.Questions = append(out.Questions, ofShard(number, q))
		}
	}
	return out
}

// partsBytesMax is what the answers of one call take together, with room for refusals of the others below what a peer
// receives.
const partsBytesMax = peerRecvBytesMax - 2*proto.MessageBytesMax

// limitParts refuses the answers that would make a response larger than the caller accepts. If the caller gives no
// limit (most is 0), the limit is what a peer receives. The caller asks for the refused answers again, in another call.
// Without a limit from the caller, the first answer is always kept, so these calls come to an end.
func limitParts(answers []*ebbv1.ShardAnswer, most uint64) {
	room, first := partsBytesMax, 1
	if most > 0 {
		room, first = int(min(most, partsBytesMax)), 0
	}
	if partsBound(answers) <= room {
		return
	}
	refused := &ebbv1.ShardAnswer{Error: proto.ErrOverloaded.Errorf("the answers of one call take more than %d bytes", room).
		WithHint("ask for the others again").Wire()}
	total, sizes := 0, make(map[*ebbv1.ShardAnswer]int, len(answers)) // equal questions share their answer
	for i, a := range answers {
		size, known := sizes[a]
		if !known {
			size = protobuf.Size(a)
			sizes[a] = size
		}
		if total+size > room && i >= first && a.GetError() == nil {
			answers[i] = refused
			continue
		}
		total += size
	}
}

// answerRoom is what an answer takes in addition to its contents, or as a refusal.
const answerRoom = 256

// partsBound is an upper bound of the size of answers. It is fast where they are few or small.
func partsBound(answers []*ebbv1.ShardAnswer) (n int) {
	for _, a := range answers {
		n += answerRoom + len(a.GetPart())
		switch whole := a.GetAnswer(); {
		case whole == nil:
		case whole.GetDistribution() != nil:
			d := whole.GetDistribution()
			n += len(d.GetKeys())*(proto.KeyLenMax+8) + len(d.GetBins())*(proto.BinLenMax+64)
		default:
			n += protobuf.Size(whole)
		}
	}
	return n
}

func (s *shardsServer) ReadIndex(ctx context.Context, req *ebbv1.ReadIndexRequest) (*ebbv1.ReadIndexResponse, error) {
	if n := len(req.GetShards()); n == 0 || n > proto.ShardsMax || n != len(req.GetApplied()) {
		return nil, proto.ErrBadRequest.Errorf("%d shards and %d entries: there are as many, 1 to %d", n, len(req.GetApplied()), proto.ShardsMax)
	}
	return s.Local.ReadIndex(ctx, req)
}

func (s *shardsServer) Audited(ctx context.Context, req *ebbv1.AuditedRequest) (*ebbv1.AuditedResponse, error) {
	return s.Local.Audited(ctx, req)
}

func (s *shardsServer) Repair(ctx context.Context, req *ebbv1.RepairRequest) (*ebbv1.RepairResponse, error) {
	return s.Local.Repair(ctx, req)
}

func (s *shardsServer) Acknowledged(
	ctx context.Context, req *ebbv1.AcknowledgedRequest,
) (*ebbv1.AcknowledgedResponse, error) {
	return s.Cluster.Acknowledged(ctx, req)
}

func (s *shardsServer) NodeStatus(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	if err := checkStatusRequest(req); err != nil {
		return nil, err
	}
	resp, err := s.Cluster.NodeStatus(ctx, req)
	if err == nil {
		s.Access.vouch(ctx, func() string { return statusSaid(resp) })
	}
	return resp, err
}

func (s *shardsServer) NodeUsage(ctx context.Context, req *ebbv1.NodeUsageRequest) (*ebbv1.NodeUsageResponse, error) {
	return s.Cluster.NodeUsage(ctx, req)
}

func (s *shardsServer) Manage(ctx context.Context, req *ebbv1.ManageRequest) (*ebbv1.ManageResponse, error) {
	return s.Cluster.Manage(ctx, req)
}

// checkShardAskRequest allows as many questions to shards as a coordinator makes of one request.
func checkShardAskRequest(req *ebbv1.ShardAskRequest) error {
	const questionsMax = cluster.PartsMax
	n := len(req.GetQuestions())
	for _, q := range req.GetQuestions() {
		n += len(q.GetAlso())
	}
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
