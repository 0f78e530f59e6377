package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/lasthop/lasthop/probe/model"
)

// rights are the capabilities that the tc programs need.
//
// tc programs can load without CAP_PERFMON, but the verifier then also explores
// speculative paths, too many for these programs.
var rights = []cap.Value{cap.BPF, cap.PERFMON, cap.NET_ADMIN}

// InAdmin reports whether CAP_SYS_ADMIN includes a capability.
func InAdmin(v cap.Value) bool { return v == cap.BPF || v == cap.PERFMON }

// Holds reports whether this process may do what a capability allows, as far as can be read.
func Holds(v cap.Value) bool {
	held, err := cap.GetPID(0)
	if err != nil {
		return true // not known to be missing
	}
	on, err := held.GetFlag(cap.Effective, v)
	return err == nil && on || InAdmin(v) && Holds(cap.SYS_ADMIN)
}

// missing names those of the capabilities that this process does not have, empty if it has all.
func missing(of ...cap.Value) string {
	lacking := model.Filter(of, func(v cap.Value) bool { return !Holds(v) })
	return strings.Join(model.Map(lacking, func(v cap.Value) string { return strings.ToUpper(v.String()) }), " and ")
}

// checkRights returns an UnsupportedError that names missing capabilities.
func checkRights(feature string) error {
	if names := missing(rights...); names != "" {
		return &model.UnsupportedError{Feature: feature, Remedy: "needs " + names, Err: unix.EPERM}
	}
	return nil
}

// refused returns an UnsupportedError with what would help.
func refused(feature string, err error) error {
	if errors.Is(err, unix.EPERM) {
		// What the library adds is about RLIMIT_MEMLOCK, which is raised by then.
		return &model.UnsupportedError{Feature: feature, Remedy: whyForbidden(), Err: unix.EPERM}
	}
	return &model.UnsupportedError{Feature: feature, Remedy: whyUnsupported(), Err: err}
}

// whyUnsupported says what the kernel lacks for the programs.
func whyUnsupported() string {
	if before(5, 10) {
		return "needs Linux 5.10 or later"
	}
	if _, err := btf.LoadKernelSpec(); errors.Is(err, ebpf.ErrNotSupported) {
		return "needs a kernel built with CONFIG_DEBUG_INFO_BTF"
	}
	return "this kernel does not support it"
}

// before reports whether the running kernel is older than a version.
func before(major, minor uint32) bool {
	code, err := features.LinuxVersionCode()
	return err == nil && code < release(major, minor)
}

// whyForbidden says why the kernel refuses (EPERM) what has all capabilities, or what is missing after all.
func whyForbidden() string {
	if names := missing(rights...); names != "" {
		return "needs " + names
	}
	// The kernel's first user namespace has this number (PROC_USER_INIT_INO).
	const firstUsers = 0xEFFFFFFD
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &st) == nil && st.Ino != firstUsers {
		return "needs root in the first user namespace; in a pod: hostUsers: true"
	}
	if seccompForbids() {
		return "a seccomp profile forbids bpf(2); in a pod: seccompProfile type Unconfined"
	}
	if missing(cap.SYS_RESOURCE) != "" && before(5, 11) {
		return "needs CAP_SYS_RESOURCE: before Linux 5.11 BPF maps count as locked memory"
	}
	if mode := lockdown(); mode == "confidentiality" {
		return "kernel lockdown (" + mode + ") forbids BPF programs to read kernel memory"
	}
	if label := confinement(); label != "" {
		return "a security module confines the process as " + label
	}
	return "reason unknown: no capability is missing, and seccomp, lockdown and security modules allow it"
}

// seccompForbids reports whether a filter keeps bpf(2) from a process that has the capabilities for it: the
// kernel itself answers EINVAL to a command that there is not.
func seccompForbids() bool {
	if status, err := os.ReadFile("/proc/self/status"); err != nil || !bytes.Contains(status, []byte("\nSeccomp:\t2\n")) {
		return false
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, ^uintptr(0), 0, 0)
	return errno != unix.EINVAL
}

// lockdown is the kernel's mode of lockdown, empty if that is not known: "none [integrity] confidentiality".
func lockdown() string {
	text, _ := os.ReadFile("/sys/kernel/security/lockdown")
	_, rest, _ := strings.Cut(string(text), "[")
	mode, _, _ := strings.Cut(rest, "]")
	return mode
}

// confinement is the label that AppArmor or SELinux gives this process; empty if none confines it.
func confinement() string {
	for _, file := range []string{"apparmor/current", "current"} {
		text, err := os.ReadFile("/proc/self/attr/" + file)
		label := strings.Trim(string(text), "\x00\n ")
		if err == nil && label != "" && !strings.Contains(label, "unconfined") && !strings.Contains(label, "spc_t") {
			return label
		}
	}
	return ""
}

// needs are what a feature takes; otherwise is what else may be the cause where nothing of that is missing.
type needs struct {
	major, minor uint32
	capabilities []cap.Value
	otherwise    string
}

// remedy is what would make the feature work that failed with err.
func (n needs) remedy(err error) string {
	if before(n.major, n.minor) {
		return fmt.Sprintf("Linux %d.%d or later", n.major, n.minor)
	}
	if names := missing(n.capabilities...); names != "" {
		return names
	}
	if errors.Is(err, unix.EPERM) {
		return whyForbidden()
	}
	return n.otherwise
}
