package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
	"github.com/ebbdb/ebb/proto/peerv1"
)

const (
	reader   = ebbv1.Role_ROLE_READER
	writer   = ebbv1.Role_ROLE_WRITER
	admin    = ebbv1.Role_ROLE_ADMIN
	operator = ebbv1.Role_ROLE_OPERATOR
)

// audience is the callers that may call a method at all, regardless of the request.
type audience int

const (
	nobody   audience = iota // methods without a rule
	everyone                 // also callers without a token
	known                    // with any token
	nodes                    // other nodes, and no other caller
	granted                  // as check decides
)

// rule decides which callers may call a method.
type rule struct {
	who audience
	// check returns an error if the caller lacks a role for what the request is about, element by element; for granted.
	check func(c *caller, req any) error
	// audit finds what the audit log records: administrative actions, and all that can destroy data. It is nil if no
	// request of the method is either.
	audit auditRule
	// auditExempt is why the method destroys nothing. A rule has either this or audit.
	auditExempt string
	// least is the role that the caller needs in some namespace, regardless of the request. It is checked before
	// anything of the request is read. Unspecified if no role is needed.
	least ebbv1.Role
}

// rules has a rule for every method. A method without a rule is denied to every caller.
var rules = map[string]rule{
	ebbv1grpc.Ebb_Increment_FullMethodName:         in(writer, (*ebbv1.IncrementRequest).GetNamespace).audited(onKeys(auditIncrement)),
	ebbv1grpc.Ebb_Bits_FullMethodName:              in(writer, (*ebbv1.BitsRequest).GetNamespace).audited(onKeys(auditBits)),
	ebbv1grpc.Ebb_StoreBitmap_FullMethodName:       in(writer, (*ebbv1.StoreBitmapRequest).GetNamespace).audited(onKeys(auditStore)),
	ebbv1grpc.Ebb_Delete_FullMethodName:            in(writer, (*ebbv1.DeleteRequest).GetNamespace).audited(onKeys(auditDelete)),
	ebbv1grpc.Ebb_Expire_FullMethodName:            in(writer, (*ebbv1.ExpireRequest).GetNamespace).audited(onKeys(auditExpire)),
	ebbv1grpc.Ebb_Rename_FullMethodName:            in(writer, (*ebbv1.RenameRequest).GetNamespace).audited(onKeys(auditRename)),
	ebbv1grpc.Ebb_Feed_FullMethodName:              in(writer, (*ebbv1.FeedRequest).GetNamespace).exemptFromAudit("it only adds: each phrase found counts 1"),
	ebbv1grpc.Ebb_SetNamespace_FullMethodName:      settings().audited(always(setNamespaceAction)),
	ebbv1grpc.Ebb_DeleteNamespace_FullMethodName:   in(admin, (*ebbv1.DeleteNamespaceRequest).GetName).audited(always(deleteNamespaceAction)),
	ebbv1grpc.Ebb_UndeleteNamespace_FullMethodName: in(admin, (*ebbv1.UndeleteNamespaceRequest).GetName).audited(always(undeleteNamespaceAction)),
	ebbv1grpc.Ebb_Ask_FullMethodName:               rule{who: granted, least: reader, check: checkAsk}.exemptFromAudit(readOnly),
	ebbv1grpc.Ebb_Query_FullMethodName:             rule{who: granted, least: reader, check: checkQuery}.audited(auditQuery),
	ebbv1grpc.Ebb_Watch_FullMethodName:             rule{who: granted, least: reader, check: checkWatch}.exemptFromAudit("it reads; a query that stores is not watched"),
	ebbv1grpc.Ebb_ListNamespaces_FullMethodName:    rule{who: known}.exemptFromAudit(readOnly), // lists those that the caller may read
	ebbv1grpc.Ebb_Table_FullMethodName:             rule{who: known}.exemptFromAudit(readOnly), // the same
	ebbv1grpc.Ebb_Status_FullMethodName:            rule{who: granted, check: checkStatus}.exemptFromAudit("it reads; checksums put entries into logs that change nothing"),
	ebbv1grpc.Ebb_ChangeCluster_FullMethodName:     operators().audited(always(changeClusterAction)),
	ebbv1grpc.Ebb_CreateToken_FullMethodName:       operators().audited(always(createTokenAction)),
	ebbv1grpc.Ebb_ListTokens_FullMethodName:        operators().exemptFromAudit(readOnly),
	ebbv1grpc.Ebb_RevokeToken_FullMethodName:       operators().audited(always(revokeTokenAction)),
	ebbv1grpc.Ebb_NamespaceUsage_FullMethodName:    rule{who: granted, check: checkNamespaceUsage}.exemptFromAudit(readOnly),

	ebbv1grpc.Shards_Apply_FullMethodName:             rule{who: known, least: writer}.audited(auditApply), // command by command, see commandRules
	ebbv1grpc.Shards_Ask_FullMethodName:               rule{who: granted, least: reader, check: checkShardAsk}.exemptFromAudit(readOnly),
	ebbv1grpc.Shards_Snapshot_FullMethodName:          operators().audited(always(snapshotAction)),
	ebbv1grpc.Shards_RestoreNamespaces_FullMethodName: rule{who: granted, least: admin, check: checkRestoreNamespaces}.audited(always(restoreNamespacesAction)),
	ebbv1grpc.Shards_NodeStatus_FullMethodName:        rule{who: granted, check: checkStatus}.exemptFromAudit(readOnly),
	ebbv1grpc.Shards_NodeUsage_FullMethodName:         rule{who: nodes}.exemptFromAudit(readOnly),
	ebbv1grpc.Shards_ReadIndex_FullMethodName:         rule{who: nodes}.exemptFromAudit(readOnly),
	ebbv1grpc.Shards_Audited_FullMethodName:           rule{who: nodes}.exemptFromAudit(readOnly),
	ebbv1grpc.Shards_Acknowledged_FullMethodName:      rule{who: nodes}.exemptFromAudit(readOnly),
	ebbv1grpc.Shards_Repair_FullMethodName:            rule{who: nodes}.exemptFromAudit(byNodes),
	ebbv1grpc.Shards_Manage_FullMethodName:            rule{who: nodes}.exemptFromAudit(byNodes),

	peerv1.Peer_Control_FullMethodName:  rule{who: nodes}.exemptFromAudit(byNodes),
	peerv1.Peer_Append_FullMethodName:   rule{who: nodes}.exemptFromAudit(byNodes),
	peerv1.Peer_Snapshot_FullMethodName: rule{who: nodes}.exemptFromAudit(byNodes),

	grpc_health_v1.Health_Check_FullMethodName:                       rule{who: everyone}.exemptFromAudit(readOnly),
	grpc_health_v1.Health_List_FullMethodName:                        rule{who: everyone}.exemptFromAudit(readOnly),
	grpc_health_v1.Health_Watch_FullMethodName:                       rule{who: everyone}.exemptFromAudit(readOnly),
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      rule{who: everyone}.exemptFromAudit(readOnly), // the schema, which is no secret
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": rule{who: everyone}.exemptFromAudit(readOnly),
}

// Reasons that several methods have for being exempt from audit.
const (
	readOnly = "it reads"
	byNodes  = "nodes do by it what they were asked for; the request is in the audit log of the node that got it"
)

// in returns the rule for requests about one namespace, in which the caller needs role.
func in[Req any](role ebbv1.Role, namespace func(Req) string) rule {
	return rule{who: granted, least: role, check: func(c *caller, req any) error {
		r, ok := req.(Req)
		if !ok {
			return errUnchecked(req)
		}
		return c.needs(role, namespace(r))
	}}
}

func operators() rule {
	return rule{who: granted, least: operator, check: func(c *caller, _ any) error { return c.needs(operator, "") }}
}

// audited returns the rule of a method that administers or can destroy; find finds the audit records.
func (r rule) audited(find auditRule) rule {
	r.audit = find
	return r
}

// exemptFromAudit returns the rule of a method that has no line in the audit log, with the reason.
func (r rule) exemptFromAudit(why string) rule {
	r.auditExempt = why
	return r
}

// errUnchecked is the error for a request of another type than the rule was written for.
func errUnchecked(req any) error { return proto.ErrInternal.Errorf("no rule for a %T", req) }

// settings is the rule of changes to a namespace.
func settings() rule { return rule{who: granted, least: admin, check: checkSetNamespace} }

// checkSetNamespace allows admins of a namespace to change its settings, except the budget: the budget protects the
// memory of other namespaces.
func checkSetNamespace(c *caller, req any) error {
	r, ok := req.(*ebbv1.SetNamespaceRequest)
	if !ok {
		return errUnchecked(req)
	}
	if err := c.needs(admin, r.GetNamespace().GetName()); err != nil {
		return err
	}
	if r.GetNamespace().GetBudget() != nil {
		return c.needs(operator, "")
	}
	return nil
}

// checkNamespaceUsage lets every known caller ask. The answer is about what the caller may read.
func checkNamespaceUsage(c *caller, req any) error {
	r, ok := req.(*ebbv1.NamespaceUsageRequest)
	if !ok {
		return errUnchecked(req)
	}
	if r.GetName() == "" {
		return nil
	}
	return c.needs(reader, r.GetName())
}

func checkAsk(c *caller, req any) error {
	r, ok := req.(*ebbv1.AskRequest)
	if !ok {
		return errUnchecked(req)
	}
	for _, q := range r.GetQuestions() {
		if err := c.needs(reader, q.GetNamespace()); err != nil {
			return err
		}
	}
	return nil
}

func checkShardAsk(c *caller, req any) error {
	r, ok := req.(*ebbv1.ShardAskRequest)
	if !ok {
		return errUnchecked(req)
	}
	for _, q := range r.GetQuestions() {
		if err := c.needs(reader, q.GetQuestion().GetNamespace()); err != nil {
			return err
		}
	}
	return nil
}

func checkRestoreNamespaces(c *caller, req any) error {
	r, ok := req.(*ebbv1.RestoreNamespacesRequest)
	if !ok {
		return errUnchecked(req)
	}
	if len(r.GetNamespaces()) == 0 {
		return c.needs(operator, "") // it will be refused, and only operators get the reason
	}
	for _, ns := range r.GetNamespaces() {
		if err := c.needs(admin, ns.GetName()); err != nil {
			return err
		}
	}
	return nil
}

// checkStatus lets every known caller ask. Checksums are for operators: leaders write entries for them.
func checkStatus(c *caller, req any) error {
	r, ok := req.(*ebbv1.StatusRequest)
	if !ok {
		return errUnchecked(req)
	}
	if len(r.GetChecksums()) > 0 {
		return c.needs(operator, "")
	}
	return nil
}

func checkQuery(c *caller, req any) error {
	r, ok := req.(*ebbv1.QueryRequest)
	if !ok {
		return errUnchecked(req)
	}
	return c.mayQuery(r)
}

func checkWatch(c *caller, req any) error {
	r, ok := req.(*ebbv1.WatchRequest)
	if !ok {
		return errUnchecked(req)
	}
	if r.GetQuery() != "" {
		return c.mayQuery(&ebbv1.QueryRequest{Text: r.GetQuery()})
	}
	return c.needs(reader, r.GetQuestion().GetNamespace())
}

// mayQuery checks every namespace that a question names, anywhere in it.
func (c *caller) mayQuery(req *ebbv1.QueryRequest) error {
	plan, err := cluster.Understood(req)
	if err != nil {
		return err // the query is wrong for every caller
	}
	home, terms := plan.GetNamespace(), 0
	err = eachTerm(plan.ProtoReflect(), func(t *ebbv1.PlanTerm) error {
		terms++
		return c.needs(reader, orName(t.GetNamespace(), home))
	})
	if to := plan.GetStore().GetTo(); err == nil && to != nil {
		err = c.needs(writer, orName(to.GetNamespace(), home))
	}
	if err == nil && terms == 0 {
		err = c.needs(reader, home) // all of its keys
	}
	return err
}

func orName(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}

// eachTerm visits the terms of a plan in messages of any type. So a new kind of question needs no change here.
func eachTerm(m protoreflect.Message, visit func(*ebbv1.PlanTerm) error) (err error) {
	if t, ok := m.Interface().(*ebbv1.PlanTerm); ok {
		return visit(t)
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil || fd.IsMap():
		case fd.IsList():
			for i := 0; err == nil && i < v.List().Len(); i++ {
				err = eachTerm(v.List().Get(i).Message(), visit)
			}
		default:
			err = eachTerm(v.Message(), visit)
		}
		return err == nil
	})
	return err
}

// guarded calls handler if the caller is allowed to, and records the action in the audit log. Every interface uses
// guarded or receivingStream.
func (s *Services) guarded(ctx context.Context, method string, req any, handler grpc.UnaryHandler) (any, error) {
	if s.Access == nil {
		return handler(ctx, req)
	}
	if err := s.Access.admit(ctx, method, req); err != nil {
		return nil, err
	}
	r := rules[method]
	if r.audit == nil || s.Access.auditor == nil {
		return handler(ctx, req)
	}
	found := r.audit(auditRequest{req: req, node: callerOf(ctx).node})
	if len(found) == 0 {
		return handler(ctx, req)
	}
	answered := false
	defer func() {
		if !answered { // it panicked: record what it may have done until then
			s.Access.record(ctx, found, nil, proto.ErrUnknownOutcome.Errorf("the request's handler panicked"))
		}
	}()
	resp, err := handler(ctx, req)
	answered = true
	s.Access.record(ctx, found, resp, err)
	return resp, err
}

// guardedCall is guarded for interfaces that call a method themselves.
func guardedCall[Req, Resp any](ctx context.Context, s *Services, method string, req Req, call func(context.Context, Req) (Resp, error)) (Resp, error) {
	resp, err := s.guarded(ctx, method, req, func(ctx context.Context, _ any) (any, error) { return call(ctx, req) })
	out, _ := resp.(Resp) // none of an error
	return out, err
}
