package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// capability is one right that lasthop has a use for.
type capability struct {
	// bit is the capability's number (linux/capability.h).
	bit uint
	// name is without the CAP_ prefix, as container runtimes and kubectl's
	// profiles write it.
	name string
	// gives is what it allows lasthop to do.
	gives string
	// inAdmin marks those whose uses SYS_ADMIN allows as well.
	inAdmin bool
}

const sysAdmin = 21

var capabilities = []capability{
	{39, "BPF", "load BPF programs", true},
	{38, "PERFMON", "the drop tracepoint", true},
	{12, "NET_ADMIN", "attach to links, read firewall rules and connection tracking", false},
	{13, "NET_RAW", "packet sockets", false},
	{sysAdmin, "SYS_ADMIN", "enter the network namespaces of the node and its pods", false},
	{19, "SYS_PTRACE", "find pods through other users' processes", false},
	{34, "SYSLOG", "the names of the places where packets are dropped", true},
}

// effective reads this process's effective capabilities as a bit set.
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

// fullRights is how to get them all.
const fullRights = "as root on the node, or in a pod that has them: kubectl debug node/NODE -it --image=IMAGE --profile=sysadmin -- /lasthop check"

// lesser is what remains without them.
const lesser = "without watching packets, --engine state judges what of the node's state can be read; `lasthop doctor` tells more"

// remedy says what would let lasthop watch: the rights that are missing, or,
// where none is, what else can be done.
func remedy() string {
	lack, err := missing()
	if err != nil {
		return "run it " + fullRights
	}
	if len(lack) == 0 {
		return "no capability is missing: the kernel, a security module or a seccomp profile does not allow it. " + lesser
	}
	return "missing capabilities: " + strings.Join(lack, ", ") + ". Run it " + fullRights + "\n" + lesser
}

// missing names the capabilities that this process does not have.
func missing() ([]string, error) {
	set, err := effective()
	if err != nil {
		return nil, err
	}
	var lack []string
	for _, c := range capabilities {
		if !c.has(set) {
			lack = append(lack, c.name)
		}
	}
	return lack, nil
}
