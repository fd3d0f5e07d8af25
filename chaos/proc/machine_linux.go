package proc

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// machineSite is a thread of this process with namespaces of its own. What it starts is in them, and is killed when the
// thread ends; the kernel then takes down their interfaces and mounts.
type machineSite struct {
	jobs  chan func()
	wg    sync.WaitGroup
	net   int    // the network namespace; -1 for this process's
	image string // of its disk
}

// newMachine makes a machine with a network namespace of its own, or file systems, or both.
func newMachine(ownNet, ownMounts bool) (*Machine, error) {
	s := &machineSite{jobs: make(chan func()), net: -1}
	ready := make(chan error)
	s.wg.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := s.enter(ownNet, ownMounts)
		ready <- err
		if err != nil {
			return
		}
		for job := range s.jobs {
			job()
		}
	})
	if err := <-ready; err != nil {
		return nil, err
	}
	return &Machine{host: "127.0.0.1", site: s}, nil
}

// enter leaves this process's namespaces.
func (s *machineSite) enter(ownNet, ownMounts bool) (err error) {
	if ownMounts {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("a mount namespace: %w", err)
		}
		// only the machine sees what is mounted here
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
	}
	if !ownNet {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("a network namespace: %w", err)
	}
	s.net, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return err
}

// run calls f on the machine's thread.
func (s *machineSite) run(f func() error) error {
	done := make(chan error, 1)
	s.jobs <- func() { done <- f() }
	return <-done
}

func (s *machineSite) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return s.run(cmd.Start)
}

// Close ends the machine and what runs on it.
func (m *Machine) Close() {
	close(m.site.jobs)
	m.site.wg.Wait()
	if m.site.net >= 0 {
		unix.Close(m.site.net) //nolint:errcheck // nothing was written
	}
}

// dial opens a connection from this machine.
func (m *Machine) dial(ctx context.Context, addr string) (net.Conn, error) {
	runtime.LockOSThread() // a socket belongs to the namespace in which its thread was when it was made
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer unix.Close(home) //nolint:errcheck // nothing was written
	if err := unix.Setns(m.site.net, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	conn, err := dialHere(ctx, addr)
	if unix.Setns(home, unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread() // else the thread ends with its goroutine, and no other goroutine gets it
	}
	return conn, err
}
