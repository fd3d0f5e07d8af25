package proc

import (
	"os"
	"syscall"
)

// canPause is why processes cannot be stopped here; nil if they can.
var canPause error

// pause stops a process without ending it: it does nothing until resume.
func pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
