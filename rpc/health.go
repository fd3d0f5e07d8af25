package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// healthPoll is how often a health watcher's answer is looked at again.
const healthPoll = time.Second

// healthServer is grpc.health.v1 over a readiness func: nothing is stored, so
// nothing can be out of date.
type healthServer struct {
	healthpb.UnimplementedHealthServer
	ready func() error
}

func (h *healthServer) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st := h.status(req.GetService())
	if st == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Errorf(codes.NotFound, "unknown service %q", req.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

func (h *healthServer) Watch(req *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
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
