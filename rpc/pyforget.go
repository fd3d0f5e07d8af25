package rpc

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/ebbdb/ebb/internal/budget"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// pyforget is the HTTP interface of bitly's forgettable (the Python one):
//
//	/ping             OK
//	/incr?key=K&bin=B nothing
//	/get?key=K&bin=B  {"status_code":200,"data":[{"bin":B,"probability":p}]}; /bin is the same
//	/dist?key=K
//
// under /, /py and /ns/NAME (see doorOperation). If an argument is given twice, the last one counts. For a missing key
// or bin the HTTP status is 200, and the status in the answer 404. The other errors have the HTTP status that fits, and
// the same shape.
type pyforget struct {
	ebb *ebbServer
}

// Texts of pyforget for a missing bin or distribution.
const (
	pyNoBin          = "Could not find bin in distribution"
	pyNoDistribution = "Could not find distribution in Forget Table"
)

// pyNotFound answers 404 within HTTP 200.
func pyNotFound(text string) (doorReply, *doorError) {
	return doorReply{data: appendPyError(nil, http.StatusNotFound, text)}, nil
}

func appendPyError(b []byte, status int, text string) []byte {
	b = strconv.AppendInt(append(b, `{"status_code":`...), int64(status), 10)
	b = appendString(append(b, `,"data":[],"error_message":`...), text)
	return append(b, '}')
}

func (p *pyforget) run(ctx context.Context, op doorOp, args url.Values) (doorReply, *doorError) {
	if op.name == "ping" {
		return doorReply{text: "OK"}, nil
	}
	key, refused := pyArg(args, "key", proto.ErrBadKey)
	if refused != nil {
		return doorReply{}, refused
	}
	if op.name == "dist" {
		return p.ask(ctx, op, key, nil)
	}
	bin, refused := pyArg(args, "bin", proto.ErrBadBin)
	if refused != nil {
		return doorReply{}, refused
	}
	if op.name != "incr" {
		return p.ask(ctx, op, key, &ebbv1.BinList{Bins: [][]byte{[]byte(bin)}})
	}
	req := &ebbv1.IncrementRequest{
		Namespace:  op.namespace,
		Increments: []*ebbv1.Increment{{Key: []byte(key), Bin: []byte(bin)}},
	}
	resp, err := guardedCall(ctx, p.ebb.Services, ebbv1grpc.Ebb_Increment_FullMethodName, req, p.ebb.Increment)
	if err == nil {
		err = firstRefusal(resp, 1)
	}
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	return doorReply{}, nil
}

// pyArg returns an argument that must be given.
func pyArg(args url.Values, name string, missing *proto.Error) (string, *doorError) {
	values := args[name]
	if len(values) == 0 || values[len(values)-1] == "" {
		return "", refuse("", missing.Errorf("Missing argument %s", name))
	}
	text := values[len(values)-1]
	if err := checkText(name, text); err != nil {
		return "", refuse("", err)
	}
	return text, nil
}

// ask answers with these bins of a distribution, or with all.
func (p *pyforget) ask(ctx context.Context, op doorOp, key string, bins *ebbv1.BinList) (doorReply, *doorError) {
	q := &ebbv1.DistributionQuestion{
		Keys: [][]byte{[]byte(key)}, Select: &ebbv1.DistributionQuestion_All{All: true},
	}
	if bins != nil {
		q.Select = &ebbv1.DistributionQuestion_Bins{Bins: bins}
	}
	a, err := p.ebb.askOne(ctx, &ebbv1.AskRequest{Questions: []*ebbv1.Question{{
		Namespace: op.namespace, Ask: &ebbv1.Question_Distribution{Distribution: q},
	}}})
	if err != nil {
		return doorReply{}, refuse("", err)
	}
	d := a.GetDistribution()
	switch {
	case !d.GetFound():
		return pyNotFound(pyNoDistribution)
	case bins != nil && d.GetBins()[0].GetCount() == 0:
		return pyNotFound(pyNoBin)
	}
	if err := budget.From(ctx).Charge(ctx, forgetBytes(d)); err != nil {
		return doorReply{}, refuse("", err)
	}
	b := []byte(`{"status_code":200,"data":[`)
	for i, bin := range d.GetBins() {
		if err := checkText("bin", string(bin.GetBin())); err != nil {
			return doorReply{}, refuse("", err)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"bin":`...), string(bin.GetBin()))
		b = append(appendDouble(append(b, `,"probability":`...), bin.GetP()), '}')
	}
	return doorReply{data: append(b, `]}`...)}, nil
}

func (*pyforget) write(w http.ResponseWriter, reply doorReply) {
	if reply.data == nil {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, reply.text) // the caller went away
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(reply.data)
}

func (*pyforget) writeError(w http.ResponseWriter, _ doorOp, e *doorError) {
	status := e.status(w)
	if status == http.StatusInternalServerError {
		status = httpStatus(e.err.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(appendPyError(nil, status, e.withHint(e.err.Message)))
}
