package proc

import (
	"fmt"
	"os/exec"
	"time"
)

// heldMax is how long LaunchHeld waits until the new process is suspended.
const heldMax = 20 * time.Second

// LaunchHeld starts node i suspended: it has done nothing, and does nothing until Resume. So it can be traced, or its
// memory limited, from its first moment. The process is a shell that suspends itself and then becomes the node.
func (f *Fleet) LaunchHeld(i int) error {
	err := f.launch(i, func(name string, args ...string) *exec.Cmd {
		return exec.Command("/bin/sh", append([]string{"-c", `kill -STOP $$; exec "$0" "$@"`, name}, args...)...)
	})
	if err != nil {
		return err
	}
	p := f.nodes[i].process()
	for deadline := time.Now().Add(heldMax); !stopped(p); time.Sleep(time.Millisecond) {
		if !f.Runs(i) || time.Now().After(deadline) {
			return fmt.Errorf("%s does not stop before it begins; the end of its log:\n%s", f.Name(i), f.LogTail(i))
		}
	}
	return nil
}
