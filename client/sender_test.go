package client

import (
	"context"
	"errors"
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// A write that is given up says why it was refused until time was up, and not that time was up.
func TestReasonOfGivingUp(t *testing.T) {
	restored := proto.ErrStarting.Errorf("shard 3 is being restored from a backup")
	for _, c := range []struct{ before, last, want error }{
		{nil, restored, ErrStarting},
		{restored, context.DeadlineExceeded, ErrStarting},
		{restored, proto.ErrDeadline.Errorf("no answer"), ErrStarting},
		{restored, ErrUnreachable, ErrUnreachable},
		{nil, context.DeadlineExceeded, ErrDeadline},
	} {
		if got := coded(reason(c.before, c.last)); !errors.Is(got, c.want) {
			t.Errorf("%v, and then %v: %v", c.before, c.last, got)
		}
	}
}
