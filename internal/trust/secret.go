package trust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ebbdb/ebb/proto"
)

// Permissions of a file that let others than its owner at what it holds.
const (
	groupMay  fs.FileMode = 0o070
	othersMay fs.FileMode = 0o007
)

// ReadSecret reads a small file that holds a secret: a token, a key. It refuses one that everybody on the machine can
// read or write, if
// this process owns the file and so can mend it, as ssh does. Of one that belongs to another user, as what Kubernetes
// mounts, and of one
// that a group can read, it says so in warning, and reads it. Pipes and devices have no such permissions. A link counts
// as what it leads to.
func ReadSecret(path string) (content []byte, warning string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", unreadable(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", unreadable(path, err)
	}
	if warning, err = secrecy(path, info.Mode(), ownedByCaller(info)); err != nil {
		return nil, "", err
	}
	content, err = io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	switch {
	case err != nil:
		return nil, "", unreadable(path, err)
	case len(content) > fileBytesMax:
		return nil, "", proto.ErrBadRequest.Errorf("%s is larger than %d bytes, which is the limit", path, fileBytesMax)
	}
	return content, warning, nil
}

// secrecy judges the permissions of a file with a secret.
func secrecy(path string, mode fs.FileMode, own bool) (warning string, err error) {
	if !mode.IsRegular() {
		return "", nil
	}
	switch {
	case mode&othersMay != 0 && own:
		return "", proto.ErrBadRequest.Errorf("%s holds a secret, and its mode %04o lets everybody on this machine at it",
			path, mode.Perm()).
			WithHint("chmod 600 " + path + "; of a secret that Kubernetes mounts: defaultMode: 0400")
	case mode&othersMay != 0:
		return fmt.Sprintf("%s holds a secret, and its mode %04o lets everybody on this machine at it: "+
			"chmod 600 it, or give it defaultMode: 0440 where Kubernetes mounts it",
			path, mode.Perm()), nil
	case mode&groupMay != 0 && own:
		return fmt.Sprintf("%s holds a secret, and its mode %04o lets its group at it: chmod 600 it, unless that is meant",
			path, mode.Perm()), nil
	}
	return "", nil
}

// unreadable says why a file cannot be read.
func unreadable(path string, err error) error {
	var why *os.PathError
	if errors.As(err, &why) {
		err = why.Err
	}
	return proto.ErrBadRequest.Errorf("%s: %v", path,
		err).WithHint("the file must be there, and this process must be allowed to read it")
}
