package deploy

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// stages parses the Dockerfile as BuildKit does.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	f, err := os.Open("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ast, err := parser.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ast.Warnings {
		t.Error(w.Short)
	}
	parsed, _, err := instructions.Parse(ast.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// of returns a stage's instructions of one kind.
func of[I instructions.Command](s instructions.Stage) (out []I) {
	for _, c := range s.Commands {
		if i, ok := c.(I); ok {
			out = append(out, i)
		}
	}
	return out
}

// The image has one static binary, no root and no shell, and keeps its data in a
// directory that is its user's.
func TestDockerfile(t *testing.T) {
	parsed := stages(t)
	if len(parsed) != 2 {
		t.Fatalf("%d stages", len(parsed))
	}
	build, image := parsed[0], parsed[1]
	tag := regexp.MustCompile(`^golang:[0-9]+\.[0-9]+\.[0-9]+-`)
	if !tag.MatchString(build.BaseName) || image.BaseName != "gcr.io/distroless/static-debian12:nonroot" {
		t.Errorf("from %s and %s", build.BaseName, image.BaseName)
	}
	var compiled bool
	for _, r := range of[*instructions.RunCommand](build) {
		line := strings.Join(r.CmdLine, " ")
		compiled = compiled || strings.Contains(line, "CGO_ENABLED=0") && strings.Contains(line, "-trimpath") && strings.Contains(line, "./cmd/ebb")
	}
	if !compiled {
		t.Error("no static build")
	}
	if runs := of[*instructions.RunCommand](image); len(runs) > 0 {
		t.Errorf("an image without a shell runs %v", runs)
	}
	user := of[*instructions.UserCommand](image)
	if len(user) != 1 || user[0].User != "65532:65532" {
		t.Errorf("user: %v", user)
	}
	entry := of[*instructions.EntrypointCommand](image)
	if len(entry) != 1 || entry[0].PrependShell || !slices.Equal(entry[0].CmdLine, []string{"/usr/local/bin/ebb"}) {
		t.Errorf("entry point: %v", entry)
	}
	env := map[string]string{}
	for _, e := range of[*instructions.EnvCommand](image) {
		for _, kv := range e.Env {
			env[kv.Key] = kv.Value
		}
	}
	volumes := of[*instructions.VolumeCommand](image)
	if len(volumes) != 1 || !slices.Equal(volumes[0].Volumes, []string{env["EBB_DATA_DIR"]}) {
		t.Errorf("data in %q, volumes %v", env["EBB_DATA_DIR"], volumes)
	}
	notices := slices.ContainsFunc(of[*instructions.CopyCommand](image), func(c *instructions.CopyCommand) bool {
		return c.From == "" && c.DestPath == "/usr/share/doc/ebb/" && slices.Equal(c.SourcePaths, []string{"LICENSE", "NOTICE"})
	})
	if !notices {
		t.Error("the image has not the licences of what is linked")
	}
	for _, c := range of[*instructions.CopyCommand](image) {
		if c.DestPath == env["EBB_DATA_DIR"] && c.Chown == "65532:65532" {
			return
		}
	}
	t.Error("the data directory is not its user's")
}

// What the binary is compiled from reaches the build, and every folder of Go is named.
func TestDockerignore(t *testing.T) {
	raw, err := os.ReadFile("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(raw), "\n")
	mains, err := filepath.Glob("../*/")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range mains {
		name := filepath.Base(dir)
		var goes bool
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error {
			goes = goes || strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")
			return nil
		})
		if want := goes && name != "deploy" && name != "tools"; slices.Contains(lines, "!"+name) != want {
			t.Errorf("folder %s: in the build = %v", name, !want)
		}
	}
}

func TestCompose(t *testing.T) {
	raw, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: ".", ConfigFiles: []types.ConfigFile{{Filename: "compose.yaml", Content: raw}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := project.ServiceNames(); !slices.Equal(got, []string{"ebb-0", "ebb-1", "ebb-2"}) {
		t.Fatalf("services: %v", got)
	}
	published := map[string]string{}
	for name, s := range project.Services {
		env := s.Environment
		value := func(key string) string {
			if v := env[key]; v != nil {
				return *v
			}
			return ""
		}
		if value("EBB_NODE") != name || s.Hostname != name || value("EBB_BOOTSTRAP_EXPECT") != "3" || value("EBB_ADVERTISE_GRPC") != name+":7070" || value("EBB_ADVERTISE_HTTP") != name+":7080" {
			t.Errorf("%s: %v", name, env)
		}
		for _, peer := range project.ServiceNames() {
			if !strings.Contains(value("EBB_JOIN"), peer+":7071") {
				t.Errorf("%s does not join %s", name, peer)
			}
		}
		if !s.ReadOnly || s.User != "65532:65532" || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.MemLimit == 0 || s.StopGracePeriod == nil {
			t.Errorf("%s is not confined: %+v", name, s)
		}
		if len(s.Volumes) != 1 || s.Volumes[0].Target != "/var/lib/ebb" || s.Volumes[0].Source != name {
			t.Errorf("%s: volumes %+v", name, s.Volumes)
		}
		if s.HealthCheck == nil || !slices.Equal(s.HealthCheck.Test[:4], []string{"CMD", "/usr/local/bin/ebb", "probe", "ready"}) {
			t.Errorf("%s: health %+v", name, s.HealthCheck)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" || published[p.Published] != "" {
				t.Errorf("%s: port %+v is open to the world, or %q's", name, p, published[p.Published])
			}
			published[p.Published] = name
		}
	}
}

// directives reads a unit: section and name to values, in order.
func directives(t *testing.T, path string) map[string][]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]string{}
	section := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		key, value, assigns := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = strings.Trim(line, "[]")
		case assigns && section != "":
			out[section+"."+key] = append(out[section+"."+key], value)
		default:
			t.Errorf("%s: %q is no directive", path, line)
		}
	}
	return out
}

func TestUnit(t *testing.T) {
	unit := directives(t, "systemd/ebb.service")
	for key, want := range map[string]string{
		"Service.ExecStart": "/usr/local/bin/ebb serve", "Service.KillSignal": "SIGTERM", "Service.DynamicUser": "yes", "Service.StateDirectory": "ebb",
		"Service.Environment": "EBB_DATA_DIR=/var/lib/ebb", "Service.ProtectSystem": "strict", "Service.NoNewPrivileges": "yes", "Service.CapabilityBoundingSet": "",
		"Service.Restart": "always", "Install.WantedBy": "multi-user.target",
	} {
		if got := unit[key]; len(got) != 1 || got[0] != want {
			t.Errorf("%s=%q, want %q", key, got, want)
		}
	}
}

// Every setting in a manifest, compose file, unit or image is a flag of `ebb serve`.
func TestSettingsAreFlags(t *testing.T) {
	help := ebb(t, "serve", "--help")
	setting := regexp.MustCompile(`\bEBB_[A-Z_]+`)
	files := []string{"Dockerfile", "compose.yaml", "systemd/ebb.env", "systemd/ebb.service", "kustomize/base/statefulset.yaml", "kustomize/overlays/dev/statefulset.yaml", "chart/templates/statefulset.yaml"}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		found := setting.FindAllString(string(raw), -1)
		if len(found) == 0 {
			t.Errorf("%s sets nothing", name)
		}
		for _, s := range found {
			flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s, "EBB_"), "_", "-"))
			if s != "EBB_FLAG" && !strings.Contains(help, flag+" ") {
				t.Errorf("%s: %s: `ebb serve` has no %s", name, s, flag)
			}
		}
	}
}
