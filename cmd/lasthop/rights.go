package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/lasthop/lasthop/probe/traffic"
)

// capability is one that lasthop uses.
type capability struct {
	value cap.Value
	// name is without the CAP_ prefix, as container runtimes and kubectl's profiles write it.
	name string
	// gives is what it allows lasthop to do.
	gives string
}

var capabilities = []capability{
	{cap.BPF, "BPF", "load BPF programs"},
	{cap.PERFMON, "PERFMON", "attach to the drop tracepoint"},
	{cap.NET_ADMIN, "NET_ADMIN", "attach to links, read firewall rules and connection tracking"},
	{cap.SYS_ADMIN, "SYS_ADMIN", "enter the network namespaces of the node and its pods, name BPF programs"},
	{cap.SYS_PTRACE, "SYS_PTRACE", "find pods, and the node's files, through processes"},
	{cap.SYSLOG, "SYSLOG", "name the functions that drop packets"},
	{cap.NET_RAW, "NET_RAW", "send probes (--active)"},
}

// alsoKept are capabilities that lasthop uses if it has them, and needs only on some nodes: files of the user's own may
// be closed to root (sudo), and before Linux 5.11 BPF maps count as locked memory.
var alsoKept = []cap.Value{cap.DAC_OVERRIDE, cap.DAC_READ_SEARCH, cap.SYS_RESOURCE}

// dropRights gives up, for good and in all threads, the capabilities that observing does not use.
func dropRights(active bool) error {
	keep := slices.Clone(alsoKept)
	for _, c := range capabilities {
		if c.value != cap.NET_RAW || active {
			keep = append(keep, c.value)
		}
	}
	var others []cap.Value
	for v := range cap.MaxBits() {
		if !slices.Contains(keep, v) {
			others = append(others, v)
		}
	}
	held, err := cap.GetPID(0)
	if err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	// A program that this one starts as root would get what is in the bounding set.
	if may, err := held.GetFlag(cap.Effective, cap.SETPCAP); err == nil && may {
		if err := cap.DropBound(others...); err != nil {
			return fmt.Errorf("drop capabilities from the bounding set: %w", err)
		}
	}
	for _, flag := range []cap.Flag{cap.Effective, cap.Permitted, cap.Inheritable} {
		err = errors.Join(err, held.SetFlag(flag, false, others...))
	}
	if err == nil {
		err = held.SetProc()
	}
	if err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

const fullRights = "kubectl debug node/NODE -it --image=IMAGE --profile=sysadmin -- /lasthop check"

// lesser is what works without them.
const lesser = "`lasthop check --engine state` judges the readable part of the node's state, without watching packets"

// remedy says which capabilities are missing, how to get them, and what works without.
// Where none is missing, the error itself says what else the cause is.
func remedy() string { return strings.TrimPrefix(lacking()+"\n"+lesser, "\n") }

// lacking says which capabilities are missing and how to get them, empty if none is.
func lacking() string {
	names := missing()
	if len(names) == 0 {
		return ""
	}
	return "missing capabilities: " + strings.Join(names,
		", ") + ". Run lasthop as root on the node, or in a pod that has them: " + fullRights
}

// missing names the capabilities that this process does not have. NET_RAW is for
// --active alone, and given up without it.
func missing() []string {
	var names []string
	for _, c := range capabilities {
		switch {
		case traffic.Holds(c.value), traffic.InAdmin(c.value), c.value == cap.NET_RAW:
		case c.value == cap.SYS_ADMIN:
			names = append(names, "SYS_ADMIN (which includes BPF and PERFMON)")
		default:
			names = append(names, c.name)
		}
	}
	return names
}
