package ladder

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// profile is what a debug container gets: `kubectl debug node` sets it by
// --profile (kubectl's pkg/cmd/debug/profiles.go), --custom adds to it.
type profile struct {
	name string
	// capabilities are without CAP_.
	capabilities []string
	privileged   bool
	// hostNetwork, hostPID and hostRoot say that the node's network namespace and
	// processes are the container's, and that its files are at /host.
	hostNetwork, hostPID, hostRoot bool
	// runtimeDefault says that the runtime's seccomp profile is on. Kubernetes
	// leaves it off unless the pod or the kubelet (seccompDefault) asks for it.
	runtimeDefault bool
	// strict says that the seccomp profile is that of a container without any
	// capability, whatever this one has.
	strict bool
	// own says that the seccomp profile is that of the documentation.
	own             bool
	noNewPrivileges bool
	uid             uint32
	// memory is the container's limit, in bytes; 0 is none.
	memory int64
}

// ordinary are the capabilities that containerd gives a container that asks for
// nothing (pkg/oci, defaultUnixCaps).
var ordinary = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID",
	"SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

// every are those of a privileged container, less SYS_RESOURCE, which not every
// machine that runs tests has itself.
var every = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// general is a debug session that asks for nothing, and the default.
var general = profile{name: "general", capabilities: ordinary, hostNetwork: true, hostPID: true, hostRoot: true}

// kubectl are the profiles of `kubectl debug node`.
var kubectl = []profile{
	general.but("sysadmin", func(p *profile) { p.capabilities, p.privileged = every, true }),
	general.but("netadmin", func(p *profile) {
		p.capabilities, p.hostRoot = append(p.capabilities, "NET_ADMIN"), false
	}),
	general,
	{name: "baseline", capabilities: ordinary},
	// The image's user is root, which restricted does not start. This is another.
	{name: "restricted", uid: 65532, noNewPrivileges: true, runtimeDefault: true},
}

// custom is general with the custom profile that the documentation recommends.
func custom(t *testing.T) profile {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```json\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatalf("%s has no profile", document)
	}
	var container struct {
		SecurityContext struct {
			Capabilities struct{ Add, Drop []string }
		}
	}
	if err := json.Unmarshal([]byte(block), &container); err != nil {
		t.Fatalf("the profile in %s: %v", document, err)
	}
	c := container.SecurityContext.Capabilities
	if !slices.Equal(c.Drop, []string{"ALL"}) || len(c.Add) == 0 {
		t.Fatalf("the profile in %s drops %v and adds %v", document, c.Drop, c.Add)
	}
	return general.but("custom", func(p *profile) { p.capabilities = c.Add })
}

// but is the profile with another name, and what change makes of it.
func (p profile) but(name string, change func(*profile)) profile {
	p.name, p.capabilities = name, slices.Clone(p.capabilities)
	change(&p)
	return p
}

// without is the profile less one capability.
func (p profile) without(capability string) profile {
	return p.but("custom without "+capability, func(p *profile) {
		p.capabilities = slices.DeleteFunc(p.capabilities, func(c string) bool { return c == capability })
	})
}
