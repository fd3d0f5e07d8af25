package rpc

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// forgettable is the HTTP interface of bitly's forgettable (the Go one):
//
//	/incr?distribution=D&field=F[&field=F...][&N=1]    OK
//	/get?distribution=D&field=F[&field=F...][&rate=R]  the envelope
//	/dist?distribution=D[&rate=R]
//	/nmostprobable?distribution=D[&N=10][&rate=R]
//	/dbsize
//	/exit                                              403
//
// under /, /forget and /ns/NAME (see doorOperation), by any method, with arguments in the query or
// in a form. Reads also take as_of, which goforget did not have (microseconds
// since 1970, or RFC 3339). Z and counts are rounded to integers, p is not. Errors have HTTP
// status 500 and one of the codes that its clients know; what exactly was wrong
// is in the header Ebb-Error.
type forgettable struct {
	ebb *ebbServer
}

// The codes of forgettable.
const (
	codeInvalidURI     = "INVALID_URI"
	codeNoDistribution = "MISSING_ARG_DISTRIBUTION"
	codeNoField        = "MISSING_ARG_FIELD"
	codeBadIncrN       = "COULDNT_PARSE_N"
	codeBadRate        = "CANNOT_PARSE_RATE"
	codeBadN           = "INVALID_ARG_N"
	codeNotRetrieved   = "COULD_NOT_RETRIEVE_DISTRIBUTION"
	codeFieldNotFound  = "COULD_NOT_RETRIEVE_FIELD"
	codeSizeNotRead    = "COULD_NOT_READ_SIZE"
	codeForbidden      = "FORBIDDEN"
)

const (
	forgettableTop = 10  // N of /nmostprobable when it is absent
	rateMax        = 1e6 // as proto.CheckQuestion has it
)

// run executes an operation with its arguments.
func (f *forgettable) run(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	if op.name == "dbsize" {
		return f.dbsize(ctx, op)
	}
	if args.Get("distribution") == "" {
		return doorReply{}, refuse(codeNoDistribution, proto.ErrBadKey.Errorf("argument distribution is missing"))
	}
	switch op.name {
	case "incr":
		return f.incr(ctx, op, args)
	case "get":
		return f.field(ctx, op, args)
	case "dist":
		q := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_All{All: true}}
		return f.distribution(ctx, op, args, q, codeNotRetrieved)
	}
	return f.nMostProbable(ctx, op, args)
}

func (f *forgettable) incr(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	fields := args["field"]
	if len(fields) == 0 {
		return doorReply{}, refuse(codeNoField, proto.ErrBadBin.Errorf("argument field is missing"))
	}
	n, refused := parseN(args, 1, codeBadIncrN)
	if refused != nil {
		return doorReply{}, refused
	}
	if err := checkText("distribution", args.Get("distribution")); err != nil {
		return doorReply{}, refuse("", err)
	}
	amount := float64(n)
	req := &ebbv1.IncrementRequest{Namespace: op.namespace}
	for _, field := range fields {
		if err := checkText("field", field); err != nil {
			return doorReply{}, refuse("", err) // it could never be read here again
		}
		req.Increments = append(req.Increments, &ebbv1.Increment{
			Key: []byte(args.Get("distribution")), Bin: []byte(field), Amount: &amount,
		})
	}
	resp, err := guardedCall(ctx, f.ebb.Services, ebbv1grpc.Ebb_Increment_FullMethodName, req, f.ebb.Increment)
	if err == nil {
		err = firstRefusal(resp, len(fields))
	}
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{text: "OK"}, nil
}

// firstRefusal is an error with how much of a batch was not counted, and why.
func firstRefusal(resp *ebbv1.IncrementResponse, total int) error {
	if len(resp.GetRefused()) == 0 {
		return nil
	}
	e := proto.FromWire(resp.GetRefused()[0].GetError())
	if total == 1 {
		return e
	}
	return e.Errorf("%d of %d fields were not counted; field %d: %s", len(resp.GetRefused()), total, resp.GetRefused()[0].GetIndex(), e.Message)
}

func (f *forgettable) field(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	if args.Get("field") == "" {
		return doorReply{}, refuse(codeNoField, proto.ErrBadBin.Errorf("argument field is missing"))
	}
	list := &ebbv1.BinList{}
	for _, field := range args["field"] {
		list.Bins = append(list.Bins, []byte(field))
	}
	q := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Bins{Bins: list}}
	return f.distribution(ctx, op, args, q, codeFieldNotFound)
}

func (f *forgettable) nMostProbable(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	n, refused := parseN(args, forgettableTop, codeBadN)
	if refused != nil {
		return doorReply{}, refused
	}
	if err := proto.CheckTop(n); err != nil {
		return doorReply{}, refuse(codeBadN, err)
	}
	q := &ebbv1.DistributionQuestion{Select: &ebbv1.DistributionQuestion_Top{Top: uint32(n)}}
	return f.distribution(ctx, op, args, q, codeNotRetrieved)
}

// distribution asks q. If that fails, it returns an error with code.
func (f *forgettable) distribution(
	ctx context.Context, op doorOp, args url.Values, q *ebbv1.DistributionQuestion, code string,
) (doorReply, *doorError) {
	if raw := args.Get("rate"); raw != "" {
		rate, err := proto.ParseNumber(raw)
		if err != nil || !(rate >= 0 && rate <= rateMax) {
			return doorReply{}, refuse(codeBadRate, proto.ErrBadRequest.Errorf(
				"rate %s: it must be a number per second from 0 to %g", quote(raw), float64(rateMax)))
		}
		q.Rate = &rate
	}
	if raw := args.Get("as_of"); raw != "" {
		v, err := parseNumeral(q.ProtoReflect().Descriptor().Fields().ByName("as_of_us"), raw)
		if err != nil {
			return doorReply{}, refuse(code, err)
		}
		q.AsOfUs = v.Int()
	}
	q.Keys = [][]byte{[]byte(args.Get("distribution"))}
	a, err := f.ask(ctx, &ebbv1.Question{Namespace: op.namespace, Ask: &ebbv1.Question_Distribution{Distribution: q}})
	if err != nil {
		return doorReply{}, refuse(code, err)
	}
	if err := budget.From(ctx).Charge(ctx, forgetBytes(a.GetDistribution())); err != nil {
		return doorReply{}, refuse(code, err)
	}
	data, err := f.appendDistribution(nil, op, q, a.GetDistribution())
	if err != nil {
		return doorReply{}, refuse(code, err)
	}
	return doorReply{data: data}, nil
}

func (f *forgettable) dbsize(ctx context.Context, op doorOp) (doorReply, *doorError) {
	a, err := f.ask(ctx, &ebbv1.Question{Namespace: op.namespace, Ask: &ebbv1.Question_CountKeys{CountKeys: &ebbv1.CountKeysQuestion{}}})
	if err != nil {
		return doorReply{}, refuse(codeSizeNotRead, err)
	}
	return doorReply{data: strconv.AppendUint(nil, a.GetCountKeys().GetKeys(), 10)}, nil
}

func (f *forgettable) ask(ctx context.Context, q *ebbv1.Question) (*ebbv1.Answer, error) {
	return f.ebb.askOne(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{q}})
}

// appendDistribution writes forgettable's Distribution, in the order of its fields.
func (f *forgettable) appendDistribution(
	b []byte, op doorOp, q *ebbv1.DistributionQuestion, d *ebbv1.Distribution,
) ([]byte, error) {
	name := string(q.GetKeys()[0])
	if err := checkText("distribution", name); err != nil {
		return nil, err
	}
	rate, prune := f.settings(op, q, d)
	b = appendString(append(b, `{"distribution":`...), name)
	b = appendRounded(append(b, `,"Z":`...), d.GetZ())
	b = appendSeconds(append(b, `,"T":`...), d.GetAsOfUs())
	b = append(b, `,"data":[`...)
	for i, bin := range d.GetBins() {
		if !d.GetFound() {
			break // bins asked for by name answer zero even then
		}
		if err := checkText("field", string(bin.GetBin())); err != nil {
			return nil, err
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"bin":`...), string(bin.GetBin()))
		b = appendRounded(append(b, `,"count":`...), bin.GetCount())
		b = appendDouble(append(b, `,"p":`...), bin.GetP())
		b = append(b, '}')
	}
	b = appendDouble(append(b, `],"rate":`...), rate)
	b = strconv.AppendBool(append(b, `,"prune":`...), prune)
	b = appendSeconds(append(b, `,"last_sync_time":`...), d.GetLastEventUs())
	return append(b, '}'), nil
}

// settings returns the rate (asked for, or ln 2 / half-life a second), and whether the floor prunes. A distribution
// that does not exist has the settings of its namespace.
func (f *forgettable) settings(
	op doorOp, q *ebbv1.DistributionQuestion, d *ebbv1.Distribution,
) (rate float64, prune bool) {
	decay, halfLifeUS, floor := d.GetDecay(), d.GetHalfLifeUs(), d.GetFloor()
	if decay == ebbv1.Decay_DECAY_UNSPECIFIED {
		ns := f.namespace(op.namespace)
		decay, halfLifeUS, floor = ns.GetDecay(), ns.GetHalfLifeUs(), ns.GetFloor()
	}
	prune = floor == ebbv1.Floor_FLOOR_PRUNE
	switch {
	case q.Rate != nil:
		return q.GetRate(), prune
	case decay == ebbv1.Decay_DECAY_NONE || halfLifeUS <= 0:
		return 0, prune
	}
	return math.Ln2 / (float64(halfLifeUS) / 1e6), prune
}

func (f *forgettable) namespace(name string) *ebbv1.Namespace {
	if name == "" {
		name = proto.DefaultNamespace
	}
	for _, ns := range f.ebb.Cluster.Table().GetNamespaces() {
		if ns.GetName() == name && ns.GetDeletion() == nil {
			return ns
		}
	}
	return proto.DefaultNamespaceSettings()
}

// parseN reads argument N, fallback when it is absent.
func parseN(args url.Values, fallback int64, code string) (int64, *doorError) {
	raw := args.Get("N")
	if raw == "" {
		return fallback, nil
	}
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		return 0, refuse(code, proto.ErrBadCount.Errorf("N = %s is not a whole number", quote(raw)))
	}
	return n, nil
}

// forgetBytes is the most memory that writing a distribution takes. An escaped character of a name takes six bytes, and
// the slice is copied as it grows.
func forgetBytes(d *ebbv1.Distribution) int {
	const bin = 80 // without its name
	n := 1 << 10
	for _, b := range d.GetBins() {
		n += bin + len(b.GetBin())
		for _, c := range b.GetBin() {
			if c < ' ' || c == '"' || c == '\\' || c == 0x7f || c == 0xe2 { // the last begins a line separator
				n += 5
			}
		}
	}
	return jsonGrowth * n
}

// appendRounded writes the nearest integer.
func appendRounded(b []byte, v float64) []byte {
	return strconv.AppendFloat(b, math.Round(v)+0, 'f', -1, 64) // +0: no -0
}

func appendSeconds(b []byte, us int64) []byte {
	return strconv.AppendInt(b, us/1e6, 10)
}

func (*forgettable) write(w http.ResponseWriter, reply doorReply) {
	if reply.text != "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, reply.text) // the caller went away
		return
	}
	writeEnvelope(w, http.StatusOK, "", reply.data)
}

// writeError answers as forgettable did: FAIL to a failed increment, otherwise the envelope. The error of ebb is in a
// header, which its clients do not read.
func (*forgettable) writeError(w http.ResponseWriter, op doorOp, e *doorError) {
	status := e.status(w)
	if op.name == "incr" && (e.code == "" || e.code == codeNotRetrieved) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "FAIL: "+e.err.Error())
		return
	}
	writeEnvelope(w, status, e.code, []byte("null"))
}
