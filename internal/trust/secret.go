package trust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ebbdb/ebb/proto"
)

// Permissions that let the group and others access a file.
const (
	groupMay  fs.FileMode = 0o070
	othersMay fs.FileMode = 0o007
)

// ReadSecret reads a small file that holds a secret, such as a token or a key. If everybody on the machine can read or
// write the file, it refuses one that this process's user owns and so can correct, as ssh does. For a file of another
// user, as Kubernetes mounts it, it returns a warning and the content. It does the same for an own file that only its
// group can access. Pipes and devices are not checked. A symbolic link counts as its target.
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

// secrecy checks the permissions of a file with a secret.
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

// unreadable returns the error of a file that cannot be read.
func unreadable(path string, err error) error {
	var why *os.PathError
	if errors.As(err, &why) {
		err = why.Err
	}
	return proto.ErrBadRequest.Errorf("%s: %v", path,
		err).WithHint("the file must be there, and this process must be allowed to read it")
}
