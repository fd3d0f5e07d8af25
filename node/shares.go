package node

import (
	"hash/maphash"

	"github.com/ebbdb/ebb/proto"
)

// owner is the owner of a command: a caller in a namespace. Both are hashes.
type owner struct{ namespace, caller uint64 }

// ownerSeed keeps callers from choosing names that collide.
var ownerSeed = maphash.MakeSeed()

// ownerOf returns the owner of a command. Its caller is the command's session or source, which stays the same when a
// node forwards it, or else the sender of the request.
func ownerOf(command []byte, sender uint64) owner {
	namespace, caller := proto.CommandOwner(command)
	o := owner{namespace: maphash.Bytes(ownerSeed, namespace), caller: sender}
	if len(caller) > 0 {
		o.caller = maphash.Bytes(ownerSeed, caller)
	}
	return o
}

// shares counts the bytes of a queue by owner. A full queue is divided among the namespaces that wait, and the part of
// a namespace among its callers. An owner that has less than its part gets room; owners that have more than theirs give
// it.
//
// Invariant: there is no entry for a namespace or a caller without bytes.
type shares struct {
	namespaces map[uint64]namespaceShare
	callers    map[owner]int
}

type namespaceShare struct{ bytes, callers int }

// add adds bytes to those of an owner; a negative number subtracts.
func (s *shares) add(o owner, bytes int) {
	if s.callers == nil {
		s.callers, s.namespaces = make(map[owner]int), make(map[uint64]namespaceShare)
	}
	n, had := s.namespaces[o.namespace], s.callers[o]
	n.bytes += bytes
	switch has := had + bytes; {
	case has <= 0:
		delete(s.callers, o)
		n.callers--
	case had == 0:
		n.callers++
		fallthrough
	default:
		s.callers[o] = has
	}
	if n.callers == 0 {
		delete(s.namespaces, o.namespace)
		return
	}
	s.namespaces[o.namespace] = n
}

// yields returns which owners give room to a command of o with so many bytes, in a queue that is full with limit bytes.
// It returns nil if o has its part already.
func (s *shares) yields(o owner, bytes, limit int) func(owner) bool {
	own, waits := s.namespaces[o.namespace]
	count := len(s.namespaces)
	if !waits {
		count++
	}
	if part := limit / count; own.bytes+bytes <= part {
		return func(v owner) bool { // some namespace has more than its part, and some caller as much as all on average
			n := s.namespaces[v.namespace]
			return v.namespace != o.namespace && n.bytes > part && s.callers[v]*n.callers >= n.bytes
		}
	}
	has := s.callers[o]
	callers := own.callers
	if has == 0 {
		callers++
	}
	part := own.bytes / callers
	if has+bytes > part {
		return nil
	}
	return func(v owner) bool { return v.namespace == o.namespace && s.callers[v] > part }
}
