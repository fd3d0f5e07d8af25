package proto

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Error is a refusal or failure with a stable code. It crosses the wire as ebbv1.Error. errors.Is compares codes only:
// errors.Is(err, ErrNotLeader) is true for every Error with that code, whatever its message.
type Error struct {
	Code    ebbv1.Code
	Message string // one sentence that names the thing and the limit
	Hint    string // the next step, if there is one
	Shard   uint32
	Leader  string // of NOT_LEADER: the leading node, if known

	RetryAfterUS int64 // of OVERLOADED and OUT_OF_MEMORY

	Line, Column uint32 // of BAD_QUERY: where in the text, from 1; the column in characters
}

// UnknownOutcomeHint is the hint of errors after which the caller cannot know whether a write was applied.
const UnknownOutcomeHint = "send it again under the same idempotency key (in a session: the same sequence), " +
	"so that nothing counts twice; without one, look whether it was applied"

// Hints for callers that send sessions or idempotency keys; a command line does not.
const (
	HintSession      = "use a session for many commands"
	HintWithinWindow = "a command may be tried again within the window only"
)

// Sentinels, one for each code.
var (
	ErrUnreachable    = &Error{Code: ebbv1.Code_CODE_UNREACHABLE, Message: "unreachable"}
	ErrNotLeader      = &Error{Code: ebbv1.Code_CODE_NOT_LEADER, Message: "not the leader"}
	ErrNoLeader       = &Error{Code: ebbv1.Code_CODE_NO_LEADER, Message: "no leader"}
	ErrOverloaded     = &Error{Code: ebbv1.Code_CODE_OVERLOADED, Message: "overloaded"}
	ErrClockSkew      = &Error{Code: ebbv1.Code_CODE_CLOCK_SKEW, Message: "clock skew"}
	ErrShuttingDown   = &Error{Code: ebbv1.Code_CODE_SHUTTING_DOWN, Message: "shutting down"}
	ErrDeadline       = &Error{Code: ebbv1.Code_CODE_DEADLINE, Message: "deadline exceeded"}
	ErrIncomplete     = &Error{Code: ebbv1.Code_CODE_INCOMPLETE, Message: "incomplete answer"}
	ErrTooStale       = &Error{Code: ebbv1.Code_CODE_TOO_STALE, Message: "too stale"}
	ErrStaleTable     = &Error{Code: ebbv1.Code_CODE_STALE_TABLE, Message: "stale table"}
	ErrStarting       = &Error{Code: ebbv1.Code_CODE_STARTING, Message: "starting"}
	ErrDiskFull       = &Error{Code: ebbv1.Code_CODE_DISK_FULL, Message: "disk full"}
	ErrBudgetExceeded = &Error{Code: ebbv1.Code_CODE_BUDGET_EXCEEDED, Message: "budget exceeded"}
	ErrDiskNotLost    = &Error{Code: ebbv1.Code_CODE_DISK_NOT_LOST, Message: "another disk is not known to be lost"}
	ErrOutOfMemory    = &Error{Code: ebbv1.Code_CODE_OUT_OF_MEMORY, Message: "out of memory"}
	ErrKeyBusy        = &Error{Code: ebbv1.Code_CODE_KEY_BUSY, Message: "key is being written"}
	ErrBadRequest     = &Error{Code: ebbv1.Code_CODE_BAD_REQUEST, Message: "bad request"}
	ErrBadKey         = &Error{Code: ebbv1.Code_CODE_BAD_KEY, Message: "bad key"}
	ErrBadBin         = &Error{Code: ebbv1.Code_CODE_BAD_BIN, Message: "bad bin"}
	ErrBadAmount      = &Error{Code: ebbv1.Code_CODE_BAD_AMOUNT, Message: "bad amount"}
	ErrBadTime        = &Error{Code: ebbv1.Code_CODE_BAD_TIME, Message: "bad time"}
	ErrBadHalfLife    = &Error{Code: ebbv1.Code_CODE_BAD_HALF_LIFE, Message: "bad half-life"}
	ErrBadCount       = &Error{Code: ebbv1.Code_CODE_BAD_COUNT, Message: "bad count"}
	ErrBadNamespace   = &Error{Code: ebbv1.Code_CODE_BAD_NAMESPACE, Message: "bad namespace"}
	ErrBatchTooLarge  = &Error{Code: ebbv1.Code_CODE_BATCH_TOO_LARGE, Message: "batch too large"}

	ErrMessageTooLarge   = &Error{Code: ebbv1.Code_CODE_MESSAGE_TOO_LARGE, Message: "message too large"}
	ErrResponseTooLarge  = &Error{Code: ebbv1.Code_CODE_RESPONSE_TOO_LARGE, Message: "response too large"}
	ErrNotUTF8           = &Error{Code: ebbv1.Code_CODE_NOT_UTF8, Message: "not UTF-8"}
	ErrNamespaceNotFound = &Error{Code: ebbv1.Code_CODE_NAMESPACE_NOT_FOUND, Message: "namespace not found"}
	ErrNamespaceExists   = &Error{Code: ebbv1.Code_CODE_NAMESPACE_EXISTS, Message: "namespace exists"}
	ErrWrongKind         = &Error{Code: ebbv1.Code_CODE_WRONG_KIND, Message: "wrong kind"}
	ErrTooManyBins       = &Error{Code: ebbv1.Code_CODE_TOO_MANY_BINS, Message: "too many bins"}
	ErrNegativeAmount    = &Error{Code: ebbv1.Code_CODE_NEGATIVE_AMOUNT, Message: "negative amount"}
	ErrWrongShard        = &Error{Code: ebbv1.Code_CODE_WRONG_SHARD, Message: "wrong shard"}
	ErrUnmergeable       = &Error{Code: ebbv1.Code_CODE_UNMERGEABLE, Message: "summaries do not merge"}
	ErrOverflow          = &Error{Code: ebbv1.Code_CODE_OVERFLOW, Message: "overflow"}
	ErrTimeJump          = &Error{Code: ebbv1.Code_CODE_TIME_JUMP, Message: "time jump"}
	ErrResourceExhausted = &Error{Code: ebbv1.Code_CODE_RESOURCE_EXHAUSTED, Message: "resource exhausted"}

	ErrKeyNotFound = &Error{Code: ebbv1.Code_CODE_KEY_NOT_FOUND, Message: "key not found"}
	ErrKeyExists   = &Error{Code: ebbv1.Code_CODE_KEY_EXISTS, Message: "key exists"}
	ErrMissingKeys = &Error{Code: ebbv1.Code_CODE_MISSING_KEYS, Message: "keys are missing"}
	ErrKeyTooLarge = &Error{Code: ebbv1.Code_CODE_KEY_TOO_LARGE, Message: "key too large"}

	ErrBadQuery       = &Error{Code: ebbv1.Code_CODE_BAD_QUERY, Message: "bad query"}
	ErrQueryTooCostly = &Error{Code: ebbv1.Code_CODE_QUERY_TOO_COSTLY, Message: "query too costly"}

	ErrUnauthenticated  = &Error{Code: ebbv1.Code_CODE_UNAUTHENTICATED, Message: "unauthenticated"}
	ErrPermissionDenied = &Error{Code: ebbv1.Code_CODE_PERMISSION_DENIED, Message: "permission denied"}

	ErrSessionExpired        = &Error{Code: ebbv1.Code_CODE_SESSION_EXPIRED, Message: "session expired"}
	ErrSequenceTooOld        = &Error{Code: ebbv1.Code_CODE_SEQUENCE_TOO_OLD, Message: "sequence too old"}
	ErrSourceFenced          = &Error{Code: ebbv1.Code_CODE_SOURCE_FENCED, Message: "source fenced"}
	ErrIdempotencyKeyTooOld  = &Error{Code: ebbv1.Code_CODE_IDEMPOTENCY_KEY_TOO_OLD, Message: "idempotency key too old"}
	ErrUnknownOutcome        = &Error{Code: ebbv1.Code_CODE_UNKNOWN_OUTCOME, Message: "unknown outcome"}
	ErrTooManySessions       = &Error{Code: ebbv1.Code_CODE_TOO_MANY_SESSIONS, Message: "too many sessions"}
	ErrTooManySources        = &Error{Code: ebbv1.Code_CODE_TOO_MANY_SOURCES, Message: "too many sources"}
	ErrTooManyIdempotencyKey = &Error{Code: ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS, Message: "too many idempotency keys"}

	ErrInternal      = &Error{Code: ebbv1.Code_CODE_INTERNAL, Message: "internal error"}
	ErrCorrupt       = &Error{Code: ebbv1.Code_CODE_CORRUPT, Message: "corrupt"}
	ErrWrongCluster  = &Error{Code: ebbv1.Code_CODE_WRONG_CLUSTER, Message: "wrong cluster"}
	ErrNewerVersion  = &Error{Code: ebbv1.Code_CODE_NEWER_VERSION, Message: "written by a newer version"}
	ErrLocked        = &Error{Code: ebbv1.Code_CODE_LOCKED, Message: "locked"}
	ErrDisk          = &Error{Code: ebbv1.Code_CODE_DISK, Message: "disk error"}
	ErrDuplicateNode = &Error{Code: ebbv1.Code_CODE_DUPLICATE_NODE, Message: "two nodes with one name"}
)

// Errorf makes an Error with the code and the hint of e. It wraps no error: the message must say what matters about the
// cause.
func (e *Error) Errorf(format string, args ...any) *Error {
	return &Error{Code: e.Code, Message: fmt.Sprintf(format, args...), Hint: e.Hint}
}

// WithHint returns a copy of e with the hint.
func (e *Error) WithHint(hint string) *Error {
	c := *e
	c.Hint = hint
	return &c
}

// WithShard returns a copy of e with the shard.
func (e *Error) WithShard(shard uint32) *Error {
	c := *e
	c.Shard = shard
	return &c
}

func (e *Error) Error() string {
	code := fmt.Sprintf(" (EBB-%d)", int32(e.Code))
	return strings.TrimSuffix(e.Message, code) + code // a message that quotes an error of the same code has it already
}

// Is reports whether target is an Error of the same code.
func (e *Error) Is(target error) bool {
	var t *Error
	return errors.As(target, &t) && t.Code == e.Code
}

// Wire returns the error as a message for the wire; nil for nil.
func (e *Error) Wire() *ebbv1.Error {
	if e == nil {
		return nil
	}
	return &ebbv1.Error{
		Code: e.Code, Message: e.Message, Hint: e.Hint, Shard: e.Shard,
		Leader: e.Leader, RetryAfterUs: e.RetryAfterUS, Line: e.Line, Column: e.Column,
	}
}

// FromWire is the inverse of Wire; nil for nil.
func FromWire(w *ebbv1.Error) *Error {
	if w == nil {
		return nil
	}
	return &Error{
		Code: w.Code, Message: w.Message, Hint: w.Hint, Shard: w.Shard,
		Leader: w.Leader, RetryAfterUS: w.RetryAfterUs, Line: w.Line, Column: w.Column,
	}
}

// AsError returns the first Error in err's chain, or makes an INTERNAL Error from err; nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return ErrInternal.Errorf("%v", err)
}
