package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebbdb/ebb/chaos/proc"
)

// bashBlocks are the commands of a page that a test runs as they stand there.
var bashBlocks = regexp.MustCompile("(?s)```bash\n(.*?)```")

// The test runs the commands of docs/authorization.md, from a node on a laptop to three nodes with tokens, in their
// order. It replaces the ports of the page, which may be in use. What the page says is refused is refused, and the last
// commands show what the page shows.
func TestAuthorizationPage(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three real processes, and waits until their shards have moved")
	}
	page, err := os.ReadFile("../../docs/authorization.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range bashBlocks.FindAllStringSubmatch(string(page), -1) {
		script.WriteString(block[1])
	}
	documented := []string{
		"7170", "7171", "7181", "7270", "7271", "7281",
		"7071",
	} // the last of them is a default, and the page names it
	free, err := proc.FreeAddresses(len(documented) + 2)
	if err != nil {
		t.Fatal(err)
	}
	commands := script.String()
	for i, port := range documented {
		if !strings.Contains(commands, "127.0.0.1:"+port) {
			t.Fatalf("the page does not name port %s any more", port)
		}
		commands = strings.ReplaceAll(commands, "127.0.0.1:"+port, free[i])
	}
	grpc, gossip, admin := free[len(documented)], free[len(documented)-1], free[len(documented)+1]
	dir := t.TempDir()
	if err := os.Symlink(binary(t), filepath.Join(dir, "ebb")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-c", "trap 'kill $(jobs -p)' EXIT\n"+commands)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "PATH="+dir+":"+os.Getenv("PATH"), "NO_COLOR=1",
		"EBB_ADDR="+grpc, "EBB_GRPC="+grpc, "EBB_HTTP=-", "EBB_GOSSIP="+gossip, "EBB_ADMIN="+admin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // nodes that are left at the end go with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	said := string(out)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	says(t, said, "from here on callers need a token",
		"token dashboard has the role writer in no namespace", "a reader writes nothing",
		"64 shards, 192 replicas: 64 shards are equal on all their nodes")
}
