package deploy

import (
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// build compiles the binary as the image does, once.
var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ebb-deploy")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ebb")
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/ebb")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	return path, cmd.Run()
})

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // where the chart's loader tells of its symbolic link
	code := m.Run()
	if path, err := build(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func binary(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// ebb runs a command and returns what it prints.
func ebb(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(binary(t), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("ebb %v: %v\n%s", args, err, out)
	}
	return string(out)
}
