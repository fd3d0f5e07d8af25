package proc

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
	"time"
)

// canPause is why processes cannot be suspended here; nil if they can.
var canPause error

// pause suspends a process until resume.
func pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// ownCPU returns the CPU time that this process has used so far; 0 if the system does not report it.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stopped reports whether a process is suspended.
func stopped(p *os.Process) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // behind its name
	return bytes.HasPrefix(rest, []byte("T"))
}
