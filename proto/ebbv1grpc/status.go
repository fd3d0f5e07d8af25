// Package ebbv1grpc holds the gRPC stubs, and carries coded errors over gRPC and back.
package ebbv1grpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Status turns an error into a gRPC status that carries the coded error as its detail; nil for nil. Context errors
// become DEADLINE and CANCELED. An error that is a gRPC status already stays as it is.
func Status(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return status.Error(codes.Canceled, err.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = proto.ErrDeadline.Errorf("%v", err)
	}
	var e *proto.Error
	if !errors.As(err, &e) {
		if _, ok := status.FromError(err); ok {
			return err
		}
		e = proto.AsError(err)
	}
	st := status.New(grpcCode(e.Code), e.Error())
	if detailed, derr := st.WithDetails(e.Wire()); derr == nil {
		st = detailed
	}
	return st.Err()
}

// FromStatus turns the error of a gRPC call back into the coded error; nil for nil. A status without detail, such as
// one for a failed connection, becomes the code that fits it best.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if w, ok := d.(*ebbv1.Error); ok {
			return proto.FromWire(w)
		}
	}
	switch st.Code() {
	case codes.Unavailable:
		return proto.ErrUnreachable.Errorf("%s", st.Message())
	case codes.DeadlineExceeded:
		return proto.ErrDeadline.Errorf("%s", st.Message())
	case codes.Canceled:
		return context.Canceled
	case codes.ResourceExhausted:
		return tooLarge(st.Message())
	case codes.InvalidArgument, codes.Unimplemented:
		return proto.ErrBadRequest.Errorf("%s", st.Message())
	}
	return proto.ErrInternal.Errorf("%s: %s", st.Code(), st.Message())
}

// tooLarge turns gRPC's error for a message over its size limit into ebb's error.
func tooLarge(message string) error {
	var size, limit int64
	if _, sizes, ok := strings.Cut(message, "larger than max "); ok {
		if _, err := fmt.Sscanf(sizes, "(%d vs. %d)", &size, &limit); err == nil {
			return proto.ErrMessageTooLarge.Errorf("message of %d bytes: the limit is %d", size, proto.MessageBytesMax)
		}
	}
	return proto.ErrMessageTooLarge.Errorf("%s", message)
}

func grpcCode(c ebbv1.Code) codes.Code {
	switch c {
	case ebbv1.Code_CODE_NAMESPACE_NOT_FOUND:
		return codes.NotFound
	case ebbv1.Code_CODE_NAMESPACE_EXISTS:
		return codes.AlreadyExists
	case ebbv1.Code_CODE_OVERLOADED, ebbv1.Code_CODE_OUT_OF_MEMORY, ebbv1.Code_CODE_BUDGET_EXCEEDED,
		ebbv1.Code_CODE_DISK_FULL,
		ebbv1.Code_CODE_TOO_MANY_SESSIONS, ebbv1.Code_CODE_TOO_MANY_SOURCES,
		ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS, ebbv1.Code_CODE_TOO_MANY_BINS, ebbv1.Code_CODE_RESPONSE_TOO_LARGE:
		return codes.ResourceExhausted
	case ebbv1.Code_CODE_DEADLINE:
		return codes.DeadlineExceeded
	case ebbv1.Code_CODE_NOT_LEADER, ebbv1.Code_CODE_WRONG_CLUSTER, ebbv1.Code_CODE_NEWER_VERSION,
		ebbv1.Code_CODE_SESSION_EXPIRED, ebbv1.Code_CODE_SEQUENCE_TOO_OLD, ebbv1.Code_CODE_SOURCE_FENCED,
		ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD, ebbv1.Code_CODE_WRONG_KIND:
		return codes.FailedPrecondition
	case ebbv1.Code_CODE_UNKNOWN_OUTCOME:
		return codes.Unknown
	case ebbv1.Code_CODE_UNAUTHENTICATED:
		return codes.Unauthenticated
	case ebbv1.Code_CODE_PERMISSION_DENIED:
		return codes.PermissionDenied
	}
	switch c / 1000 {
	case 1:
		return codes.Unavailable
	case 2:
		return codes.InvalidArgument
	}
	return codes.Internal
}
