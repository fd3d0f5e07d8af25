package trust

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebbdb/ebb/proto"
)

// A secret that others can read is refused where this process can mend it, and complained of where it cannot.
func TestSecretsOfOthersEyes(t *testing.T) {
	const refused, warned, silent = "refused", "warned", "silent"
	for _, c := range []struct {
		mode fs.FileMode
		own  bool
		want string
	}{
		{0o600, true, silent},
		{0o400, true, silent},
		{0o640, true, warned},
		{0o440, true, warned}, // fsGroup, of a container that runs as root
		{0o660, true, warned},
		{0o644, true, refused},
		{0o604, true, refused},
		{0o602, true, refused},
		{0o601, true, refused},
		{0o777, true, refused},
		{0o600, false, silent},
		{0o440, false, silent}, // what Kubernetes mounts with fsGroup
		{0o640, false, silent},
		{0o644, false, warned}, // what Kubernetes mounts by itself
		{0o666, false, warned},
		{fs.ModeNamedPipe | 0o666, true, silent}, // <(command)
		{fs.ModeDevice | 0o666, true, silent},
	} {
		warning, err := secrecy("/etc/ebb/root.token", c.mode, c.own)
		got := silent
		switch {
		case err != nil:
			got = refused
		case warning != "":
			got = warned
		}
		if got != c.want {
			t.Errorf("mode %v, own %v: %s, want %s (%q, %v)", c.mode, c.own, got, c.want, warning, err)
		}
		if e := (*proto.Error)(nil); got == refused &&
			(!errors.As(err, &e) || !strings.Contains(e.Hint, "chmod 600 /etc/ebb/root.token")) {
			t.Errorf("mode %v: %v without the command that mends it", c.mode, err)
		}
		if got == warned && !strings.Contains(warning, "chmod 600") {
			t.Errorf("mode %v: %q without the command that mends it", c.mode, warning)
		}
	}
}

// What a link leads to counts, as Kubernetes has it, and not the link, which everybody can read.
func TestSecretsBehindLinks(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "..data", "key")
	link := filepath.Join(dir, "key")
	err := errors.Join(os.Mkdir(filepath.Dir(path), 0o750), os.WriteFile(path, []byte("secret"), 0o600),
		os.Symlink(filepath.Join("..data", "key"), link))
	if err != nil {
		t.Fatal(err)
	}
	if text, warning, err := ReadSecret(link); string(text) != "secret" || warning != "" || err != nil {
		t.Errorf("%q, %q, %v", text, warning, err)
	}
	if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	if text, _, err := ReadSecret(link); text != nil || !errors.Is(err, proto.ErrBadRequest) ||
		!strings.Contains(err.Error(), "0644") {
		t.Errorf("%q, %v", text, err)
	}
	if _, _, err := ReadSecret(filepath.Join(dir, "absent")); !errors.Is(err, proto.ErrBadRequest) ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Truncate(path, fileBytesMax+1)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadSecret(path); !errors.Is(err, proto.ErrBadRequest) {
		t.Errorf("a file of %d bytes: %v", fileBytesMax+1, err)
	}
}
