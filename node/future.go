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

// withShutdown makes a future of Raft fail with ErrRaftShutdown when life is closed. Raft's own futures of log entries
// wait for ever if Raft stops, or its goroutine ends, while they are in one of its channels. They have an exported
// field for such a channel, but Apply leaves it empty.
func withShutdown[F raft.Future](future F, life chan struct{}) F {
	if v := reflect.ValueOf(future); v.Kind() == reflect.Pointer {
		if field := v.Elem().FieldByName("ShutdownCh"); field.IsValid() && field.CanSet() {
			field.Set(reflect.ValueOf(life))
		}
	}
	return future
}
