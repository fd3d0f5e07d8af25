package node

import (
	"reflect"

	"github.com/hashicorp/raft"
)

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
