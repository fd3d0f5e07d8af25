package node

import (
	"hash/maphash"

	"github.com/ebbdb/ebb/proto"
)

// owner is whose a command is: that of a caller in a namespace. Both are hashes.
type owner struct{ namespace, caller uint64 }

// ownerSeed keeps callers from choosing names that collide.
var ownerSeed = maphash.MakeSeed()

// ownerOf returns the owner of a command: of a session or a source, which keep their identity when a node forwards
// them, or else of who sent the request.
func ownerOf(command []byte, sender uint64) owner {
	namespace, caller := proto.CommandOwner(command)
	o := owner{namespace: maphash.Bytes(ownerSeed, namespace), caller: sender}
	if len(caller) > 0 {
		o.caller = maphash.Bytes(ownerSeed, caller)
	}
	return o
}

// shares is how many bytes of a queue are whose. A queue that is full is divided among the namespaces that wait, and
// what a namespace has among its callers. One that has less than its part gets room, and those that have more than
// theirs give it.
//
// Invariant: no namespace or caller is kept without bytes.
type shares struct {
	namespaces map[uint64]namespaceShare
	callers    map[owner]int
}

type namespaceShare struct{ bytes, callers int }

// add counts bytes that an owner has more, or with a negative number less.
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

// yields returns whose commands give room to one of so many bytes, in a queue that is full with limit bytes; nil if the
// owner of that one has its part already.
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
