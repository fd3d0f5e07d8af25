package rpc

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// healthPoll is how often the answer of a health watch is checked again.
const healthPoll = time.Second

// healthWatchesMax is how many health watches an interface has at a time, and healthWatchesOfHostMax how many of them
// are of one host. The limits exist because these watches need no token.
const (
	healthWatchesMax       = 2_000
	healthWatchesOfHostMax = 200
)

// healthServer is grpc.health.v1 over a readiness func: nothing is stored, so
// nothing can be out of date.
type healthServer struct {
	healthpb.UnimplementedHealthServer
	ready   func() error
	watches *trust.ConnLimiter // of watches
	open    prometheus.Gauge
	refused prometheus.Counter
}

func newHealth(ready func() error, r prometheus.Registerer) *healthServer {
	h := &healthServer{
		ready: ready, watches: trust.NewConnLimiter(healthWatchesMax, healthWatchesOfHostMax),
		open:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "ebb_health_watches_open", Help: "Watches of the node's health (grpc.health.v1) that are open."}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "ebb_health_watches_refused_total", Help: "Watches of the node's health that were refused, because too many are open, or too many of one host."}),
	}
	if r != nil {
		h.open, h.refused = registered(r, h.open), registered(r, h.refused)
	}
	return h
}

// enter adds a watch to the count; leave removes it.
func (h *healthServer) enter(ctx context.Context) (leave func(), err error) {
	var host string
	if p, ok := peer.FromContext(ctx); ok {
		host = trust.HostOf(p.Addr)
	}
	out, ok := h.watches.Acquire(host)
	if !ok {
		h.refused.Inc()
		return nil, proto.ErrOverloaded.Errorf("there are %d watches of this node's health, or %d of %s, which is the limit", healthWatchesMax, healthWatchesOfHostMax, host).
			WithHint("end some, or use Check")
	}
	h.open.Inc()
	return func() { out(); h.open.Dec() }, nil
}

func (h *healthServer) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st := h.status(req.GetService())
	if st == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", req.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

func (h *healthServer) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	leave, err := h.enter(stream.Context())
	if err != nil {
		return ebbv1grpc.Status(err)
	}
	defer leave()
	tick := time.NewTicker(healthPoll)
	defer tick.Stop()
	last := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		if st := h.status(req.GetService()); st != last {
			last = st
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-tick.C:
		}
	}
}

func (h *healthServer) status(service string) healthpb.HealthCheckResponse_ServingStatus {
	switch service {
	case "", ebbv1grpc.Ebb_ServiceDesc.ServiceName, ebbv1grpc.Shards_ServiceDesc.ServiceName:
	default:
		return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	}
	if h.ready() != nil {
		return healthpb.HealthCheckResponse_NOT_SERVING
	}
	return healthpb.HealthCheckResponse_SERVING
}
