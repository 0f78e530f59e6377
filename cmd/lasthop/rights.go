package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// capability is one that lasthop uses.
type capability struct {
	// bit is the capability's number (linux/capability.h).
	bit uint
	// name is without the CAP_ prefix, as container runtimes and kubectl's
	// profiles write it.
	name string
	// gives is what it allows lasthop to do.
	gives string
	// inAdmin marks those that SYS_ADMIN includes.
	inAdmin bool
}

const sysAdmin = 21

var capabilities = []capability{
	{39, "BPF", "load BPF programs", true},
	{38, "PERFMON", "attach to the drop tracepoint", true},
	{12, "NET_ADMIN", "attach to links, read firewall rules and connection tracking", false},
	{13, "NET_RAW", "send probes (--active)", false},
	{sysAdmin, "SYS_ADMIN", "enter the network namespaces of the node and its pods", false},
	{19, "SYS_PTRACE", "find pods through processes of other users", false},
	{34, "SYSLOG", "name the functions that drop packets", true},
}

// effective is the bit set of this process's effective capabilities.
func effective() (uint64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("read capabilities: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return 0, fmt.Errorf("read capabilities: %w", err)
			}
			return set, nil
		}
	}
	return 0, fmt.Errorf("read capabilities: no CapEff in /proc/self/status")
}

// has reports whether the set allows what the capability allows.
func (c capability) has(set uint64) bool {
	return set&(1<<c.bit) != 0 || c.inAdmin && set&(1<<sysAdmin) != 0
}

// fullRights is how to get all of them.
const fullRights = "as root on the node, or in a pod that has them: kubectl debug node/NODE -it --image=IMAGE --profile=sysadmin -- /lasthop check"

// lesser is what works without them.
const lesser = "without watching packets, --engine state judges the part of the node's state that can be read; see `lasthop doctor`"

// remedy says what would let lasthop watch packets: the missing capabilities, or if
// there are none, what else can be done.
func remedy() string {
	names, err := missing()
	if err != nil {
		return "run it " + fullRights
	}
	if len(names) == 0 {
		return "no capability is missing: the kernel, a security module or a seccomp profile forbids it. " + lesser
	}
	return "missing capabilities: " + strings.Join(names, ", ") + ". Run it " + fullRights + "\n" + lesser
}

// missing names the capabilities that this process does not have.
func missing() ([]string, error) {
	set, err := effective()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range capabilities {
		if !c.has(set) {
			names = append(names, c.name)
		}
	}
	return names, nil
}
