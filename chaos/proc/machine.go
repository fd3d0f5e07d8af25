package proc

import (
	"context"
	"errors"
	"net"
	"os/exec"
)

// Machine is where one node runs. Its network and its disk are its own, as far as the system lets this process make
// such; it and all that runs on it end with this process, however that ends.
type Machine struct {
	number int    // in its network
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

// do calls f where the machine's files are seen.
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
