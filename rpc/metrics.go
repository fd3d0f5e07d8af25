package rpc

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// metrics counts and times the requests of one interface. The zero value counts nothing.
//
// The hot path makes one lock-free read of a method's meter and one of its counter of successes. Everything else is
// looked up when it is first needed.
type metrics struct {
	door    string
	seconds *prometheus.HistogramVec
	total   *prometheus.CounterVec
	meters  sync.Map // method -> *meter
}

// meter holds what every request of a method touches.
type meter struct {
	seconds prometheus.Observer
	ok      prometheus.Counter
}

// latencyBuckets reach from an in-memory read to the default deadline and past it.
var latencyBuckets = []float64{
	50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1, 2, 5,
}

// newMetrics registers the metrics, or finds them when another interface has registered them.
func newMetrics(door string, r prometheus.Registerer) *metrics {
	m := &metrics{door: door}
	if r == nil {
		return m
	}
	m.seconds = registered(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "ebb_rpc_seconds",
		Help:    "How long requests took, by door and method.",
		Buckets: latencyBuckets,
	}, []string{"door", "method"}))
	m.total = registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ebb_rpc_requests_total",
		Help: "Requests by door, method and code (ok, canceled or the error's code).",
	}, []string{"door", "method", "code"}))
	return m
}

// registered returns c, or the equal collector that was registered before it.
func registered[C prometheus.Collector](r prometheus.Registerer, c C) C {
	err := r.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if old, ok := already.ExistingCollector.(C); ok {
			return old
		}
	}
	return c
}

// observe records one request that began at start.
func (m *metrics) observe(method string, start time.Time, err error) {
	if m.seconds == nil {
		return
	}
	mt := m.meter(method)
	mt.seconds.Observe(time.Since(start).Seconds())
	if err == nil {
		mt.ok.Inc()
		return
	}
	m.total.WithLabelValues(m.door, method, codeLabel(err)).Inc()
}

// refused counts a request that was refused before it began.
func (m *metrics) refused(method string, err error) {
	if m.total != nil {
		m.total.WithLabelValues(m.door, method, codeLabel(err)).Inc()
	}
}

func (m *metrics) meter(method string) *meter {
	if mt, ok := m.meters.Load(method); ok {
		return mt.(*meter)
	}
	mt, _ := m.meters.LoadOrStore(method, &meter{
		seconds: m.seconds.WithLabelValues(m.door, method),
		ok:      m.total.WithLabelValues(m.door, method, "ok"),
	})
	return mt.(*meter)
}

func codeLabel(err error) string {
	e := asError(err)
	if e.Code == codeCanceled {
		return "canceled"
	}
	return codeText(e.Code)
}

// codeText is how people see a code: EBB-2002.
func codeText(c ebbv1.Code) string {
	return fmt.Sprintf("EBB-%d", int32(c))
}

// codeCanceled stands for a caller that went away. The caller does not read the error, so the error has no code
// on the wire.
const codeCanceled = ebbv1.Code_CODE_UNSPECIFIED

var errCanceled = &proto.Error{Code: codeCanceled, Message: "the caller went away"}
