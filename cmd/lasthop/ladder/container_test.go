package ladder

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// machine is what containers are started on: a node of a lab, whose first process
// lives in the node's network namespace as on a real node.
type machine struct {
	// binary is lasthop.
	binary string
	// net and pid are the files of the node's namespaces, pod that of a pod's network
	// namespace.
	net, pid, pod string
	// nameless is the name of a network namespace that the containers do not see
	// by its name, as that of a pod that is younger than they are.
	nameless string
}

// hold keeps the namespaces of a process open until the test ends. The process
// ends when its input does, so also when the test crashes.
func hold(t *testing.T, command ...string) (pid int) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		cmd.Wait() //nolint:errcheck // the end of its namespace may kill it first
	})
	// What comes back says that it runs, and where.
	if _, err := fmt.Fprintln(input, "up"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(output, make([]byte, len("up\n"))); err != nil {
		t.Fatalf("start %v: %v", command, err)
	}
	return cmd.Process.Pid
}

// spec is the configuration that containerd would give runc for the profile.
func (m *machine) spec(t *testing.T, p profile, args []string) *specs.Spec {
	t.Helper()
	var caps []string
	for _, c := range p.capabilities {
		caps = append(caps, "CAP_"+c)
	}
	// A namespace that is not named is the machine's own.
	namespaces := []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.IPCNamespace}}
	if p.hostPID {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: m.pid})
	} else {
		namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	network := m.net
	if !p.hostNetwork {
		network = m.pod
	}
	namespaces = append(namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: network})

	access := "ro"
	linux := &specs.Linux{Namespaces: namespaces, CgroupsPath: "/" + container(t)}
	if p.privileged {
		access = "rw"
	} else {
		linux.MaskedPaths = []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/sys/firmware", "/proc/scsi"}
		linux.ReadonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
	if p.runtimeDefault {
		linux.Seccomp = runtimeDefault(t, caps)
	}
	if p.strict {
		linux.Seccomp = runtimeDefault(t, nil)
	}
	if p.own {
		text, err := os.ReadFile("../../../docs/examples/seccomp.json")
		if err == nil {
			err = json.Unmarshal(text, &linux.Seccomp)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if p.memory > 0 {
		linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &p.memory}}
	}
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", access}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "relatime", access}},
	}
	if p.hostRoot {
		mounts = append(mounts, specs.Mount{Destination: "/host", Type: "bind", Source: "/", Options: []string{"rbind", "rprivate", "rw"}})
	}
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Mounts:  mounts,
		Process: &specs.Process{
			Args: append([]string{"/lasthop"}, args...), Cwd: "/",
			Env:             []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			User:            specs.User{UID: p.uid, GID: p.uid},
			NoNewPrivileges: p.noNewPrivileges,
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Linux: linux,
	}
}

// runtimeDefault is containerd's seccomp profile for a container with these
// capabilities. The file holds what contrib/seccomp.DefaultProfile of containerd
// 2.4.2 returns on amd64: what it always has, what it has with a capability, and
// what without.
func runtimeDefault(t *testing.T, caps []string) *specs.LinuxSeccomp {
	t.Helper()
	text, err := os.ReadFile("testdata/seccomp.json")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Always        []specs.LinuxSyscall
		With, Without map[string][]specs.LinuxSyscall
	}
	if err := json.Unmarshal(text, &rules); err != nil {
		t.Fatalf("testdata/seccomp.json: %v", err)
	}
	out := &specs.LinuxSeccomp{
		DefaultAction: specs.ActErrno, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32}, Syscalls: rules.Always,
	}
	for c, more := range rules.With {
		if slices.Contains(caps, c) {
			out.Syscalls = append(out.Syscalls, more...)
		}
	}
	for c, more := range rules.Without {
		if !slices.Contains(caps, c) {
			out.Syscalls = append(out.Syscalls, more...)
		}
	}
	return out
}

// container is a name for the test's containers.
func container(t *testing.T) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	return fmt.Sprintf("lasthop-%d-%s", os.Getpid(), name)
}

// result is what one run of lasthop gave.
type result struct {
	status         int
	stdout, stderr string
}

// command is lasthop in a new container.
func (m *machine) command(t *testing.T, p profile, args ...string) *exec.Cmd {
	t.Helper()
	bundle := t.TempDir()
	text, err := json.Marshal(m.spec(t, p, args))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	// The image holds nothing else.
	if err := os.Mkdir(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(m.binary, filepath.Join(bundle, "rootfs", "lasthop")); err != nil {
		t.Fatal(err)
	}
	// In a mount namespace of its own the name is no namespace's.
	const script = `{ [ -z "$1" ] || umount "/run/netns/$1"; } && exec runc --root "$2" run --bundle "$3" "$4"`
	return exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, "sh", m.nameless, filepath.Join(bundle, "state"), bundle, container(t))
}

func (m *machine) run(t *testing.T, p profile, args ...string) result {
	t.Helper()
	cmd := m.command(t, p, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// watch runs a command until it has printed a finding, and interrupts it. It would not do to read no more: runc, which
// passes on what a container prints, notices that only when there is more.
func (m *machine) watch(t *testing.T, p profile, args ...string) result {
	t.Helper()
	cmd := m.command(t, p, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	found := ""
	for in := bufio.NewReader(out); err == nil && !strings.Contains(found, `"kind":"Finding"`); {
		found, err = in.ReadString('\n')
	}
	cmd.Process.Signal(os.Interrupt) //nolint:errcheck // it may have ended
	io.Copy(io.Discard, out)         //nolint:errcheck // runc waits for its reader
	cmd.Wait()                       //nolint:errcheck // its status says it
	return result{cmd.ProcessState.ExitCode(), found, stderr.String()}
}
