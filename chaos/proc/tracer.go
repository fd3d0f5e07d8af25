package proc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tracedMax is how long strace may take to attach to all threads of a process, and to detach from them.
const tracedMax = 20 * time.Second

// tracer is strace on a process. The process stops at each system call; some calls fail, or end it. strace counts calls
// by thread: the n-th is the n-th that a thread makes. A traced process runs more slowly. It runs as before when the
// tracer has ended, however the tracer ended.
type tracer struct {
	cmd  *exec.Cmd
	file string        // of the calls that were traced
	done chan struct{} // closed when cmd has been waited for
}

// canTrace returns why no process can be traced here; nil if one can.
func canTrace() error {
	if canPause != nil { // strace is for Linux
		return canPause
	}
	if _, err := exec.LookPath("strace"); err != nil {
		return errors.New("strace is not installed")
	}
	dir, err := os.MkdirTemp("", "ebb-trace-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it lies in the system's directory for such
	probe := exec.Command("sleep", "60")
	if err := probe.Start(); err != nil {
		return err
	}
	defer func() { _, _ = probe.Process.Kill(), probe.Wait() }()
	t, err := trace(nil, probe.Process, filepath.Join(dir, "trace"), "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO:when=1")
	if err != nil {
		return fmt.Errorf("strace must be let trace this process's children: %w", err)
	}
	return t.stop()
}

// trace attaches strace to a process on a machine, and returns when strace has attached to all threads. strace writes
// the calls that it sees to file.
func trace(m *Machine, p *os.Process, file string, args ...string) (*tracer, error) {
	t := &tracer{file: file, done: make(chan struct{})}
	t.cmd = exec.Command("strace", append([]string{"-f", "-p", strconv.Itoa(p.Pid), "-o", file}, args...)...)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	t.cmd.Stderr = write
	if err := m.starts(t.cmd); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	attached, said := make(chan struct{}), new(bytes.Buffer)
	go func() {
		defer close(t.done)
		defer read.Close()
		has := false
		for lines := bufio.NewScanner(read); lines.Scan(); { // until strace ends: it alone has the other end
			if !has && strings.Contains(lines.Text(), " attached") {
				has = true
				close(attached)
			}
			if !has {
				said.WriteString(lines.Text() + "\n")
			}
		}
		_ = t.cmd.Wait() // its exit status is that of the traced process
	}()
	late := time.NewTimer(tracedMax)
	defer late.Stop()
	select {
	case <-attached:
		return t, nil
	case <-t.done:
		return nil, fmt.Errorf("strace has ended: %s", bytes.TrimSpace(said.Bytes()))
	case <-late.C:
		return nil, errors.Join(fmt.Errorf("strace has not attached to process %d in %v", p.Pid, tracedMax), t.stop())
	}
}

// hit reports whether strace has made a call fail.
func (t *tracer) hit() bool {
	seen, err := os.ReadFile(t.file)
	return err == nil && bytes.Contains(seen, []byte("(INJECTED)"))
}

// stop detaches strace; the process then runs without it.
func (t *tracer) stop() error {
	_ = t.cmd.Process.Signal(syscall.SIGTERM) // it may have ended with what it traced
	select {
	case <-t.done:
		return nil
	case <-time.After(tracedMax):
	}
	_ = t.cmd.Process.Kill()
	<-t.done
	return fmt.Errorf("strace has not let go in %v", tracedMax)
}
