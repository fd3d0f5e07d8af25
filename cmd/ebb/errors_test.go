package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What a shard says to programs is no next step on the command line.
func TestNextStepIsOneOfTheCommandLine(t *testing.T) {
	full := proto.ErrTooManyIdempotencyKey.Errorf("shard 15 is full").WithHint(proto.HintSession)
	old := proto.ErrIdempotencyKeyTooOld.Errorf("over 10m ago").WithHint(proto.HintWithinWindow)
	for err, want := range map[*proto.Error]string{full: "try again later", old: "find out what was counted"} {
		got := nextStep(fmt.Errorf("load: %w", err))
		if !strings.Contains(got, want) || strings.Contains(got, err.Hint) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	fenced := proto.ErrSourceFenced.Errorf("source x is not open in shard 3").WithHint("open the source again")
	const again = "run it again"
	if got := nextStep(advisedOf(fenced, ebbv1.Code_CODE_SOURCE_FENCED, again)); got != again {
		t.Errorf("%v: %q", fenced, got)
	}
	if err := advisedOf(full, ebbv1.Code_CODE_SOURCE_FENCED, again); nextStep(err) == again || !errors.Is(err, full) {
		t.Errorf("advice of another error: %v", err)
	}
	if err := advisedOf(nil, ebbv1.Code_CODE_SOURCE_FENCED, again); err != nil {
		t.Errorf("advice of no error: %v", err)
	}
}
