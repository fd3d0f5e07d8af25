package rpc

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/internal/spell"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// route is one method and path of the HTTP/JSON interface. Its OpenAPI description is made from the same fields, so the
// two cannot differ.
type route struct {
	method  string
	pattern string // segments, {name} for one of them, {name...} for all that follow
	id      string // OpenAPI's operationId
	summary string
	params  []param
	body    protobuf.Message // nil: no body
	calls   string           // the method of service Ebb that it calls; of those with a body
	answer  protobuf.Message
	serve   func(context.Context, *ebbServer, *call) (protobuf.Message, error)
	watch   func(*call) (*ebbv1.WatchRequest, error) // instead of serve: the answer continues, as server-sent events
}

const (
	// QuestionTimeout is how long a question over HTTP may take if its caller gives no timeout.
	QuestionTimeout = 10 * time.Second
	// TimeoutMax is the longest timeout that a caller over HTTP may give.
	TimeoutMax = time.Minute
)

// timeoutParam is a parameter of every route that answers once.
var timeoutParam = param{
	name: "timeout", kind: "string",
	summary: "how long the caller waits: microseconds, or a duration such as 30s, up to 1m; 10s of questions by default, else 2s",
}

// parameters returns all parameters that the query string may have.
func (rt *route) parameters() []param {
	if rt.watch != nil {
		return rt.params
	}
	return append(slices.Clip(rt.params), timeoutParam)
}

// asks reports whether a request only asks, as far as the route shows.
func (rt *route) asks() bool {
	return rt.method == http.MethodGet || rt.calls == ebbv1grpc.Ebb_Ask_FullMethodName ||
		rt.calls == ebbv1grpc.Ebb_Query_FullMethodName
}

// wait is how long a request may take.
func (rt *route) wait(query string) (time.Duration, error) {
	wait := DefaultTimeout
	if rt.asks() {
		wait = QuestionTimeout
	}
	if !strings.Contains(query, timeoutParam.name) {
		return wait, nil
	}
	values, err := parseQuery(query)
	if err != nil || !values.Has(timeoutParam.name) {
		return wait, err
	}
	v, refused := parseNumeral(stalenessField, values.Get(timeoutParam.name))
	if refused != nil {
		refused.Message = timeoutParam.name + ": " + refused.Message
		return wait, refused
	}
	if us := v.Int(); us <= 0 || us > TimeoutMax.Microseconds() {
		return wait, proto.ErrBadRequest.Errorf("timeout %s: it is above 0 and at most %v",
			quote(values.Get(timeoutParam.name)), TimeoutMax)
	}
	return time.Duration(v.Int()) * time.Microsecond, nil
}

// stalenessField is a field that holds a duration.
var stalenessField = (&ebbv1.AskRequest{}).ProtoReflect().Descriptor().Fields().ByName("max_staleness_us")

// param is one parameter of a query string.
type param struct {
	name     string
	kind     string // of JSON schema
	summary  string
	repeated bool
}

var askParams = []param{
	{name: "consistency", kind: "string", summary: "linearizable (default), bounded or any"},
	{name: "max_staleness", kind: "string", summary: "of bounded: microseconds, or a duration such as 500ms"},
	{name: "allow_partial", kind: "boolean", summary: "answer even if some shards do not"},
	{name: "strict", kind: "boolean", summary: "refuse to answer where a key that is named is not there"},
}

var (
	asOfParam       = param{name: "as_of", kind: "string", summary: "evaluate at this time: microseconds since 1970, or RFC 3339; now by default"}
	confidenceParam = param{name: "confidence", kind: "number", summary: "of the intervals, 0.5 to 0.9999; 0.95 by default"}
)

var distributionParams = append([]param{
	{name: "top", kind: "integer", summary: "only the n most probable bins, 1 to 100,000"},
	{name: "bin", kind: "string", summary: "only this bin; may be repeated", repeated: true},
	{name: "bins", kind: "string", summary: "only these bins, separated by commas"},
	asOfParam, confidenceParam,
	{name: "rate", kind: "number", summary: "decay from the last event at this rate per second instead of the stored half-life"},
}, askParams...)

var patternParam = param{
	name: "pattern", kind: "string", summary: "every key that matches, of which * stands for any bytes but '/', ** for any bytes; may be repeated", repeated: true,
}

// mergedParams name keys in the query instead of the path.
var mergedParams = append([]param{
	{name: "key", kind: "string", summary: "the key; several are merged into one distribution", repeated: true},
	patternParam,
}, distributionParams...)

var summaryParams = append([]param{
	{name: "bin", kind: "string", summary: "count this bin of a countmin; may be repeated", repeated: true},
	{name: "quantile", kind: "number", summary: "this quantile of the values, 0 to 1; may be repeated", repeated: true},
	{name: "window", kind: "string", summary: "of a distinct in a namespace with a window: the last microseconds, or a duration such as 10m"},
	{name: "members", kind: "boolean", summary: "name the members of a linear, or some of a set"},
	{name: "limit", kind: "integer", summary: "of the members of a set, at most so many; 100 by default"},
	asOfParam, confidenceParam,
}, askParams...)

// mergedSummaryParams name keys in the query instead of the path.
var mergedSummaryParams = append([]param{
	{name: "key", kind: "string", summary: "the key; several of one kind are merged", repeated: true},
	patternParam,
}, summaryParams...)

var overlapParams = append([]param{
	{name: "key", kind: "string", summary: "a set; there are 2 to 256", repeated: true},
	asOfParam, confidenceParam,
}, askParams...)

var graphParams = append([]param{
	{name: "key", kind: "string", summary: "a set; there are up to 3,000", repeated: true},
	patternParam,
	{name: "links", kind: "integer", summary: "how many links of each set, 1 to 100; 2 by default"},
	{name: "min_jaccard", kind: "number", summary: "leave out links of a smaller similarity, 0 to 1"},
	asOfParam, confidenceParam,
}, askParams...)

var routes = []*route{
	{
		method: http.MethodPost, pattern: "/v1/increment", id: "increment",
		summary: "Add to bins of distributions of one namespace, or bring members and values to keys of other kinds.",
		body:    &ebbv1.IncrementRequest{}, answer: &ebbv1.IncrementResponse{},
		calls: ebbv1grpc.Ebb_Increment_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Increment_FullMethodName, (*ebbServer).Increment),
	},
	{
		method: http.MethodPost, pattern: "/v1/ask", id: "ask",
		summary: "Answer a batch of questions.",
		body:    &ebbv1.AskRequest{}, answer: &ebbv1.AskResponse{},
		calls: ebbv1grpc.Ebb_Ask_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Ask_FullMethodName, (*ebbServer).Ask),
	},
	{
		method: http.MethodPost, pattern: "/v1/query", id: "query",
		summary: "Answer a question in the query language.",
		body:    &ebbv1.QueryRequest{}, answer: &ebbv1.QueryResponse{},
		calls: ebbv1grpc.Ebb_Query_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Query_FullMethodName, (*ebbServer).Query),
	},
	{
		method: http.MethodPost, pattern: "/v1/feed", id: "feed",
		summary: "Count the phrases of a key that stand in texts.",
		body:    &ebbv1.FeedRequest{}, answer: &ebbv1.FeedResponse{},
		calls: ebbv1grpc.Ebb_Feed_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Feed_FullMethodName, (*ebbServer).Feed),
	},
	{
		method: http.MethodPost, pattern: "/v1/watch", id: "watch",
		summary: "Answer a question again and again: server-sent events named answer, raised, cleared and at last end.",
		body:    &ebbv1.WatchRequest{}, answer: &ebbv1.WatchEvent{},
		calls: ebbv1grpc.Ebb_Watch_FullMethodName,
		watch: postedWatch,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/watch/{key...}", id: "watchDistribution",
		summary: "One distribution whenever it changes, as server-sent events. The key may hold slashes; other special characters are percent-encoded.",
		params:  watchParams, answer: &ebbv1.WatchEvent{},
		watch: watchedDistribution,
	},
	{
		method: http.MethodPost, pattern: "/v1/namespaces", id: "setNamespace",
		summary: "Create a namespace or change its settings.",
		body:    &ebbv1.SetNamespaceRequest{}, answer: &ebbv1.SetNamespaceResponse{},
		calls: ebbv1grpc.Ebb_SetNamespace_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_SetNamespace_FullMethodName, (*ebbServer).SetNamespace),
	},
	{
		method: http.MethodGet, pattern: "/v1/namespaces", id: "listNamespaces",
		summary: "List the namespaces with their settings.",
		answer:  &ebbv1.ListNamespacesResponse{},
		serve:   rpc(ebbv1grpc.Ebb_ListNamespaces_FullMethodName, (*ebbServer).ListNamespaces),
	},
	{
		method: http.MethodGet, pattern: "/v1/usage", id: "namespaceUsage",
		summary: "What the namespaces hold, the largest first.",
		answer:  &ebbv1.NamespaceUsageResponse{},
		serve:   rpc(ebbv1grpc.Ebb_NamespaceUsage_FullMethodName, (*ebbServer).NamespaceUsage),
	},
	{
		method: http.MethodDelete, pattern: "/v1/namespaces/{name}", id: "deleteNamespace",
		summary: "Delete a namespace with all of its keys, at the end of a grace time.",
		params:  []param{{name: "grace", kind: "string", summary: "for how long it can be undeleted, such as 24h; 0s for not at all (default 24h)"}},
		answer:  &ebbv1.DeleteNamespaceResponse{},
		calls:   ebbv1grpc.Ebb_DeleteNamespace_FullMethodName,
		serve:   serveDeleteNamespace,
	},
	{
		method: http.MethodPost, pattern: "/v1/namespaces/{name}/undelete", id: "undeleteNamespace",
		summary: "Take back that a namespace was deleted, within its grace time.",
		answer:  &ebbv1.UndeleteNamespaceResponse{},
		calls:   ebbv1grpc.Ebb_UndeleteNamespace_FullMethodName,
		serve:   serveUndeleteNamespace,
	},
	{
		method: http.MethodGet, pattern: "/v1/table", id: "table",
		summary: "Where everything is, as this node knows it.",
		answer:  &ebbv1.TableResponse{},
		serve:   rpc(ebbv1grpc.Ebb_Table_FullMethodName, (*ebbServer).Table),
	},
	{
		method: http.MethodGet, pattern: "/v1/status", id: "status",
		summary: "The nodes and their replicas.",
		answer:  &ebbv1.StatusResponse{},
		serve:   rpc(ebbv1grpc.Ebb_Status_FullMethodName, (*ebbServer).Status),
	},
	{
		method: http.MethodPost, pattern: "/v1/cluster", id: "changeCluster",
		summary: "Say which nodes are to hold replicas, and how many there are; without a change, what moves.",
		body:    &ebbv1.ChangeClusterRequest{}, answer: &ebbv1.ChangeClusterResponse{},
		calls: ebbv1grpc.Ebb_ChangeCluster_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_ChangeCluster_FullMethodName, (*ebbServer).ChangeCluster),
	},
	{
		method: http.MethodPost, pattern: "/v1/tokens", id: "createToken",
		summary: "Make a token of its SHA-256. From the first on, callers need one.",
		body:    &ebbv1.CreateTokenRequest{}, answer: &ebbv1.CreateTokenResponse{},
		calls: ebbv1grpc.Ebb_CreateToken_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_CreateToken_FullMethodName, (*ebbServer).CreateToken),
	},
	{
		method: http.MethodGet, pattern: "/v1/tokens", id: "listTokens",
		summary: "List the tokens, without what they are.",
		answer:  &ebbv1.ListTokensResponse{},
		serve:   rpc(ebbv1grpc.Ebb_ListTokens_FullMethodName, (*ebbServer).ListTokens),
	},
	{
		method: http.MethodPost, pattern: "/v1/tokens/revoke", id: "revokeToken",
		summary: "End a token.",
		body:    &ebbv1.RevokeTokenRequest{}, answer: &ebbv1.RevokeTokenResponse{},
		calls: ebbv1grpc.Ebb_RevokeToken_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_RevokeToken_FullMethodName, (*ebbServer).RevokeToken),
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}", id: "namespace",
		summary: "The settings of one namespace.",
		answer:  &ebbv1.Namespace{},
		serve:   serveNamespace,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/keys", id: "countKeys",
		summary: "How many live keys a namespace has.",
		params:  askParams, answer: &ebbv1.Answer{},
		serve: serveCountKeys,
	},
	{
		method: http.MethodPost, pattern: "/v1/bits", id: "bits",
		summary: "Put ids into bitmaps of one namespace, or take them out.",
		body:    &ebbv1.BitsRequest{}, answer: &ebbv1.BitsResponse{},
		calls: ebbv1grpc.Ebb_Bits_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Bits_FullMethodName, (*ebbServer).Bits),
	},
	{
		method: http.MethodPost, pattern: "/v1/ns/{ns}/bits/{key...}", id: "changeBitmap",
		summary: "Put ids into one bitmap, or take them out.",
		body:    &ebbv1.BitChange{}, answer: &ebbv1.BitsResponse{},
		calls: ebbv1grpc.Ebb_Bits_FullMethodName,
		serve: serveBits,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/bits/{key...}", id: "bitmap",
		summary: "How many ids a bitmap has, or which. Expressions over several bitmaps go to /v1/ask.",
		params:  bitsParams, answer: &ebbv1.Answer{},
		serve: serveBitmap,
	},
	{
		method: http.MethodPost, pattern: "/v1/store", id: "storeBitmap",
		summary: "Make a bitmap of an expression over others.",
		body:    &ebbv1.StoreBitmapRequest{}, answer: &ebbv1.StoreBitmapResponse{},
		calls: ebbv1grpc.Ebb_StoreBitmap_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_StoreBitmap_FullMethodName, (*ebbServer).StoreBitmap),
	},
	{
		method: http.MethodPost, pattern: "/v1/delete", id: "delete",
		summary: "Forget keys.",
		body:    &ebbv1.DeleteRequest{}, answer: &ebbv1.DeleteResponse{},
		calls: ebbv1grpc.Ebb_Delete_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Delete_FullMethodName, (*ebbServer).Delete),
	},
	{
		method: http.MethodPost, pattern: "/v1/expire", id: "expire",
		summary: "Say until when keys live at most.",
		body:    &ebbv1.ExpireRequest{}, answer: &ebbv1.ExpireResponse{},
		calls: ebbv1grpc.Ebb_Expire_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Expire_FullMethodName, (*ebbServer).Expire),
	},
	{
		method: http.MethodPost, pattern: "/v1/rename", id: "rename",
		summary: "Give a key another name.",
		body:    &ebbv1.RenameRequest{}, answer: &ebbv1.RenameResponse{},
		calls: ebbv1grpc.Ebb_Rename_FullMethodName,
		serve: rpc(ebbv1grpc.Ebb_Rename_FullMethodName, (*ebbServer).Rename),
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/keys/{pattern...}", id: "keys",
		summary: "Which keys a namespace has. In the pattern * stands for any bytes but '/', ** for any bytes.",
		params:  listParams, answer: &ebbv1.Answer{},
		serve: serveKeys,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/key/{key...}", id: "describe",
		summary: "What a key is: its kind, sizes, errors, and when it leaves.",
		params:  describeParams, answer: &ebbv1.Answer{},
		serve: serveDescribe,
	},
	{
		method: http.MethodDelete, pattern: "/v1/ns/{ns}/key/{key...}", id: "deleteKey",
		summary: "Forget a key.",
		answer:  &ebbv1.DeleteResponse{},
		serve:   serveDelete,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/distribution", id: "mergedDistribution",
		summary: "One distribution, or several merged into one, with keys in the query.",
		params:  mergedParams, answer: &ebbv1.Answer{},
		serve: serveDistribution,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/distribution/{key...}", id: "distribution",
		summary: "One distribution. The key may hold slashes; other special characters are percent-encoded.",
		params:  distributionParams, answer: &ebbv1.Answer{},
		serve: serveDistribution,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/summary", id: "mergedSummary",
		summary: "What a key of another kind than a distribution knows, or several merged, with keys in the query.",
		params:  mergedSummaryParams, answer: &ebbv1.Answer{},
		serve: serveSummary,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/summary/{key...}", id: "summary",
		summary: "What a key of another kind than a distribution knows. The key may hold slashes; other special characters are percent-encoded.",
		params:  summaryParams, answer: &ebbv1.Answer{},
		serve: serveSummary,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/overlap", id: "overlap",
		summary: "What sets have in common: their union, intersection, difference and similarity.",
		params:  overlapParams, answer: &ebbv1.Answer{},
		serve: serveOverlap,
	},
	{
		method: http.MethodGet, pattern: "/v1/ns/{ns}/graph", id: "graph",
		summary: "Which sets are alike: for each some that are most similar, found by estimates.",
		params:  graphParams, answer: &ebbv1.Answer{},
		serve: serveGraph,
	},
}

// call is one decoded request of a route.
type call struct {
	path  pathValues
	query url.Values
	body  []byte

	charge *charge // what the request takes
}

// rpc serves a method of service Ebb whose request is the body, if it has one.
func rpc[Req any, PReq interface {
	*Req
	protobuf.Message
}, Resp protobuf.Message](name string, method func(*ebbServer, context.Context, PReq) (Resp, error)) func(context.Context, *ebbServer, *call) (protobuf.Message, error) {
	return func(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
		req := PReq(new(Req))
		if c.body != nil {
			if err := parseJSON(c.charge, c.body, req); err != nil {
				return nil, err
			}
		}
		return guardedCall(ctx, s.Services, name, req, func(ctx context.Context, req PReq) (Resp, error) { return method(s, ctx, req) })
	}
}

// pathValues are what the wildcards of a pattern matched, unescaped.
type pathValues map[string]string

// findRoute returns the route of a path, or the methods that the path has.
func findRoute(method, path string) (*route, pathValues, []string) {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	var methods []string
	for _, rt := range routes {
		values, ok := matchPath(rt.pattern, path)
		switch {
		case !ok:
		case rt.method == method:
			return rt, values, nil
		default:
			methods = append(methods, rt.method)
		}
	}
	return nil, nil, methods
}

// matchPath matches an escaped path segment by segment. No pattern has a
// wildcard where another has a literal, so at most one matches.
func matchPath(pattern, path string) (pathValues, bool) {
	var values pathValues
	for pattern != "" {
		want, restWant := nextSegment(pattern)
		if path == "" {
			return nil, false
		}
		got, rest := nextSegment(path)
		name, wild := strings.CutPrefix(want, "{")
		if !wild {
			if got != want {
				return nil, false
			}
			pattern, path = restWant, rest
			continue
		}
		name, all := strings.CutSuffix(strings.TrimSuffix(name, "}"), "...")
		if all {
			got, rest = path[1:], ""
		}
		v, err := url.PathUnescape(got)
		if err != nil {
			return nil, false
		}
		if values == nil {
			values = pathValues{}
		}
		values[name] = v
		pattern, path = restWant, rest
	}
	return values, path == ""
}

// nextSegment splits "/a/b" into "a" and "/b".
func nextSegment(path string) (segment, rest string) {
	path = path[1:]
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// pathHint names the path that was probably meant.
func pathHint(path string) string {
	var names []string
	for _, rt := range routes {
		names = append(names, likeness(rt.pattern, path))
	}
	for _, has := range originPaths {
		for _, op := range has.operations {
			names = append(names, "/"+op)
		}
	}
	if near := spell.Nearest(path, names); near != "" {
		return "did you mean " + near + "?"
	}
	return "/openapi.json lists what there is"
}

// likeness is pattern with its wildcards filled from path.
func likeness(pattern, path string) string {
	want := strings.Split(pattern, "/")
	got := strings.Split(path, "/")
	for i, segment := range want {
		if strings.HasPrefix(segment, "{") && i < len(got) {
			want[i] = got[i]
			if strings.HasSuffix(segment, "...}") {
				return strings.Join(slices.Concat(want[:i], got[i:]), "/")
			}
		}
	}
	return strings.Join(want, "/")
}

func serveNamespace(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	list, err := guardedCall(ctx, s.Services, ebbv1grpc.Ebb_ListNamespaces_FullMethodName, &ebbv1.ListNamespacesRequest{}, s.ListNamespaces)
	if err != nil {
		return nil, err
	}
	name := c.path["ns"]
	for _, ns := range list.GetNamespaces() {
		if ns.GetName() == name {
			return ns, nil
		}
	}
	for _, ns := range list.GetDeleted() {
		if ns.GetName() == name {
			return nil, proto.ErrDeleted(ns)
		}
	}
	return nil, proto.ErrNamespaceNotFound.Errorf("namespace %s does not exist", quote(name))
}

func serveDeleteNamespace(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	req := &ebbv1.DeleteNamespaceRequest{Name: c.path["name"]}
	if text := c.query.Get("grace"); text != "" {
		grace, err := time.ParseDuration(text)
		if err != nil {
			return nil, proto.ErrBadRequest.Errorf("grace %q is no duration such as 24h", text)
		}
		req.GraceUs = new(proto.GraceUS(grace))
	}
	return guardedCall(ctx, s.Services, ebbv1grpc.Ebb_DeleteNamespace_FullMethodName, req, s.DeleteNamespace)
}

func serveUndeleteNamespace(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	req := &ebbv1.UndeleteNamespaceRequest{Name: c.path["name"]}
	return guardedCall(ctx, s.Services, ebbv1grpc.Ebb_UndeleteNamespace_FullMethodName, req, s.UndeleteNamespace)
}

func serveCountKeys(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	q := &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}}
	return askOne(ctx, s, c, q)
}

func serveDistribution(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	d, err := c.distributionQuestion()
	if err != nil {
		return nil, err
	}
	q := &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Distribution{Distribution: d}}
	return askOne(ctx, s, c, q)
}

func serveSummary(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	sq, err := c.summaryQuestion()
	if err != nil {
		return nil, err
	}
	q := &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Summary{Summary: sq}}
	return askOne(ctx, s, c, q)
}

func serveOverlap(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	ask := &ebbv1.OverlapQuestion{}
	var err error
	if ask.Keys, err = c.keys(); err != nil {
		return nil, err
	}
	if err := c.setAll(ask.ProtoReflect(), "as_of", "confidence"); err != nil {
		return nil, err
	}
	return askOne(ctx, s, c, &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Overlap{Overlap: ask}})
}

func serveGraph(ctx context.Context, s *ebbServer, c *call) (protobuf.Message, error) {
	ask := &ebbv1.GraphQuestion{}
	var err error
	if ask.Keys, err = c.keys(); err != nil {
		return nil, err
	}
	if ask.Patterns, err = texts("pattern", c.query["pattern"]); err != nil {
		return nil, err
	}
	if err := c.setAll(ask.ProtoReflect(), "as_of", "confidence", "links", "min_jaccard"); err != nil {
		return nil, err
	}
	return askOne(ctx, s, c, &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Graph{Graph: ask}})
}

func askOne(ctx context.Context, s *ebbServer, c *call, q *ebbv1.Question) (protobuf.Message, error) {
	req := &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}}
	if err := c.askOptions(req); err != nil {
		return nil, err
	}
	return s.askOne(ctx, req)
}
