package rpc

import (
	"context"
	"net/http"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// eventWriteMax is how long a reader may take to accept one event.
const eventWriteMax = 10 * time.Second

var watchParams = append([]param{
	{name: "interval", kind: "string", summary: "between two events at least: microseconds, or a duration, 100ms to 1h; 1s by default"},
	{name: "every", kind: "boolean", summary: "send every answer, also those that say what the last one said"},
	{name: "tolerance", kind: "number", summary: "numbers that differ by no more than this part are the same; 0.01 by default"},
}, distributionParams...)

// eventStream is an answer of server-sent events:
//
//	event: answer | raised | cleared
//	data: {"answer":{...},...}
//
// and at the end, unless the reader has disconnected, event: end with {"error":{...}}. A line ":" means that the node
// is still there.
type eventStream struct {
	w     http.ResponseWriter
	begun bool
}

func (s *eventStream) send(ctx context.Context, e *ebbv1.WatchEvent) error {
	if e == nil {
		return s.write([]byte(":\n\n"))
	}
	name := "answer"
	switch {
	case e.GetCrossed() && e.GetRaised():
		name = "raised"
	case e.GetCrossed():
		name = "cleared"
	}
	b, err := chargedJSON(ctx, []byte("event: "+name+"\ndata: "), e)
	if err != nil {
		return err
	}
	return s.write(append(b, "\n\n"...))
}

// end sends why there will be no more events.
func (s *eventStream) end(err error) {
	b := append([]byte("event: end\ndata: {\"error\":"), appendErrorJSON(nil, asError(err).Wire())...)
	_ = s.write(append(b, "}\n\n"...)) // the caller went away
}

func (s *eventStream) write(b []byte) error {
	rc := http.NewResponseController(s.w)
	if !s.begun {
		s.begun = true
		_ = rc.SetReadDeadline(time.Time{}) // the request is here, and its answer takes as long as it takes
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		s.w.WriteHeader(http.StatusOK)
	}
	_ = rc.SetWriteDeadline(time.Now().Add(eventWriteMax)) // not every writer has one
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return rc.Flush()
}

// serveStream is serveRoute for answers that continue.
func (h *httpServer) serveStream(w http.ResponseWriter, r *http.Request, rt *route, values pathValues) {
	name := rt.method + " " + rt.pattern
	stream := &eventStream{w: w}
	var err error
	defer func() {
		if p := recover(); p != nil {
			err = panicked(h.Services, name, p)
		}
		switch {
		case !stream.begun:
			writeError(w, err)
		case r.Context().Err() == nil:
			stream.end(err)
		}
	}()
	ctx, held := h.Budget.charged(r.Context())
	defer held.end()
	r = r.WithContext(ctx)
	var req *ebbv1.WatchRequest
	if req, err = h.watchRequest(w, r, rt, values); err == nil {
		err = h.Access.admit(r.Context(), ebbv1grpc.Ebb_Watch_FullMethodName, req)
	}
	if err == nil {
		err = h.ebb.watch(r.Context(), req, stream.send)
	}
}

func (h *httpServer) watchRequest(w http.ResponseWriter, r *http.Request, rt *route, values pathValues) (*ebbv1.WatchRequest, error) {
	ctx, cancel := context.WithTimeout(r.Context(), DefaultTimeout)
	defer cancel()
	c, err := h.taken(ctx, w, r, rt, values)
	if err != nil {
		return nil, err
	}
	return rt.watch(c)
}

// postedWatch reads a request from the body.
func postedWatch(c *call) (*ebbv1.WatchRequest, error) {
	req := &ebbv1.WatchRequest{}
	if err := parseJSON(c.charge, c.body, req); err != nil {
		return nil, err
	}
	return req, nil
}

// watchedDistribution makes a request of path and query.
func watchedDistribution(c *call) (*ebbv1.WatchRequest, error) {
	d, err := c.distributionQuestion()
	if err != nil {
		return nil, err
	}
	var asking ebbv1.AskRequest
	if err := c.askOptions(&asking); err != nil {
		return nil, err
	}
	req := &ebbv1.WatchRequest{
		Question:    &ebbv1.Question{Namespace: c.path["ns"], Ask: &ebbv1.Question_Distribution{Distribution: d}},
		Consistency: asking.Consistency, MaxStalenessUs: asking.MaxStalenessUs,
		AllowPartial: asking.AllowPartial, Strict: asking.Strict,
	}
	for _, p := range []struct{ param, field string }{{"interval", "min_interval_us"}, {"tolerance", "tolerance"}} {
		if err := c.set(req.ProtoReflect(), p.param, p.field); err != nil {
			return nil, err
		}
	}
	if req.Every, err = c.flag("every"); err != nil {
		return nil, err
	}
	return req, nil
}
