package model

import (
	"fmt"
	"slices"
	"strings"
)

// ProgramKind is the mechanism by which a program is attached.
type ProgramKind string

// The mechanisms, in the order in which a packet meets them.
const (
	ProgramXDP    ProgramKind = "xdp"
	ProgramTCX    ProgramKind = "tcx"
	ProgramTC     ProgramKind = "tc" // a filter of tc, BPF or another
	ProgramCgroup ProgramKind = "cgroup"
)

// Program is a BPF program or a tc filter that may drop, change or redirect
// packets where it is attached. lasthop's own, which pass everything on, are
// left out. Those of one place are in the order in which packets meet them.
type Program struct {
	Kind ProgramKind
	// ID is the kernel's number of a BPF program, 0 for a filter that is none.
	ID uint32
	// Name is what tc calls its filter, or the kernel's name of the program,
	// which is cut off after 15 characters. Empty: none, or not allowed to see.
	Name string
	// Netns, IfIndex and Link say where it is; zero for a cgroup's.
	Netns   uint32
	IfIndex int
	Link    string
	// Direction is as the link's own namespace sees it.
	Direction Direction
	// Filter is the kind of a tc filter: bpf, flower, u32, …; Priority and
	// Handle are what tc finds it by.
	Filter   string
	Priority uint16
	Handle   uint32
	// Classic is true for a tc filter of classic BPF that gives the verdict
	// itself: it can call nothing, and so redirects nothing.
	Classic bool
	// Cgroup is the path of a cgroup below its file system's root.
	Cgroup string
}

// TCHandle is the handle as tc writes it.
func (p *Program) TCHandle() string {
	if p.Filter != "u32" {
		return fmt.Sprintf("%#x", p.Handle)
	}
	// Table, bucket and node; a bucket of 0 is left out.
	if bucket := p.Handle >> 12 & 0xff; bucket != 0 {
		return fmt.Sprintf("%x:%x:%x", p.Handle>>20, bucket, p.Handle&0xfff)
	}
	return fmt.Sprintf("%x::%x", p.Handle>>20, p.Handle&0xfff)
}

// String names the program as a person would look it up.
func (p *Program) String() string {
	name := p.Name
	if name == "" {
		name = "without a name"
	}
	switch {
	case p.Kind == ProgramTC && p.ID == 0:
		return strings.Join(slices.DeleteFunc([]string{"tc filter", p.Filter, p.Name}, func(s string) bool { return s == "" }), " ") +
			fmt.Sprintf(", pref %d handle %s", p.Priority, p.TCHandle())
	case p.Kind == ProgramTC:
		return fmt.Sprintf("tc program %s, id %d, pref %d handle %s", name, p.ID, p.Priority, p.TCHandle())
	case p.Kind == ProgramCgroup:
		return fmt.Sprintf("cgroup program %s, id %d, on %s", name, p.ID, p.Cgroup)
	}
	return fmt.Sprintf("%s program %s, id %d", p.Kind, name, p.ID)
}

// MayRedirect reports whether a program of somebody else's may have taken what
// came in by a link of the node elsewhere: past the egress of the link that the
// node's tables name, as bpf_redirect_peer takes it past that of a pod's link.
// What a program does cannot be seen, so that any at the ingress of any link
// may; and so may those that were not read.
func (s *Snapshot) MayRedirect() bool {
	return s.Status(SourcePrograms) != OK || slices.ContainsFunc(s.Programs, func(p Program) bool {
		return p.Kind != ProgramCgroup && !p.Classic && p.Direction == Ingress && p.Netns == s.Node.Netns
	})
}
