// Package program lists what is attached to links and cgroups and may drop or redirect packets without a rule:
// XDP, tcx and netkit programs, tc filters, programs of cgroups.
//
// It reads RTM_GETQDISC and RTM_GETTFILTER dumps, which need no capability, BPF_PROG_QUERY, which takes
// CAP_NET_ADMIN, and the names of programs, which take CAP_SYS_ADMIN. What is refused is an error beside the
// programs that could be read; a program whose name was refused has none. lasthop's own are left out: those with
// its name or, where that was refused, those that a lasthop claims.
package program

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/claim"
	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Read lists what is attached to the links of a namespace, link by link, in the order in which packets pass it:
// netkit on ingress, XDP, then tcx, then tc, netkit on egress. conn is an rtnetlink socket in that namespace.
// With an error, what could be read is returned too.
func Read(ctx context.Context, ns *netns.NS, conn *dump.Conn, links []model.Link) ([]model.Program, error) {
	filtered, failed := dump.Clsact(ctx, conn)
	r := reader{netns: ns.Inode(), names: names{by: map[uint32]string{}}, errs: []error{failed}}
	err := ns.Do(func() error {
		for l := range model.Each(links) {
			if err := ctx.Err(); err != nil {
				return err
			}
			r.netkit(l, ebpf.AttachNetkitPeer, model.Ingress)
			for _, id := range l.XDP {
				r.add(l, model.Ingress, model.Program{Kind: model.ProgramXDP, ID: id})
			}
			for _, d := range directions {
				r.tcx(l, d)
				if filtered[l.Index] != "" {
					r.filters(ctx, conn, l, d)
				}
			}
			r.netkit(l, ebpf.AttachNetkitPrimary, model.Egress)
		}
		return nil
	})
	return r.found, errors.Join(append(r.errs, r.names.refused, err)...)
}

// direction is one of the two hooks of tc on a link.
type direction struct {
	model  model.Direction
	attach ebpf.AttachType
	// parent is the hook's class of the clsact qdisc.
	parent uint32
}

var directions = []direction{
	{model.Ingress, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
	{model.Egress, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
}

// reader collects the programs of one namespace.
type reader struct {
	netns uint32
	// noTCX is true once the kernel has refused a query of tcx.
	noTCX bool
	names names
	found []model.Program
	errs  []error
}

// add adds a program, unless it is lasthop's own.
func (r *reader) add(l *model.Link, d model.Direction, p model.Program) {
	p.Netns, p.IfIndex, p.Link, p.Direction = r.netns, l.Index, l.Name, d
	if p.Name == "" && p.ID != 0 {
		p.Name = r.names.of(p.ID)
	}
	if !claim.Ours(p.Name, p.ID) {
		r.found = append(r.found, p)
	}
}

func (r *reader) tcx(l *model.Link, d direction) {
	if r.noTCX {
		return
	}
	err := r.query(l, d.attach, d.model, model.ProgramTCX)
	// EINVAL: Linux before 6.6; ENODEV: the link is gone.
	r.noTCX = err != nil && !errors.Is(err, unix.ENODEV)
	if r.noTCX && !errors.Is(err, unix.EINVAL) {
		r.errs = append(r.errs, fmt.Errorf("list tcx programs: %w", err))
	}
}

func (r *reader) query(l *model.Link, hook ebpf.AttachType, d model.Direction, kind model.ProgramKind) error {
	list, err := Attached(link.QueryOptions{Target: l.Index, Attach: hook})
	for _, p := range list {
		held, _ := p.LinkID()
		r.add(l, d, model.Program{Kind: kind, ID: uint32(p.ID), BPFLink: uint32(held)})
	}
	return err
}

// netkit lists the programs that one end of a netkit pair runs on what it sends. They
// are attached by the primary end: at the other the kernel answers EACCES.
func (r *reader) netkit(l *model.Link, end ebpf.AttachType, d model.Direction) {
	if l.Kind != "netkit" {
		return
	}
	err := r.query(l, end, d, model.ProgramNetkit)
	if err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENODEV) {
		r.errs = append(r.errs, fmt.Errorf("list netkit programs of %s: %w", l.Name, err))
	}
}

// Attached lists the programs of a hook in the order in which they run. The query is repeated if more
// programs were attached between its two system calls, for the size and for the list.
func Attached(o link.QueryOptions) ([]link.AttachedProgram, error) {
	const attempts = 8
	var err error
	for range attempts {
		var q *link.QueryResult
		if q, err = link.QueryPrograms(o); err == nil {
			return q.Programs, nil
		}
		if !errors.Is(err, unix.ENOSPC) {
			break
		}
	}
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) {
		// The library takes a refused query for one that the kernel lacks, but every kernel since Linux 4.15 has it.
		err = unix.EPERM
	}
	return nil, err
}

func (r *reader) filters(ctx context.Context, conn dump.Dumper, l *model.Link, d direction) {
	found, err := dump.Filters(ctx, "list tc filters of "+l.Name, conn, l.Index, d.parent)
	// EINVAL: the qdisc has no such hook; ENODEV: the link is gone.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
		r.errs = append(r.errs, err)
	}
	for _, f := range found {
		const u32Node = 0xfff
		if f.Kind == "u32" && f.Handle&u32Node == 0 {
			continue // a hash table of the classifier
		}
		r.add(l, d.model, model.Program{
			Kind: model.ProgramTC, ID: f.Program, Name: f.Name, Filter: f.Kind, Priority: f.Priority, Handle: f.Handle,
			Classic: f.Classic && f.Flags&nl.TCA_BPF_FLAG_ACT_DIRECT != 0,
		})
	}
}

// names caches the names of programs by id.
type names struct {
	by map[uint32]string
	// refused is set if the rights do not suffice.
	refused error
}

// of returns the name of a program, empty if the program is gone or its name was refused.
func (n *names) of(id uint32) string {
	if name, ok := n.by[id]; ok {
		return name
	}
	name, err := Name(ebpf.ProgramID(id))
	if errors.Is(err, unix.EPERM) {
		n.refused = &model.UnsupportedError{Feature: "name BPF programs", Remedy: "needs CAP_SYS_ADMIN", Err: err}
	}
	n.by[id] = name
	return name
}

// Name is the name of a program. It takes CAP_SYS_ADMIN.
func Name(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return "", err
	}
	return info.Name, nil
}
