package rpc

import (
	"context"
	"fmt"
	"slices"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// ebbServer is service Ebb: it checks requests and passes them on. All interfaces use it.
type ebbServer struct {
	ebbv1grpc.UnimplementedEbbServer
	*Services
}

func (s *ebbServer) Increment(ctx context.Context, req *ebbv1.IncrementRequest) (*ebbv1.IncrementResponse, error) {
	if err := checkIncrementRequest(req); err != nil {
		return nil, err
	}
	return s.Router.Increment(ctx, req)
}

func (s *ebbServer) Ask(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.AskResponse, error) {
	if err := checkAskRequest(req); err != nil {
		return nil, err
	}
	resp, err := s.Coordinator.Ask(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := checkAskResponse(resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// Feed searches texts for phrases, and counts what it finds. A retry with the same idempotency key counts nothing twice
// in any shard. If phrases were added or removed in between, each shard keeps what it has counted.
func (s *ebbServer) Feed(ctx context.Context, req *ebbv1.FeedRequest) (*ebbv1.FeedResponse, error) {
	if err := checkNamespaceField(req.GetNamespace()); err != nil {
		return nil, err
	}
	if err := proto.CheckFeed(req); err != nil {
		return nil, err
	}
	if err := checkIdempotencyKey(req.GetIdempotencyKey()); err != nil {
		return nil, err
	}
	heard, err := s.Ask(ctx, &ebbv1.AskRequest{Questions: proto.FeedQuestions(req)})
	if err != nil {
		return nil, err
	}
	found, bad := proto.FoundIn(req, heard.GetAnswers())
	if bad != nil {
		return nil, bad
	}
	if n := len(found); n > proto.BatchOpsMax {
		return nil, proto.ErrBatchTooLarge.Errorf("%d phrases of key %q stand in the texts: a feed counts %d at most", n, req.GetPhrases(), proto.BatchOpsMax).
			WithHint("send the texts in several feeds, each to the end of a sentence")
	}
	resp := &ebbv1.FeedResponse{Found: found}
	if len(found) == 0 {
		return resp, nil
	}
	counted, err := s.Increment(ctx, &ebbv1.IncrementRequest{
		Namespace: req.GetNamespace(), Increments: proto.FeedIncrements(req, found), IdempotencyKey: req.GetIdempotencyKey(),
	})
	if err != nil {
		return nil, err
	}
	resp.Applied, resp.Duplicates, resp.Refused = counted.GetApplied(), counted.GetDuplicates(), counted.GetRefused()
	resp.Faded = counted.GetFaded()
	return resp, nil
}

func (s *ebbServer) SetNamespace(ctx context.Context, req *ebbv1.SetNamespaceRequest) (*ebbv1.SetNamespaceResponse, error) {
	if err := checkSetNamespaceRequest(req); err != nil {
		return nil, err
	}
	return s.Cluster.SetNamespace(ctx, req)
}

// DeleteNamespace deletes a namespace at the end of a grace time.
func (s *ebbServer) DeleteNamespace(ctx context.Context, req *ebbv1.DeleteNamespaceRequest) (*ebbv1.DeleteNamespaceResponse, error) {
	if err := checkDeleteNamespace(req); err != nil {
		return nil, err
	}
	return s.Cluster.DeleteNamespace(ctx, req)
}

func checkDeleteNamespace(req *ebbv1.DeleteNamespaceRequest) error {
	if err := proto.CheckNamespaceName(req.GetName()); err != nil {
		return err
	}
	if grace := req.GetGraceUs(); grace < 0 || grace > proto.GraceMaxUS {
		return proto.ErrBadRequest.Errorf("grace of %d µs: it is 0 to %d", grace, proto.GraceMaxUS)
	}
	return nil
}

// UndeleteNamespace cancels the deletion of a namespace.
func (s *ebbServer) UndeleteNamespace(ctx context.Context, req *ebbv1.UndeleteNamespaceRequest) (*ebbv1.UndeleteNamespaceResponse, error) {
	if err := proto.CheckNamespaceName(req.GetName()); err != nil {
		return nil, err
	}
	return s.Cluster.UndeleteNamespace(ctx, req)
}

// ListNamespaces lists the namespaces that the caller may read.
func (s *ebbServer) ListNamespaces(ctx context.Context, _ *ebbv1.ListNamespacesRequest) (*ebbv1.ListNamespacesResponse, error) {
	t, err := s.table()
	if err != nil {
		return nil, err
	}
	resp := new(ebbv1.ListNamespacesResponse)
	for _, ns := range seen(ctx, t.GetNamespaces()) {
		if ns.GetDeletion() == nil {
			resp.Namespaces = append(resp.Namespaces, ns)
		} else {
			resp.Deleted = append(resp.Deleted, ns)
		}
	}
	return resp, nil
}

// NamespaceUsage returns what namespaces hold, for those that the caller may read.
func (s *ebbServer) NamespaceUsage(
	ctx context.Context, req *ebbv1.NamespaceUsageRequest,
) (*ebbv1.NamespaceUsageResponse, error) {
	if err := checkNamespaceField(req.GetName()); err != nil {
		return nil, err
	}
	resp, err := s.Cluster.NamespaceUsage(ctx, req)
	if err != nil {
		return nil, err
	}
	c := callerOf(ctx)
	resp.Namespaces = slices.DeleteFunc(resp.GetNamespaces(), func(u *ebbv1.NamespaceUsage) bool {
		return !c.sees(u.GetName())
	})
	return resp, nil
}

// Table returns the table, with only the namespaces that the caller may read.
func (s *ebbServer) Table(ctx context.Context, _ *ebbv1.TableRequest) (*ebbv1.TableResponse, error) {
	t, err := s.table()
	if err != nil {
		return nil, err
	}
	if c := callerOf(ctx); c.token != nil && !c.node {
		own := protobuf.CloneOf(t)
		own.Namespaces = seen(ctx, t.GetNamespaces())
		t = own
	}
	resp := &ebbv1.TableResponse{Table: t, Node: s.Node}
	s.Access.vouch(ctx, func() string { return tableSaid(resp) })
	return resp, nil
}

// seen returns the namespaces of a list that a caller may know of.
func seen(ctx context.Context, list []*ebbv1.Namespace) []*ebbv1.Namespace {
	c := callerOf(ctx)
	if c.token == nil || c.node {
		return list
	}
	var out []*ebbv1.Namespace
	for _, ns := range list {
		if c.sees(ns.GetName()) {
			out = append(out, ns)
		}
	}
	return out
}

func (s *ebbServer) Status(ctx context.Context, req *ebbv1.StatusRequest) (*ebbv1.StatusResponse, error) {
	if err := checkStatusRequest(req); err != nil {
		return nil, err
	}
	return s.Cluster.Status(ctx, req)
}

func (s *ebbServer) ChangeCluster(ctx context.Context, req *ebbv1.ChangeClusterRequest) (*ebbv1.ChangeClusterResponse, error) {
	return s.Cluster.ChangeCluster(ctx, req)
}

func checkStatusRequest(req *ebbv1.StatusRequest) error {
	if n := len(req.GetChecksums()); n > proto.ShardsMax {
		return proto.ErrBadCount.Errorf("%d checksums: the limit is %d", n, proto.ShardsMax)
	}
	return nil
}

// checkIncrementRequest refuses a batch as a whole, before any of it is applied.
func checkIncrementRequest(req *ebbv1.IncrementRequest) error {
	if err := checkNamespaceField(req.GetNamespace()); err != nil {
		return err
	}
	n := len(req.GetIncrements())
	if n == 0 {
		return proto.ErrBadRequest.Errorf("no increments: a batch has 1 to %d", proto.BatchOpsMax)
	}
	if n > proto.BatchOpsMax {
		return proto.ErrBatchTooLarge.Errorf("batch of %d increments: the limit is %d", n, proto.BatchOpsMax)
	}
	if size := protobuf.Size(req); size > proto.BatchBytesMax {
		return proto.ErrBatchTooLarge.Errorf("batch of %d bytes: the limit is %d", size, proto.BatchBytesMax)
	}
	for i, in := range req.GetIncrements() {
		if err := checkIncrement(in); err != nil {
			return at("increment", i, err)
		}
	}
	return checkIdempotencyKey(req.GetIdempotencyKey())
}

func checkIncrement(in *ebbv1.Increment) *proto.Error {
	if in.GetOffset() != 0 {
		return proto.ErrBadRequest.Errorf("offset %d: only a source's rows have offsets", in.GetOffset())
	}
	return proto.CheckIncrement(in)
}

func checkIdempotencyKey(k *ebbv1.IdempotencyKey) error {
	if k != nil && k.GetIssuedAtUs() <= 0 {
		return proto.ErrBadTime.Errorf("idempotency key issued at %d µs: it must be after 1970-01-01", k.GetIssuedAtUs())
	}
	return nil
}

func checkAskRequest(req *ebbv1.AskRequest) error {
	n := len(req.GetQuestions())
	if n == 0 || n > proto.QuestionsMax {
		return proto.ErrBadCount.Errorf("%d questions: a request has 1 to %d", n, proto.QuestionsMax)
	}
	if err := checkConsistency(req.GetConsistency(), req.GetMaxStalenessUs()); err != nil {
		return err
	}
	for i, q := range req.GetQuestions() {
		if err := proto.CheckQuestion(q); err != nil {
			return at("question", i, err)
		}
	}
	return checkAskSize(req)
}

// checkAskSize computes the size only of requests that may be over the limit.
func checkAskSize(req *ebbv1.AskRequest) error {
	const questionBytesMax = 256
	bound := 0
	for _, q := range req.GetQuestions() {
		d := q.GetDistribution()
		bound += len(q.GetMatch().GetText())
		if q.GetNames() != nil {
			bound += protobuf.Size(q)
		}
		if len(proto.BitmapExprs(q)) > 0 {
			bound += protobuf.Size(q)
		}
		bins := len(d.GetBins().GetBins()) + len(q.GetSummary().GetBins()) + len(q.GetSurprise().GetBins()) + len(q.GetTrend().GetBins())
		bound += questionBytesMax + len(proto.QuestionKeys(q))*(proto.KeyLenMax+3) + bins*(proto.BinLenMax+3) + 8*len(q.GetSummary().GetQuantiles()) +
			len(proto.QuestionPatterns(q))*(proto.KeyLenMax+3)
	}
	if bound <= proto.MessageBytesMax {
		return nil
	}
	if size := protobuf.Size(req); size > proto.MessageBytesMax {
		return errMessageTooLarge(size)
	}
	return nil
}

func checkConsistency(c ebbv1.Consistency, maxStalenessUS int64) error {
	if _, known := ebbv1.Consistency_name[int32(c)]; !known {
		return proto.ErrBadRequest.Errorf("consistency %d is unknown: linearizable, bounded or any", c)
	}
	bounded := c == ebbv1.Consistency_CONSISTENCY_BOUNDED
	if maxStalenessUS < 0 || bounded && maxStalenessUS == 0 {
		return proto.ErrBadRequest.Errorf("max_staleness_us %d: it must be above 0", maxStalenessUS)
	}
	if maxStalenessUS > 0 && !bounded {
		return proto.ErrBadRequest.Errorf("max_staleness_us %d: only consistency bounded has one", maxStalenessUS)
	}
	return nil
}

// checkAskResponse refuses an answer that the caller's own limit would drop without an error. It computes sizes only of
// answers that may be over that limit.
func checkAskResponse(resp *ebbv1.AskResponse) error {
	const binBytesMax = proto.BinLenMax + 64
	const answerBytesMax = proto.KeyLenMax + 4096
	bound := 0
	for _, a := range resp.GetAnswers() {
		d := a.GetDistribution()
		bound += answerBytesMax + len(d.GetKeys())*proto.KeyLenMax + len(d.GetBins())*binBytesMax + len(a.GetKeys().GetKeys())*(proto.KeyLenMax+128) + len(a.GetExport().GetImage()) +
			protobuf.Size(a.GetNames()) + protobuf.Size(a.GetBitmap()) + protobuf.Size(a.GetGroups()) + protobuf.Size(a.GetCohort())
	}
	if bound <= proto.MessageBytesMax {
		return nil
	}
	if size := protobuf.Size(resp); size > proto.MessageBytesMax {
		return proto.ErrResponseTooLarge.Errorf("answer of %d bytes: the limit is %d", size, proto.MessageBytesMax).
			WithHint("ask for the top n bins, or for fewer questions at a time")
	}
	return nil
}

// checkSetNamespaceRequest checks the settings in the request. A setting that the request leaves out is not changed, so
// it has its default in the check.
func checkSetNamespaceRequest(req *ebbv1.SetNamespaceRequest) error {
	if req.GetNamespace() == nil {
		return proto.ErrBadNamespace.Errorf("no namespace in the request")
	}
	if err := checkNamespaceSize(req.GetNamespace()); err != nil {
		return err
	}
	ns := protobuf.CloneOf(req.GetNamespace())
	if err := proto.CheckNamespace(proto.FillNamespace(ns, proto.DefaultNamespaceSettings())); err != nil {
		return err
	}
	return nil
}

// checkNamespaceSize also bounds fields that this version does not know: they are kept, and are part of entries.
func checkNamespaceSize(ns *ebbv1.Namespace) error {
	if size := protobuf.Size(ns); size > proto.NamespaceBytesMax {
		return proto.ErrBadNamespace.Errorf("namespace of %d bytes: the limit is %d", size, proto.NamespaceBytesMax)
	}
	return nil
}

func checkNamespaceField(name string) error {
	if name == "" {
		return nil
	}
	if err := proto.CheckNamespaceName(name); err != nil {
		return err
	}
	return nil
}

// at adds to an error which element of a batch it is about.
func at(what string, index int, err *proto.Error) *proto.Error {
	c := *err
	c.Message = fmt.Sprintf("%s %d: %s", what, index, err.Message)
	return &c
}

// askOne asks a request of one question, for interfaces that have no batches.
func (s *ebbServer) askOne(ctx context.Context, req *ebbv1.AskRequest) (*ebbv1.Answer, error) {
	if err := proto.CheckQuestion(req.GetQuestions()[0]); err != nil {
		return nil, err // before Ask says "question 0"
	}
	resp, err := guardedCall(ctx, s.Services, ebbv1grpc.Ebb_Ask_FullMethodName, req, s.Ask)
	if err != nil {
		return nil, err
	}
	if n := len(resp.GetAnswers()); n != 1 {
		return nil, proto.ErrInternal.Errorf("%d answers to one question", n)
	}
	a := resp.GetAnswers()[0]
	if a.GetError() != nil {
		return nil, proto.FromWire(a.GetError())
	}
	return a, nil
}
