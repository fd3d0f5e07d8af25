package rpc

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// NewHTTP returns the public HTTP handler: every method of service Ebb as JSON under /v1/, its OpenAPI document at
// /openapi.json, and the HTTP interfaces of other programs.
func NewHTTP(s Services) http.Handler {
	if s.Watches == nil {
		s.Watches = NewWatches(s.Registerer)
	}
	if s.Budget == nil {
		s.Budget = NewBudget(0, s.Registerer)
	}
	h := &httpServer{
		Services: &s,
		ebb:      &ebbServer{Services: &s},
		metrics:  newMetrics("http", s.Registerer),
		pages:    newPages("http", &s),
	}
	h.origins = newOrigins(h.ebb)
	return h
}

// httpServer selects the interface by path. It does not use http.ServeMux, which cleans paths and would turn the key
// a//b into a/b.
type httpServer struct {
	*Services
	ebb     *ebbServer
	origins *origins
	metrics *metrics
	pages   *pages
}

func (h *httpServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isolate(w.Header())
	path := r.URL.EscapedPath()
	op, isDoor := doorOperation(path)
	rt, values, methods := findRoute(r.Method, path)
	if !isDoor {
		op = doorOp{}
	}
	if refused := h.checkPage(r, rt, op); refused != nil {
		if isDoor {
			h.origins.doors[op.door].writeError(w, op, refuse(codeForbidden, refused.err))
			return
		}
		writeErrorStatus(w, refused.status, refused.err)
		return
	}
	if path == "/openapi.json" {
		h.serveOpenAPI(w, r)
		return
	}
	if path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		serveFront(w, r)
		return
	}
	if isDoor {
		h.origins.serve(w, r, op)
		return
	}
	if rt != nil {
		ctx, err := h.Access.identifyHTTP(r, rt.pattern)
		if err != nil {
			h.metrics.observe(rt.method+" "+rt.pattern, time.Now(), err)
			writeError(w, err)
			return
		}
		r = r.WithContext(ctx)
		if rt.body != nil {
			if refused := h.pages.checkJSON(r, rt.pattern); refused != nil {
				h.metrics.observe(rt.method+" "+rt.pattern, time.Now(), refused.err)
				writeErrorStatus(w, refused.status, refused.err)
				return
			}
		}
	}
	switch {
	case rt != nil && rt.watch != nil:
		h.serveStream(w, r, rt, values)
	case rt != nil:
		h.serveRoute(w, r, rt, values)
	case methods != nil:
		w.Header().Set("Allow", strings.Join(methods, ", "))
		err := proto.ErrBadRequest.Errorf("%s %s: only %s is possible here", clip(r.Method), clip(path), strings.Join(methods, " or "))
		writeErrorStatus(w, http.StatusMethodNotAllowed, err)
	default:
		err := proto.ErrBadRequest.Errorf("nothing is at %s", quote(path)).WithHint(pathHint(path))
		writeErrorStatus(w, http.StatusNotFound, err)
	}
}

// checkPage refuses requests of web pages of another origin. What it refuses depends on the route or the operation, if
// the request has one.
func (h *httpServer) checkPage(r *http.Request, rt *route, op doorOp) *pageError {
	pattern, does := "/...", reads
	switch {
	case op.name != "":
		pattern, does = "/"+op.name, op.effect()
	case rt != nil:
		pattern = rt.pattern
		if rt.watch != nil {
			does = works
		}
	}
	return h.pages.check(r, pattern, does)
}

// serveRoute does for HTTP what the interceptor does for gRPC.
func (h *httpServer) serveRoute(w http.ResponseWriter, r *http.Request, rt *route, values pathValues) {
	start := time.Now()
	name := rt.method + " " + rt.pattern
	wait, refused := rt.wait(r.URL.RawQuery)
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	ctx, traced := h.traced(ctx, r, name)
	ctx, held := h.Budget.charged(ctx)
	defer held.end()
	ctx, answers := h.begin(ctx, answersMax)
	defer answers.Close()
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = panicked(h.Services, name, p)
			writeError(w, err)
		}
		traced(err)
		h.metrics.observe(name, start, err)
	}()
	var resp protobuf.Message
	if refused != nil {
		err = refused
	} else if resp, err = h.call(ctx, w, r, rt, values); err == nil {
		err = writeMessage(ctx, w, resp)
	}
	if err != nil {
		writeError(w, err)
	}
}

func (h *httpServer) call(ctx context.Context, w http.ResponseWriter, r *http.Request, rt *route, values pathValues) (protobuf.Message, error) {
	c, err := h.taken(ctx, w, r, rt, values)
	if err != nil {
		return nil, err
	}
	return rt.serve(ctx, h.ebb, c)
}

// taken decodes a request.
func (h *httpServer) taken(ctx context.Context, w http.ResponseWriter, r *http.Request, rt *route, values pathValues) (*call, error) {
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	if ns, ok := values["ns"]; ok {
		if err := proto.CheckNamespaceName(ns); err != nil {
			return nil, err
		}
	}
	c := &call{path: values, query: query, charge: chargeOf(ctx)}
	if err := c.checkParams(rt.parameters()); err != nil {
		return nil, err
	}
	if rt.body != nil {
		if err := h.Access.begin(ctx, rt.calls, values["ns"]); err != nil {
			return nil, err
		}
		if err := checkIdempotencyHeader(r, rt); err != nil {
			return nil, err
		}
		if c.body, err = readBody(ctx, w, r); err != nil {
			return nil, err
		}
	}
	awaitAnswer(ctx, w)
	return c, nil
}

// awaitAnswer extends the timeouts of the connection until an answer can have been written. The server's own timeouts
// are shorter than some callers wait. When the time to read is over, the request ends too.
func awaitAnswer(ctx context.Context, w http.ResponseWriter) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) > DefaultTimeout {
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(deadline.Add(time.Second)) // not every writer has one
		_ = rc.SetWriteDeadline(deadline.Add(writeMax))
	}
}

// writeMax is how long an answer that took longer than DefaultTimeout may take to be written.
const writeMax = 30 * time.Second

// checkIdempotencyHeader refuses an idempotency key in a header, where it would be ignored: a retry would count twice.
// A key includes the time at which it was made, for which a header has no place.
func checkIdempotencyHeader(r *http.Request, rt *route) error {
	fields := rt.body.ProtoReflect().Descriptor().Fields()
	if r.Header.Get("Idempotency-Key") == "" || fields.ByName("idempotency_key") == nil {
		return nil
	}
	return proto.ErrBadRequest.Errorf("the header Idempotency-Key is not read here: the key is a field of the body").
		WithHint(`write it as "idempotency_key": ` + idempotencyForm)
}

// readBody reads at most the bytes of one message, for as long as ctx lasts, and no longer than DefaultTimeout. It
// returns DEADLINE when that is too short for the caller. Then the connection cannot be used again.
func readBody(ctx context.Context, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return nil, proto.ErrBadRequest.Errorf("content encoding %s is not supported", quote(enc))
	}
	start, limit := time.Now(), DefaultTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, deadline.Sub(start))
		deadline = start.Add(limit)
		_ = http.NewResponseController(w).SetReadDeadline(deadline) // not every writer has one; the server's own is then the limit
	}
	b, err := readCharged(chargeOf(ctx), http.MaxBytesReader(w, r.Body, proto.MessageBytesMax))
	var spent *proto.Error
	var tooLarge *http.MaxBytesError
	var late net.Error
	switch {
	case errors.As(err, &spent):
		w.Header().Set("Connection", "close") // the rest of the body is not waited for
		return nil, err
	case errors.As(err, &tooLarge):
		return nil, proto.ErrMessageTooLarge.Errorf("body of more than %d bytes: that is the limit", proto.MessageBytesMax).
			WithHint("send it in smaller batches")
	case errors.As(err, &late) && late.Timeout():
		return nil, proto.ErrDeadline.Errorf("the body had not arrived after %d bytes and %v", len(b), limit.Round(time.Millisecond))
	case err != nil:
		return nil, proto.ErrBadRequest.Errorf("the body broke off: %v", err)
	}
	return b, nil
}

// bodyBytesFirst is how many bytes are allocated for a body before any of it has arrived.
const bodyBytesFirst = 4 << 10

// readCharged reads all of a body. It charges for memory before it allocates it.
func readCharged(c *charge, body io.Reader) (b []byte, err error) {
	arriving := int64(0) // bytes that count as arriving, which are part of the charge
	defer func() { c.arrived(arriving) }()
	for {
		if len(b) == cap(b) {
			size := max(bodyBytesFirst, 2*cap(b))
			if err := c.arrives(int64(size)); err != nil {
				return b, err
			}
			arriving += int64(size)
			grown := make([]byte, len(b), size)
			copy(grown, b)
			c.arrived(int64(cap(b)))
			c.drop(int64(cap(b)))
			arriving -= int64(cap(b))
			b = grown
		}
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

// parseQuery reads a query string or a form of at most a batch of arguments,
// which is also where net/url stops.
func parseQuery(raw string) (url.Values, error) {
	if n := strings.Count(raw, "&") + 1; n > proto.BatchOpsMax {
		return nil, proto.ErrBatchTooLarge.Errorf("batch of %d arguments: the limit is %d", n, proto.BatchOpsMax)
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, proto.ErrBadRequest.Errorf("malformed query string: %v", err)
	}
	return q, nil
}

// writeMessage writes nothing when m has no JSON, so that an error can still be written.
func writeMessage(ctx context.Context, w http.ResponseWriter, m protobuf.Message) error {
	if resp, ok := m.(*ebbv1.IncrementResponse); ok && nothingApplied(resp) {
		return &refusedBatch{resp}
	}
	b, err := chargedJSON(ctx, nil, m)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, b)
	return nil
}

// nothingApplied reports whether all increments of a batch were refused, which is an error for HTTP callers.
func nothingApplied(resp *ebbv1.IncrementResponse) bool {
	return resp.GetApplied() == 0 && resp.GetDuplicates() == 0 && len(resp.GetRefused()) > 0
}

// refusedBatch is such a batch as an error: the error of its first increment.
type refusedBatch struct{ resp *ebbv1.IncrementResponse }

func (r *refusedBatch) Error() string { return r.Unwrap().Error() }

func (r *refusedBatch) Unwrap() error { return proto.FromWire(r.resp.GetRefused()[0].GetError()) }

// appendMembers adds all refusals to an object that has the error already.
func (r *refusedBatch) appendMembers(b []byte) []byte {
	body, err := appendJSON(nil, r.resp)
	if err != nil {
		return b // the first error is there
	}
	return append(append(b, ','), body[1:len(body)-1]...)
}

// writeError answers with {"error":{...}}.
func writeError(w http.ResponseWriter, err error) {
	writeErrorStatus(w, httpStatus(asError(err).Code), err)
}

func writeErrorStatus(w http.ResponseWriter, status int, err error) {
	e := asError(err)
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	b := append([]byte(`{"error":`), appendErrorJSON(nil, e.Wire())...)
	var batch *refusedBatch
	if errors.As(err, &batch) {
		b = batch.appendMembers(b)
	}
	setRetryAfter(w, e)
	writeJSON(w, status, append(b, '}'))
}

func setRetryAfter(w http.ResponseWriter, e *proto.Error) {
	if e.RetryAfterUS > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(float64(e.RetryAfterUS)/1e6))))
	}
}

func writeJSON(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the caller went away
}

// httpStatus is the status that fits a code best.
func httpStatus(c ebbv1.Code) int {
	switch c {
	case ebbv1.Code_CODE_NAMESPACE_NOT_FOUND, ebbv1.Code_CODE_KEY_NOT_FOUND, ebbv1.Code_CODE_MISSING_KEYS:
		return http.StatusNotFound
	case ebbv1.Code_CODE_KEY_TOO_LARGE:
		return http.StatusUnprocessableEntity
	case ebbv1.Code_CODE_UNAUTHENTICATED:
		return http.StatusUnauthorized
	case ebbv1.Code_CODE_PERMISSION_DENIED:
		return http.StatusForbidden
	case ebbv1.Code_CODE_NAMESPACE_EXISTS, ebbv1.Code_CODE_KEY_EXISTS, ebbv1.Code_CODE_WRONG_KIND, ebbv1.Code_CODE_TOO_MANY_BINS, ebbv1.Code_CODE_UNMERGEABLE:
		return http.StatusConflict
	case ebbv1.Code_CODE_BATCH_TOO_LARGE, ebbv1.Code_CODE_MESSAGE_TOO_LARGE:
		return http.StatusRequestEntityTooLarge
	case ebbv1.Code_CODE_RESPONSE_TOO_LARGE:
		return http.StatusUnprocessableEntity
	case ebbv1.Code_CODE_OVERLOADED, ebbv1.Code_CODE_OUT_OF_MEMORY, ebbv1.Code_CODE_BUDGET_EXCEEDED, ebbv1.Code_CODE_TOO_MANY_SESSIONS,
		ebbv1.Code_CODE_TOO_MANY_SOURCES, ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS:
		return http.StatusTooManyRequests
	case ebbv1.Code_CODE_DEADLINE, ebbv1.Code_CODE_UNKNOWN_OUTCOME:
		return http.StatusGatewayTimeout
	case ebbv1.Code_CODE_RESOURCE_EXHAUSTED, ebbv1.Code_CODE_DISK_FULL:
		return http.StatusInsufficientStorage
	case codeCanceled:
		return 499 // no caller reads it
	}
	switch c / 1000 {
	case 1:
		return http.StatusServiceUnavailable
	case 2:
		return http.StatusBadRequest
	case 3:
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}
