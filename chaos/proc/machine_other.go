//go:build !linux

package proc

import (
	"context"
	"net"
	"os"
	"os/exec"
	"time"
)

type machineSite struct{}

func newMachine(bool, bool) (*Machine, error) { return nil, errElsewhere }

func (s *machineSite) run(f func() error) error { return f() }

func (s *machineSite) start(cmd *exec.Cmd) error { return cmd.Start() }

// Close ends the machine.
func (m *Machine) Close() {}

func (m *Machine) dial(ctx context.Context, addr string) (net.Conn, error) {
	return dialHere(ctx, addr)
}

type networkSite struct{}

func newNetwork([]*Machine) (*Network, error) { return nil, errElsewhere }

// Close ends the network.
func (n *Network) Close() {}

func (m *Machine) giveDisk(string, string) error { return errElsewhere }
func (m *Machine) takeDisk() error               { return errElsewhere }
func (m *Machine) cutPower() error               { return errElsewhere }
func (m *Machine) remount() error                { return errElsewhere }
func (m *Machine) freeze() error                 { return errElsewhere }
func (m *Machine) thaw() error                   { return errElsewhere }
func (m *Machine) fill() error                   { return errElsewhere }
func (m *Machine) empty() error                  { return errElsewhere }

func pause(*os.Process) error  { return errElsewhere }
func resume(*os.Process) error { return errElsewhere }
func stopped(*os.Process) bool { return false }

var canPause = errElsewhere

func ownCPU() time.Duration { return 0 }
