package swarm

import (
	"os"
	"os/exec"
)

// replays is set by the linker in a build whose runtime chaos/replay has changed: see the Makefile.
var replays string

// Replays reports whether a plan that is run again takes the same course in this build.
func Replays() bool { return replays != "" }

// Program returns the name of this build on a command line.
func Program() string {
	if Replays() {
		return "./ebb-replay"
	}
	return "ebb"
}

// Mode describes whether a plan that is run again takes the same course.
func Mode() string {
	if Replays() {
		return "replaying: a plan takes the same course each time"
	}
	return "exploring: a seed decides the faults, not how goroutines interleave"
}

// triesMax is how often a smaller plan is tried before it is taken to hold.
func triesMax() int {
	if Replays() {
		return 1
	}
	return 3
}

// Prepare completes the command that starts a worker. Several workers use several cores, so each uses one. A worker
// that replays gets a fixed program name and environment: their lengths would change the addresses of later
// allocations. Its allocations are not sampled, since sampling is random and takes stack.
func Prepare(cmd *exec.Cmd) {
	if Replays() {
		cmd.Args[0] = Program()
		cmd.Env = []string{"EBB_COURSE=0", "GOMAXPROCS=1", "GOGC=off", "GOMEMLIMIT=off", "GODEBUG=memprofilerate=0"} // a collection empties pools
		return
	}
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400") // a run makes 100 MB of garbage, and little stays
}
