package proto

import (
	"fmt"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

const (
	// GraceDefaultUS is for how long a deleted namespace can be undeleted where nothing else is said.
	GraceDefaultUS = int64(24 * time.Hour / time.Microsecond)
	// GraceMaxUS is for how long at most.
	GraceMaxUS = int64(366 * 24 * time.Hour / time.Microsecond)
)

// GraceUS returns a grace time in microseconds, rounded away from 0: nothing but 0 means that there is none, and a
// namespace whose keys cannot be brought back.
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

// ErrDeleted says that a namespace was deleted, and what can be done about it. The namespace must be deleted.
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

// CheckDeletion reports why a namespace cannot be deleted as its definition says.
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
