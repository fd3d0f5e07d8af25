package node

import (
	"reflect"

	"github.com/hashicorp/raft"

	"github.com/ebbdb/ebb/proto"
)

// refusedEntry is the future of an entry that was not handed to Raft.
type refusedEntry struct{ why *proto.Error }

func (f refusedEntry) Error() error  { return f.why }
func (f refusedEntry) Index() uint64 { return 0 }
func (f refusedEntry) Response() any { return nil }

// mortal makes a future of Raft give up with ErrRaftShutdown when life ends.
// Raft's own futures of log entries wait for ever if Raft is shut down, or its
// goroutine gone, while they lie in one of its channels; but they have an
// exported field for just this channel, which Apply leaves empty.
func mortal[F raft.Future](future F, life chan struct{}) F {
	if v := reflect.ValueOf(future); v.Kind() == reflect.Pointer {
		if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
			field.Set(reflect.ValueOf(life))
		}
	}
	return future
}
