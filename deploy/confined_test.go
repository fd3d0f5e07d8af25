package deploy

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// confine is what a container engine would do with the image: a root that holds the
// binary alone and is read-only, one volume, a user without any rights, few files.
const confine = `set -e
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -o remount,bind,ro "$ROOT"
mount --bind "$VOLUME" "$ROOT/var/lib/ebb"
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+sys_chroot,+setuid,+setgid prlimit --nofile=1024:1024 --core=0 \
  chroot --userspec=65532:65532 --groups= "$ROOT" /usr/local/bin/ebb "$@"`

// The binary runs as the image runs it, without /proc, /tmp, /etc and a home; it
// writes to its volume and nowhere else, and its health check works there too.
func TestConfined(t *testing.T) {
	root, volume := t.TempDir(), t.TempDir()
	for _, dir := range []string{"usr/local/bin", "var/lib/ebb"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copied, err := os.ReadFile(binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "usr/local/bin/ebb"), copied, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(volume, 65532, 65532); err != nil {
		t.Skipf("only root can give a directory away and confine a process: %v", err)
	}
	for dir := volume; dir != "/" && dir != "."; dir = filepath.Dir(dir) { // the user has to get there
		if info, err := os.Stat(dir); err == nil && dir != volume && strings.HasPrefix(dir, os.TempDir()+"/") {
			_ = os.Chmod(dir, info.Mode().Perm()|0o011)
		}
	}
	addr := freePort(t)
	env := []string{
		"ROOT=" + root, "VOLUME=" + volume, "PATH=" + os.Getenv("PATH"), "EBB_DATA_DIR=/var/lib/ebb", "EBB_ADMIN=" + addr,
		"EBB_GRPC=127.0.0.1:0", "EBB_HTTP=127.0.0.1:0", "EBB_SHARDS=4", "EBB_LOG_FORMAT=json",
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", confine, "sh"}, args...)...)
		cmd.Env = env
		return cmd
	}
	if out, err := exec.Command("unshare", "--mount", "mount", "--make-rprivate", "/").CombinedOutput(); err != nil {
		t.Skipf("this machine does not let root mount: %v: %s", err, out)
	}
	if out, err := command("version").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var said bytes.Buffer
	serve := command("serve")
	serve.Stdout, serve.Stderr = &said, &said
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- serve.Wait() }()
	defer func() { _ = serve.Process.Kill() }() // it may have ended
	for {
		out, err := command("probe", "ready").CombinedOutput()
		if err == nil {
			if got := strings.TrimSpace(string(out)); got != "ready" {
				t.Errorf("probe says %q", got)
			}
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, said.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(serve.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Uid:\t65532\t65532\t65532\t65532", "Gid:\t65532\t65532\t65532\t65532", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"} {
		if !strings.Contains(string(status), line+"\n") {
			t.Errorf("no line %q in\n%s", line, status)
		}
	}
	owned, err := os.Stat(filepath.Join(volume, "node.json"))
	if err != nil || owned.Sys().(*syscall.Stat_t).Uid != 65532 {
		t.Errorf("the volume holds no node.json of its user's: %v", err)
	}
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("on SIGTERM it ended with %v\n%s", err, said.String())
	}
}

// freePort is an address on loopback where no process listens now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
