//go:build cluster

package clustertest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// root is the directory of the README.
const root = "../../.."

// commandsIn are the commands in the fenced blocks of a document's section.
func commandsIn(t *testing.T, file, heading string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no section %q", file, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var commands []string
	fenced := false
	for line := range strings.Lines(section) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced && line != "":
			commands = append(commands, strings.TrimSpace(line))
		}
	}
	return commands
}

// follower is somebody who does what the README says.
type follower struct {
	*testing.T
	// names stand for what the README cannot know.
	names *strings.Replacer
	env   []string
	// dir is where the follower's own files are.
	dir string
}

// follow runs a command of the README.
func (f *follower) follow(line string) {
	f.Helper()
	line = f.names.Replace(line)
	word, _, _ := strings.Cut(line, " ")
	switch word {
	case "export":
		f.export(strings.TrimPrefix(line, "export "))
		if strings.Contains(line, "LASTHOP_IMAGE") {
			f.kubectl("kubectl lasthop doctor node1") // the nodes have that image
		}
	case "ctr":
		f.onNodes(line)
	case "docker": // there is none; what it pushes, the nodes have
	case "make":
		if _, image, found := strings.Cut(line, "make image IMAGE="); found {
			// The same image, without Docker.
			f.run(f.inRoot("make image-archive ARCHITECTURES=amd64 IMAGE=" + image))
			f.onNodes("ctr -n k8s.io images import bin/lasthop-amd64.tar")
			return
		}
		f.run(f.inRoot(line))
	default:
		f.kubectl(line)
	}
}

// export sets a variable as the shell does in the README's directory.
func (f *follower) export(assignment string) {
	f.Helper()
	where, err := filepath.Abs(root)
	if err != nil {
		f.Fatal(err)
	}
	name, value, _ := strings.Cut(assignment, "=")
	f.env = append(f.env, name+"="+os.Expand(strings.Trim(value, `"`), func(name string) string {
		if name == "PWD" {
			return where
		}
		return os.Getenv(name)
	}))
}

func (f *follower) kubectl(line string) {
	f.Helper()
	cmd := command("bash", "-c", line)
	cmd.Dir = f.dir
	cmd.Env = append(cmd.Env, f.env...)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
	switch {
	case line == "kubectl lasthop node1":
		if status, shown := onTerminal(f.T, cmd, step{"Enter to start", "\r"}, step{"LIVE", "q"}); status != 0 {
			f.Errorf("%s: status %d: %q", line, status, shown)
		}
	case strings.Contains(line, " -it "):
		if status, shown := onTerminal(f.T, cmd); status != 0 || !strings.Contains(shown, "lasthop missed") {
			f.Errorf("%s: status %d: %q", line, status, shown)
		}
	default:
		f.run(cmd)
	}
}

// inRoot is what the shell runs in the README's directory.
func (f *follower) inRoot(script string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir = root
	cmd.Env = f.env
	return cmd
}

// onNodes runs a command on each node.
func (f *follower) onNodes(line string) {
	f.Helper()
	for _, node := range []string{"node1", "node2"} {
		where, err := filepath.Abs(root)
		if err != nil {
			f.Fatal(err)
		}
		// The processes of the node are known in the cluster's namespaces alone.
		script := `pids=$(ip netns pids "$1"); exec nsenter --target="${pids%%[^0-9]*}" --mount --net --uts --wd="$2" bash -c "$3"`
		f.run(exec.Command("nsenter", "--target="+fabric, "--mount", "--pid", "--net", "bash", "-c", script, "bash", node, where, line))
	}
}

func (f *follower) run(cmd *exec.Cmd) string {
	f.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		f.Errorf("%v: %v: %s%s", cmd.Args, err, &stdout, &stderr)
	}
	return stdout.String()
}

// TestReadme follows the README, and what it refers to: every command of it that needs a cluster, and how the
// plugin and the image are made.
func TestReadme(t *testing.T) {
	defer undebug(t)
	web := run(t, command("kubectl", "get", "pod", "-n", "shop", "web", "-o", "jsonpath={.status.podIP}")).stdout
	f := &follower{
		T: t, env: os.Environ(), dir: t.TempDir(),
		names: strings.NewReplacer(
			"REGISTRY", "registry.example.com", "node/NODE", "node/node1", "NODE", "node1", "NAMESPACE", "shop", "USER", "ann",
			"pod/cart-7d9f", clientPod(t), "pod/web-5c8b", "pod/web", "app=cart", "app=client", "10.244.3.21:8443", web+":8080",
			"--for 10m", "--for 3s", "--for 30s", "--for 3s", "=IMAGE", "=docker.io/library/lasthop:dev"),
	}
	commands := 0
	for _, section := range [][2]string{
		{"README.md", "Use it from your own machine: kubectl lasthop"}, {"docs/kubectl.md", "Without a registry"},
		{"docs/kubectl.md", "Completion"}, {"docs/kubectl.md", "What it creates, and its rights"},
	} {
		for _, line := range commandsIn(t, section[0], section[1]) {
			f.follow(line)
			commands++
		}
	}
	if info, err := os.Stat(filepath.Join(f.dir, "node.rec")); err != nil || info.Size() == 0 {
		t.Errorf("the recording: %v", err)
	}
	for _, line := range commandsIn(t, "README.md", "Use it on a node") {
		if strings.HasPrefix(line, "kubectl debug") || strings.HasPrefix(line, "kubectl delete") {
			f.follow(line)
			commands++
		}
	}
	if text, err := os.ReadFile(filepath.Join(f.dir, "report.json")); err != nil || !bytes.Contains(text, []byte(`"kind": "Report"`)) {
		t.Errorf("the report: %v: %s", err, text)
	}
	t.Logf("%d commands", commands)
	removed(t)
}
