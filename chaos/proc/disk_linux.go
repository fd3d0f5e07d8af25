package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// diskBytes is how large a machine's disk is. A node wants 64 MiB free.
	diskBytes = 512 << 20
	// fillerName is the file that takes all space of a full disk.
	fillerName = "filler"

	ioctlShutdown = 0x8004587d // FS_IOC_SHUTDOWN: from now on the file system reads and writes nothing
	keepNoLog     = 2          // and does not even write what its journal has in memory
	ioctlFreeze   = 0xc0045877 // FIFREEZE: all writes wait
	ioctlThaw     = 0xc0045878
)

// giveDisk makes a disk of the machine's own: an ext4 file system in the file image, on a loop device. Only the machine
// sees it, at dir.
func (m *Machine) giveDisk(image, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	err = errors.Join(f.Truncate(diskBytes), f.Close())
	if err != nil {
		return err
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", image).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	m.dir, m.site.image = dir, image
	return m.do(m.mount)
}

// mount is called on the machine's thread.
func (m *Machine) mount() error {
	device, loop, err := attach(m.site.image)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount keeps the device; without a mount, Close frees it
	if err := unix.Mount(device, m.dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount %s: %w", m.site.image, err)
	}
	return os.RemoveAll(filepath.Join(m.dir, "lost+found")) // a data directory is empty at first
}

// attach finds a free loop device for a file. The device is free again when the last process that has it open, and the
// last mount of it, have gone.
func attach(image string) (device string, loop *os.File, err error) {
	backing, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", nil, err
	}
	defer control.Close()
	for range 100 { // others look for a free one too
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", nil, fmt.Errorf("a free loop device: %w", err)
		}
		device = fmt.Sprintf("/dev/loop%d", number)
		if loop, err = os.OpenFile(device, os.O_RDWR, 0); err != nil {
			return "", nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			return device, loop, nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return "", nil, fmt.Errorf("set up %s: %w", device, err)
		}
	}
	return "", nil, errors.New("no loop device stays free for long enough")
}

// ioctl sends a request to the file system.
func (m *Machine) ioctl(request uint, value int) error {
	return m.do(func() error {
		dir, err := os.Open(m.dir)
		if err != nil {
			return err
		}
		defer dir.Close()
		return unix.IoctlSetPointerInt(int(dir.Fd()), request, value)
	})
}

// cutPower ends the disk between two of its writes. What was not synced is lost; processes that still run get errors.
func (m *Machine) cutPower() error { return m.ioctl(ioctlShutdown, keepNoLog) }

// takeDisk takes the disk away from a machine on which nothing runs.
func (m *Machine) takeDisk() error {
	if err := m.do(m.unmount); err != nil {
		return err
	}
	return os.Remove(m.site.image)
}

// unmount is called on the machine's thread.
func (m *Machine) unmount() error {
	for deadline := time.Now().Add(10 * time.Second); ; { // the kernel closes files of ended processes a little later
		err := unix.Unmount(m.dir, 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("unmount %s: %w", m.site.image, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// remount brings the disk back after its power was cut, when no process uses it any more.
func (m *Machine) remount() error {
	return m.do(func() error {
		if err := m.unmount(); err != nil {
			return err
		}
		return m.mount()
	})
}

// freeze makes all writes wait until thaw.
func (m *Machine) freeze() error { return m.ioctl(ioctlFreeze, 0) }

func (m *Machine) thaw() error { return m.ioctl(ioctlThaw, 0) }

// fill leaves no room on the disk.
func (m *Machine) fill() error {
	return m.do(func() error {
		f, err := os.Create(filepath.Join(m.dir, fillerName))
		if err != nil {
			return err
		}
		defer f.Close()
		at := int64(0)
		for size := int64(diskBytes); size >= 4096; size /= 2 {
			for unix.Fallocate(int(f.Fd()), 0, at, size) == nil {
				at += size
			}
		}
		if at == 0 {
			return errors.New("nothing could be allocated on the disk")
		}
		return nil
	})
}

// empty frees the space that fill took.
func (m *Machine) empty() error {
	return m.do(func() error { return os.Remove(filepath.Join(m.dir, fillerName)) })
}
