package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ProgramKind is the mechanism by which a program is attached.
type ProgramKind string

// The mechanisms, in the order in which a packet meets them.
const (
	ProgramXDP ProgramKind = "xdp"
	ProgramTCX ProgramKind = "tcx"
	ProgramTC  ProgramKind = "tc" // a tc filter, BPF or other
	// ProgramNetkit is on a netkit pair (Linux 6.7). It has its place at the pair's primary end: on ingress it meets what
	// the other end sends, before all others, on egress what the primary sends, after all others.
	ProgramNetkit ProgramKind = "netkit"
	ProgramCgroup ProgramKind = "cgroup"
)

// Program is an attached BPF program or tc filter, which may drop, change or redirect packets. lasthop's own programs
// are left out. Programs of one hook are in the order in which they run.
type Program struct {
	Kind ProgramKind
	// ID is the BPF program ID, 0 for a tc filter without a program.
	ID uint32
	// Name is the name of the tc filter, or that of the program, which the kernel truncates to 15 characters. It is empty
	// if there is none or if reading it was not permitted.
	Name string `redact:"text"`
	// BPFLink is the ID of the BPF link of a tcx program, 0 if it was attached without one.
	BPFLink uint32
	// Netns, IfIndex and Link are the link, zero for a cgroup program.
	Netns   uint32
	IfIndex int
	Link    string `redact:"link"`
	// Direction is that of the link in its own namespace.
	Direction Direction
	// Filter is the kind of a tc filter: bpf, flower, u32, …. Priority and Handle identify it.
	Filter   string `redact:"keep"`
	Priority uint16
	Handle   uint32
	// Classic says that it is a tc filter with a classic BPF program in
	// direct-action mode. It cannot call helpers, so it cannot redirect.
	Classic bool
	// Cgroup is the path of a cgroup below the mount of its file system.
	Cgroup string `redact:"text"`
}

// TCHandle returns the handle in the syntax of tc.
func (p *Program) TCHandle() string {
	if p.Filter != "u32" {
		return fmt.Sprintf("%#x", p.Handle)
	}
	// Table, bucket and node; tc omits bucket 0.
	if bucket := p.Handle >> 12 & 0xff; bucket != 0 {
		return fmt.Sprintf("%x:%x:%x", p.Handle>>20, bucket, p.Handle&0xfff)
	}
	return fmt.Sprintf("%x::%x", p.Handle>>20, p.Handle&0xfff)
}

// String describes the program by what ip, tc and bpftool show.
func (p *Program) String() string {
	name := cmp.Or(p.Name, "without a name")
	switch {
	case p.Kind == ProgramTC && p.ID == 0:
		what := strings.Join(slices.DeleteFunc([]string{"tc filter", p.Filter, p.Name}, func(s string) bool { return s == "" }), " ")
		return fmt.Sprintf("%s, pref %d handle %s", what, p.Priority, p.TCHandle())
	case p.Kind == ProgramTC:
		return fmt.Sprintf("tc program %s, id %d, pref %d handle %s", name, p.ID, p.Priority, p.TCHandle())
	case p.Kind == ProgramCgroup:
		return fmt.Sprintf("cgroup program %s, id %d, on %s", name, p.ID, p.Cgroup)
	}
	return fmt.Sprintf("%s program %s, id %d", p.Kind, name, p.ID)
}

// MayRedirect reports whether another program may redirect packets that arrive on a link of the node, so that they
// bypass the egress hook of the link that the node's tables select. bpf_redirect_peer does so for pod links. Any
// program at an ingress hook may redirect, since its code is not examined, and so may programs that could not be
// listed. Filters of tc itself (mirred) send by a link's egress hook.
func (s *Snapshot) MayRedirect() bool {
	return s.Status(SourcePrograms) != OK || slices.ContainsFunc(s.Programs, func(p Program) bool {
		native := p.Kind == ProgramTC && p.ID == 0 && p.Filter != "" && p.Filter != "bpf"
		return p.Kind != ProgramCgroup && !p.Classic && !native && p.Direction == Ingress && p.Netns == s.Node.Netns
	})
}

// OwnerCilium is who has the programs that begin so.
const OwnerCilium = "Cilium"

// programOwners are recognised by how their programs' names begin; tc's own names put a section's name after a file's.
var programOwners = map[string][]string{
	"Calico":    {"cali_", "calico_"},
	OwnerCilium: {"cil_", "bpf_lxc.o", "bpf_netdev", "bpf_host.o", "bpf_overlay.o"},
	"systemd":   {"sd_fw_"},
}

// Owner is whose program it is, empty where that is not known.
func (p *Program) Owner() string {
	for name, prefixes := range programOwners {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.Name, prefix) }) {
			return name
		}
	}
	return ""
}
