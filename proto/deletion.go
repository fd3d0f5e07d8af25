package proto

import (
	"fmt"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// GraceDefaultUS is how long a deleted namespace can be undeleted if the request does not say.
	GraceDefaultUS = int64(24 * time.Hour / time.Microsecond)
	// GraceMaxUS is the longest time that a request may set.
	GraceMaxUS = int64(366 * 24 * time.Hour / time.Microsecond)
)

// GraceUS returns a grace time in microseconds, rounded away from 0. So only a grace of 0 becomes 0, which means that
// the keys of the namespace cannot be brought back.
func GraceUS(grace time.Duration) int64 {
	us := grace.Microseconds()
	switch rest := grace % time.Microsecond; {
	case rest > 0:
		us++
	case rest < 0:
		us--
	}
	return us
}

// ErrDeleted says that a namespace was deleted, and what the caller can do. ns must be deleted.
func ErrDeleted(ns *ebbv1.Namespace) *Error {
	d := ns.GetDeletion()
	if d.GetPurging() {
		return ErrNamespaceNotFound.Errorf("namespace %s was deleted at %s, and its keys are being purged", ns.GetName(), deletionTime(d.GetDeletedUs())).
			WithHint("to create it anew, wait until ebb namespace list does not show it any more; ebb restore brings the keys of a backup into a new cluster")
	}
	return ErrNamespaceNotFound.Errorf("namespace %s was deleted at %s; it can be undeleted until %s",
		ns.GetName(), deletionTime(d.GetDeletedUs()), deletionTime(d.GetPurgeUs())).
		WithHint("ebb namespace undelete " + ns.GetName())
}

// ErrStillDeleted refuses to create or change a namespace that is deleted.
func ErrStillDeleted(ns *ebbv1.Namespace) *Error {
	refusal := ErrNamespaceExists.Errorf("%s", ErrDeleted(ns).Message)
	if ns.GetDeletion().GetPurging() {
		return refusal.WithHint("wait until ebb namespace list does not show it any more")
	}
	return refusal.WithHint(fmt.Sprintf("ebb namespace undelete %[1]s, or ebb namespace delete %[1]s --now --yes "+
		"and create it when it is gone", ns.GetName()))
}

func deletionTime(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339) }

// CheckDeletion refuses the deletion in a definition if the namespace cannot be deleted that way.
func CheckDeletion(ns *ebbv1.Namespace) *Error {
	switch d := ns.GetDeletion(); {
	case d == nil:
		return nil
	case ns.GetName() == DefaultNamespace:
		return ErrBadNamespace.Errorf("namespace %s cannot be deleted", DefaultNamespace)
	case d.GetDeletedUs() < 0 || d.GetPurgeUs() < 0 || d.GetPurgeUs()-d.GetDeletedUs() > GraceMaxUS+GraceMaxUS:
		return ErrBadNamespace.Errorf("namespace %s: its deletion has times that it cannot have", ns.GetName())
	}
	return nil
}
