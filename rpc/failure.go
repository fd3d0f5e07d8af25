package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

// asError returns the coded error in any error that a service returned.
func asError(err error) *proto.Error {
	var e *proto.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return proto.ErrDeadline.Errorf("the deadline passed before the answer came")
	case errors.Is(err, context.Canceled):
		return errCanceled
	}
	if _, ok := status.FromError(err); ok {
		return proto.AsError(ebbv1grpc.FromStatus(err))
	}
	return proto.AsError(err)
}
