package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// memoryGroup is a cgroup for one process, whose memory can be limited. It is below this process's own cgroup, or next
// to it, so that limits of this process apply to it, too. It does not count memory that the process had before it was
// moved here.
type memoryGroup struct {
	dir    string
	home   string // the cgroup to which remove moves remaining processes
	layout cgroupLayout
}

// cgroupLayout holds the file names of a version of cgroups.
type cgroupLayout struct {
	used, limit, none string
	hits              func(dir string) (int64, error) // how often the limit was reached
}

var (
	cgroup1 = cgroupLayout{"memory.usage_in_bytes", "memory.limit_in_bytes", "-1", func(dir string) (int64, error) { return readNumber(filepath.Join(dir, "memory.failcnt")) }}
	cgroup2 = cgroupLayout{"memory.current", "memory.max", "max", func(dir string) (int64, error) {
		events, err := os.ReadFile(filepath.Join(dir, "memory.events"))
		for line := range bytes.Lines(events) {
			if n, ok := bytes.CutPrefix(line, []byte("max ")); ok {
				return strconv.ParseInt(string(bytes.TrimSpace(n)), 10, 64)
			}
		}
		return 0, err
	}}
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	// groupLeftMax is how long processes that were killed may stay in a cgroup.
	groupLeftMax = 10 * time.Second
)

// groupPlace returns where below root a process may make cgroups with a memory limit, and its own cgroup, home. own is
// the text of its /proc/self/cgroup.
func groupPlace(root, own string) (parent, home string, layout cgroupLayout, err error) {
	var unified string
	for line := range strings.Lines(own) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3) // hierarchy:controllers:path
		if len(part) != 3 {
			continue
		}
		if part[0] == "0" {
			unified = part[2]
		}
		for controller := range strings.SplitSeq(part[1], ",") {
			if at := filepath.Join(root, "memory", part[2]); controller == "memory" && isDir(at) {
				return at, at, cgroup1, nil
			}
		}
	}
	if unified == "" {
		return "", "", cgroupLayout{}, fmt.Errorf("this process is in no cgroup under %s that has the memory controller", root)
	}
	home = filepath.Join(root, unified)
	for at := unified; ; at = path.Dir(at) { // in version 2, cgroups below one with processes get none
		given, err := os.ReadFile(filepath.Join(root, at, "cgroup.subtree_control"))
		if err == nil && bytes.Contains(given, []byte("memory")) {
			return filepath.Join(root, at), home, cgroup2, nil
		}
		if at == "/" || at == "." {
			return "", "", cgroupLayout{}, fmt.Errorf("no cgroup from %s up gives those below it the memory controller", home)
		}
	}
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// newMemoryGroup makes a cgroup without a limit.
func newMemoryGroup(name string) (*memoryGroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	parent, home, layout, err := groupPlace(cgroupRoot, string(own))
	if err != nil {
		return nil, err
	}
	g := &memoryGroup{dir: filepath.Join(parent, fmt.Sprintf("ebb-chaos-%d-%s", os.Getpid(), name)), home: home, layout: layout}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	return g, nil
}

// canLimit returns why the memory of a process cannot be limited here; nil if it can.
func canLimit() error {
	const needs = "a limit of memory needs Linux, root and the memory controller of cgroups"
	g, err := newMemoryGroup("probe")
	if err != nil {
		return fmt.Errorf("%s: %w", needs, err)
	}
	_, err = g.usage()
	if err = errors.Join(err, g.write(g.layout.limit, strconv.Itoa(1<<30)), g.remove()); err != nil {
		return fmt.Errorf("%s: %w", needs, err)
	}
	return nil
}

func readNumber(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
}

func (g *memoryGroup) write(file, value string) error {
	return os.WriteFile(filepath.Join(g.dir, file), []byte(value), 0o644)
}

// take moves a process into the cgroup.
func (g *memoryGroup) take(pid int) error { return g.write("cgroup.procs", strconv.Itoa(pid)) }

// usage returns how many bytes of memory the cgroup uses, including the page cache.
func (g *memoryGroup) usage() (int64, error) { return readNumber(filepath.Join(g.dir, g.layout.used)) }

// shrink limits the cgroup to the given bytes, and returns the limit that was set. Version 1 refuses a limit if it
// cannot free enough memory at once, so shrink raises the limit until it is accepted. Version 2 ends a process instead.
func (g *memoryGroup) shrink(to int64) (limit int64, err error) {
	for limit = to; ; limit += limit / 64 {
		err := g.write(g.layout.limit, strconv.FormatInt(limit, 10))
		if err == nil || !errors.Is(err, syscall.EBUSY) {
			return limit, err
		}
	}
}

// hits returns how often the limit was reached.
func (g *memoryGroup) hits() (int64, error) { return g.layout.hits(g.dir) }

// remove lifts the limit and removes the cgroup. A process that is still in it is moved to home.
func (g *memoryGroup) remove() error {
	err := g.write(g.layout.limit, g.layout.none)
	for deadline := time.Now().Add(groupLeftMax); ; time.Sleep(5 * time.Millisecond) {
		inside, rerr := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
		if rerr != nil {
			return errors.Join(err, rerr)
		}
		for pid := range strings.FieldsSeq(string(inside)) {
			merr := os.WriteFile(filepath.Join(g.home, "cgroup.procs"), []byte(pid), 0o644)
			if merr != nil && !errors.Is(merr, syscall.ESRCH) {
				err = errors.Join(err, merr)
			}
		}
		rerr = os.Remove(g.dir)
		if rerr == nil || !errors.Is(rerr, syscall.EBUSY) || time.Now().After(deadline) {
			return errors.Join(err, rerr)
		}
	}
}
