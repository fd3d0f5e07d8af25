package proc

import (
	"context"
	"errors"
	"net"
	"os/exec"
)

// Machine is where one node runs, with a network or a disk of its own, or both. It and all that runs on it end with
// this process, however this process ends.
type Machine struct {
	number int    // of its port in the network
	host   string // at which its node listens
	dir    string // where the disk is mounted, if it has one
	site   *machineSite
}

// starts runs a command on the machine.
func (m *Machine) starts(cmd *exec.Cmd) error {
	if m == nil {
		return cmd.Start()
	}
	return m.site.start(cmd)
}

// do calls f where the files of the machine are visible.
func (m *Machine) do(f func() error) error {
	if m == nil {
		return f()
	}
	return m.site.run(f)
}

// errElsewhere is why there are no machines on other systems.
var errElsewhere = errors.New("only Linux has namespaces")

func dialHere(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}
