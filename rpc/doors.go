package rpc

import (
	"context"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// origin is one of the programs whose HTTP interface is served here.
type origin uint8

const (
	anyOrigin    origin = iota // several have the path; the arguments decide which
	ofGoforget                 // forgettable, the Go one
	ofPyforget                 // forgettable, the Python one
	ofGocountme                // gocountme
	originsCount = iota
)

// originPaths are the origins' own prefixes, and the operations under them.
var originPaths = [originsCount]struct {
	prefix     string
	operations []string
}{
	ofGoforget: {"forget", []string{"incr", "get", "dist", "nmostprobable", "dbsize", "exit"}},
	ofPyforget: {"py", []string{"ping", "incr", "get", "bin", "dist"}},
	ofGocountme: {"kmv", []string{
		"add", "addhash", "addmulti", "get", "delete", "cardinality", "jaccard", "correlation", "query", "exit",
	}},
}

// doorOp is the operation of an origin's interface that a path names.
type doorOp struct {
	door      origin // anyOrigin until the arguments are here
	name      string
	namespace string // "" for the default
}

// doorOperation parses the paths of the origins: /incr, /ns/NAME/incr, /forget/incr, /ns/NAME/forget/incr.
func doorOperation(path string) (doorOp, bool) {
	var op doorOp
	path = op.cutDoor(strings.TrimPrefix(path, "/"))
	if rest, ok := strings.CutPrefix(path, "ns/"); ok {
		name, rest, _ := strings.Cut(rest, "/")
		ns, err := url.PathUnescape(name)
		if err != nil || ns == "" {
			return doorOp{}, false
		}
		op.namespace = ns
		path = rest
		if op.door == anyOrigin {
			path = op.cutDoor(rest)
		}
	}
	op.name = path
	return op, op.known()
}

// cutDoor removes the prefix of an origin from a path.
func (op *doorOp) cutDoor(path string) string {
	for door, has := range originPaths {
		if rest, ok := strings.CutPrefix(path, has.prefix+"/"); ok && has.prefix != "" {
			op.door = origin(door)
			return rest
		}
	}
	return path
}

// known reports whether an origin has the operation. If only one origin has it, known sets op.door to that origin.
func (op *doorOp) known() bool {
	if op.door != anyOrigin {
		return slices.Contains(originPaths[op.door].operations, op.name)
	}
	var of []origin
	for door, has := range originPaths {
		if slices.Contains(has.operations, op.name) {
			of = append(of, origin(door))
		}
	}
	if len(of) == 1 {
		op.door = of[0]
	}
	return len(of) > 0
}

// choose sets the origin by the arguments: distribution is of goforget, key is of the others, and /get with key and bin
// is of pyforget. Without any of these it is goforget.
func (op *doorOp) choose(args url.Values) {
	switch {
	case op.door != anyOrigin:
	case args.Has("distribution") || !args.Has("key"):
		op.door = ofGoforget
	case op.name == "get" && !args.Has("bin"):
		op.door = ofGocountme
	default:
		op.door = ofPyforget
	}
}

// method is the gRPC method whose rules hold for the operation.
func (op *doorOp) method() string {
	switch op.name {
	case "incr", "add", "addmulti":
		return ebbv1grpc.Ebb_Increment_FullMethodName
	case "addhash":
		return ebbv1grpc.Shards_Apply_FullMethodName
	case "delete":
		return ebbv1grpc.Ebb_Delete_FullMethodName
	}
	return ebbv1grpc.Ebb_Ask_FullMethodName
}

// effect is what the operation may do, by any HTTP method.
func (op *doorOp) effect() effect {
	if op.method() != ebbv1grpc.Ebb_Ask_FullMethodName {
		return counts
	}
	return reads
}

// doorError is a refusal: the code of the origin, and the error of ebb.
type doorError struct {
	code   string
	err    *proto.Error
	inData bool // for gocountme: the code is in the place of the answer
}

func refuse(code string, err error) *doorError {
	return &doorError{code: code, err: asError(err)}
}

// doorReply is a successful answer: text as it is, otherwise data in the envelope of the origin.
type doorReply struct {
	text string
	data []byte
}

// originDoor is the HTTP interface of one origin. It answers as the origin did.
type originDoor interface {
	// run executes an operation with its arguments.
	run(context.Context, doorOp, url.Values) (doorReply, *doorError)
	write(http.ResponseWriter, doorReply)
	writeError(http.ResponseWriter, doorOp, *doorError)
}

// origins are the HTTP interfaces of other programs.
type origins struct {
	ebb     *ebbServer
	doors   [originsCount]originDoor
	metrics [originsCount]*metrics
}

func newOrigins(s *ebbServer) *origins {
	o := &origins{ebb: s}
	forget := &forgettable{ebb: s}
	o.doors = [...]originDoor{
		anyOrigin: forget, ofGoforget: forget, ofPyforget: &pyforget{ebb: s}, ofGocountme: &gocountme{ebb: s},
	}
	for door, name := range [...]string{
		anyOrigin: "forgettable", ofGoforget: "forgettable", ofPyforget: "pyforget", ofGocountme: "gocountme",
	} {
		o.metrics[door] = newMetrics(name, s.Registerer)
	}
	return o
}

func (o *origins) serve(w http.ResponseWriter, r *http.Request, op doorOp) {
	start := time.Now()
	if op.name == "exit" { // of anybody, and nothing is read of it
		err := proto.ErrBadRequest.Errorf("a node is not stopped over HTTP")
		o.doors[op.door].writeError(w, op, refuse(codeForbidden, err))
		o.metrics[op.door].observe("/"+op.name, start, err)
		return
	}
	ctx, err := o.ebb.Access.identifyHTTP(r, "/"+op.name)
	if err != nil {
		o.doors[op.door].writeError(w, op, refuse("", err))
		o.metrics[op.door].observe("/"+op.name, start, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	ctx, held := o.ebb.Budget.charged(ctx)
	defer held.end()
	ctx, answers := o.ebb.begin(ctx, answersMax)
	defer answers.Close()
	defer func() {
		if p := recover(); p != nil {
			err = panicked(o.ebb.Services, op.name, p)
			code := ""
			if op.door == anyOrigin || op.door == ofGoforget {
				code = codeNotRetrieved
			}
			o.doors[op.door].writeError(w, op, refuse(code, err))
		}
		o.metrics[op.door].observe("/"+op.name, start, err)
	}()
	reply, refused := o.run(ctx, w, r, &op)
	if refused != nil {
		err = refused.err
		o.doors[op.door].writeError(w, op, refused)
		return
	}
	o.doors[op.door].write(w, reply)
}

func (o *origins) run(
	ctx context.Context, w http.ResponseWriter, r *http.Request, op *doorOp,
) (doorReply, *doorError) {
	if err := o.ebb.Access.begin(ctx, op.method(), orName(op.namespace, proto.DefaultNamespace)); err != nil {
		return doorReply{}, refuse("", err)
	}
	args, err := formArgs(ctx, w, r)
	if err != nil {
		return doorReply{}, refuse(codeInvalidURI, err)
	}
	op.choose(args)
	return o.doors[op.door].run(ctx, *op, args)
}

// formArgs reads the query, and the body when it is a form.
func formArgs(ctx context.Context, w http.ResponseWriter, r *http.Request) (url.Values, error) {
	args, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t != "application/x-www-form-urlencoded" {
		return args, nil
	}
	body, err := readBody(ctx, w, r)
	if err != nil {
		return nil, err
	}
	done, err := chargeOf(ctx).slot(len(body))
	if err != nil {
		return nil, err
	}
	defer done()
	form, err := parseQuery(string(body))
	if err != nil {
		return nil, err
	}
	for name, values := range form {
		args[name] = append(args[name], values...)
	}
	return args, nil
}

// headerText returns s without characters that a header must not have.
func headerText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// status is the HTTP status of a refusal: 500, as in all the origins, unless the caller is not allowed to ask. The
// error of ebb is in a header, which clients of the origins do not read.
func (e *doorError) status(w http.ResponseWriter) int {
	w.Header().Set("Ebb-Error", headerText(codeText(e.err.Code)+" "+e.err.Message))
	setRetryAfter(w, e.err)
	switch {
	case e.code == codeForbidden:
		return http.StatusForbidden
	case e.err.Is(proto.ErrUnauthenticated) || e.err.Is(proto.ErrPermissionDenied):
		e.code = codeForbidden
		return httpStatus(e.err.Code)
	}
	return http.StatusInternalServerError
}

// withHint returns a text with the hint, if there is one.
func (e *doorError) withHint(text string) string {
	if e.err.Hint == "" {
		return text
	}
	return text + ": " + e.err.Hint
}

// writeEnvelope writes an answer in the envelope of goforget and gocountme.
func writeEnvelope(w http.ResponseWriter, status int, text string, data []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	b := strconv.AppendInt([]byte(`{"status_code":`), int64(status), 10)
	b = appendString(append(b, `,"status_txt":`...), text)
	b = append(append(b, `,"data":`...), data...)
	_, _ = w.Write(append(b, '}')) // the caller went away
}
