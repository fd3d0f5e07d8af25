package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Code is the stable number of an error: EBB-1001 is code 1001 for ever.
type Code = ebbv1.Code

// Sentinels for errors.Is. A sentinel with a code matches every error of that code, from any node.
var (
	ErrUnreachable    = proto.ErrUnreachable
	ErrNotLeader      = proto.ErrNotLeader
	ErrNoLeader       = proto.ErrNoLeader
	ErrOverloaded     = proto.ErrOverloaded
	ErrOutOfMemory    = proto.ErrOutOfMemory
	ErrDiskFull       = proto.ErrDiskFull
	ErrBudgetExceeded = proto.ErrBudgetExceeded
	ErrClockSkew      = proto.ErrClockSkew
	ErrShuttingDown   = proto.ErrShuttingDown
	ErrDeadline       = proto.ErrDeadline
	ErrIncomplete     = proto.ErrIncomplete
	ErrTooStale       = proto.ErrTooStale
	ErrStaleTable     = proto.ErrStaleTable
	ErrStarting       = proto.ErrStarting
	ErrKeyBusy        = proto.ErrKeyBusy

	ErrUnmergeable       = proto.ErrUnmergeable
	ErrOverflow          = proto.ErrOverflow
	ErrResourceExhausted = proto.ErrResourceExhausted
	ErrBadRequest        = proto.ErrBadRequest
	ErrBadKey            = proto.ErrBadKey
	ErrBadBin            = proto.ErrBadBin
	ErrBadAmount         = proto.ErrBadAmount
	ErrBadTime           = proto.ErrBadTime
	ErrBadHalfLife       = proto.ErrBadHalfLife
	// ErrTimeJump: an event is dated further ahead of its namespace's event clock than MaxJump.
	ErrTimeJump          = proto.ErrTimeJump
	ErrBadCount          = proto.ErrBadCount
	ErrBadNamespace      = proto.ErrBadNamespace
	ErrBatchTooLarge     = proto.ErrBatchTooLarge
	ErrMessageTooLarge   = proto.ErrMessageTooLarge
	ErrResponseTooLarge  = proto.ErrResponseTooLarge
	ErrNotUTF8           = proto.ErrNotUTF8
	ErrNamespaceNotFound = proto.ErrNamespaceNotFound
	ErrNamespaceExists   = proto.ErrNamespaceExists
	ErrWrongKind         = proto.ErrWrongKind
	ErrTooManyBins       = proto.ErrTooManyBins
	ErrNegativeAmount    = proto.ErrNegativeAmount

	ErrKeyNotFound = proto.ErrKeyNotFound
	ErrKeyExists   = proto.ErrKeyExists
	// ErrMissingKeys: a strict answer lacks keys that its question names.
	ErrMissingKeys = proto.ErrMissingKeys
	ErrKeyTooLarge = proto.ErrKeyTooLarge
	ErrCorrupt     = proto.ErrCorrupt

	ErrBadQuery       = proto.ErrBadQuery
	ErrQueryTooCostly = proto.ErrQueryTooCostly

	ErrUnauthenticated  = proto.ErrUnauthenticated
	ErrPermissionDenied = proto.ErrPermissionDenied

	ErrSessionExpired  = proto.ErrSessionExpired
	ErrSequenceTooOld  = proto.ErrSequenceTooOld
	ErrSourceFenced    = proto.ErrSourceFenced
	ErrUnknownOutcome  = proto.ErrUnknownOutcome
	ErrTooManySessions = proto.ErrTooManySessions
	ErrTooManySources  = proto.ErrTooManySources

	ErrInternal     = proto.ErrInternal
	ErrWrongCluster = proto.ErrWrongCluster

	// ErrBufferFull is returned by a Writer whose buffer is full under OnFull Fail.
	ErrBufferFull = errors.New("writer buffer is full")
	// ErrClosed is returned by a value that is used after its Close.
	ErrClosed = errors.New("closed")
)

// Error describes what failed, where, how often it was tried and what to do next. It wraps its cause, and errors.Is
// finds the sentinel of its code.
type Error struct {
	Op      string // "dial", "increment", "top", ...
	Key     string // if the operation was about one
	Shard   uint32 // 0 if not about one
	Node    string // name or address of the node that failed last, if known
	Code    Code
	Attempt int           // tries made, from 1
	Elapsed time.Duration // from the call to giving up
	Hint    string        // the next step, if there is one
	Err     error         // the cause
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Key != "" {
		fmt.Fprintf(&b, " %s", keyText(e.Key))
	}
	if e.Shard != 0 {
		fmt.Fprintf(&b, ": shard %d", e.Shard)
	}
	cause := causeText(e.Err)
	if e.Node != "" && !strings.Contains(cause, e.Node) {
		fmt.Fprintf(&b, " at %s", e.Node)
	}
	fmt.Fprintf(&b, ": %s (EBB-%d", strings.TrimSuffix(cause, fmt.Sprintf(" (EBB-%d)", e.Code)), int32(e.Code))
	if e.Attempt > 1 {
		fmt.Fprintf(&b, ", %d tries in %s", e.Attempt, e.Elapsed.Round(time.Millisecond))
	}
	b.WriteByte(')')
	return b.String()
}

// keyShown is how many bytes of a key an error shows.
const keyShown = 64

func keyText(key string) string {
	if len(key) <= keyShown {
		return strconv.Quote(key)
	}
	return strconv.Quote(key[:keyShown]) + "..."
}

// causeText is the cause without its own code, which Error appends once.
func causeText(err error) string {
	var pe *proto.Error
	if errors.As(err, &pe) && err == error(pe) {
		return pe.Message
	}
	return err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is a sentinel of the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*proto.Error)
	return ok && t.Code == e.Code
}

// attempt is what is known about a failed call when it is given up.
type attempt struct {
	op, key string
	shard   uint32
	node    string
	tries   int
	start   time.Time
	limit   time.Duration // of one try; 0: the client's
	whole   bool          // one try may last as long as the caller waits
}

func (c *Client) fail(a attempt, err error) *Error {
	var already *Error
	if errors.As(err, &already) {
		return already
	}
	pe := coded(err)
	e := &Error{
		Op: a.op, Key: a.key, Shard: a.shard, Node: a.node, Code: pe.Code,
		Attempt: max(a.tries, 1), Hint: pe.Hint, Err: err,
	}
	if !a.start.IsZero() {
		e.Elapsed = c.now().Sub(a.start)
	}
	if e.Shard == 0 {
		e.Shard = pe.Shard
	}
	return e
}

// coded returns the coded error in err, or makes one from err.
func coded(err error) *proto.Error {
	var pe *proto.Error
	switch {
	case errors.As(err, &pe):
		return pe
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return proto.ErrDeadline.Errorf("%v", err)
	case errors.Is(err, ErrClosed):
		return proto.ErrShuttingDown.Errorf("%v", err)
	case errors.Is(err, ErrBufferFull):
		return proto.ErrOverloaded.Errorf("%v", err)
	}
	return proto.AsError(err)
}

// retryClass is what a failure means for a write.
type retryClass uint8

const (
	// final: it was not applied and trying again will not help.
	final retryClass = iota
	// redirect: it was not applied, another node leads.
	redirect
	// later: it was not applied, but may be in a while.
	later
	// ambiguous: it may have been applied. Try again under the same identity.
	ambiguous
	// expired: the shard no longer keeps the session, or its window no longer has the sequence.
	expired
)

func classify(code Code) retryClass {
	switch code {
	case ebbv1.Code_CODE_NOT_LEADER:
		return redirect
	case ebbv1.Code_CODE_NO_LEADER, ebbv1.Code_CODE_OVERLOADED, ebbv1.Code_CODE_CLOCK_SKEW,
		ebbv1.Code_CODE_STARTING, ebbv1.Code_CODE_TOO_MANY_SESSIONS, ebbv1.Code_CODE_TOO_MANY_IDEMPOTENCY_KEYS:
		return later
	case ebbv1.Code_CODE_SESSION_EXPIRED, ebbv1.Code_CODE_SEQUENCE_TOO_OLD:
		return expired
	case ebbv1.Code_CODE_UNREACHABLE, ebbv1.Code_CODE_DEADLINE, ebbv1.Code_CODE_SHUTTING_DOWN,
		ebbv1.Code_CODE_UNKNOWN_OUTCOME, ebbv1.Code_CODE_INTERNAL, ebbv1.Code_CODE_CORRUPT, ebbv1.Code_CODE_DISK,
		ebbv1.Code_CODE_UNSPECIFIED:
		return ambiguous
	}
	return final
}

// worthAnotherTry reports whether a question that failed with code may succeed
// elsewhere or a little later.
func worthAnotherTry(code Code) bool {
	switch code {
	case ebbv1.Code_CODE_DISK, ebbv1.Code_CODE_INTERNAL:
		return false
	}
	return code/1000 == 1 || classify(code) == ambiguous
}
