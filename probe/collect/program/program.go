// Package program lists what is attached to links and cgroups and may drop or redirect packets without a rule:
// XDP, tcx and netkit programs, tc filters, programs of cgroups.
//
// It reads RTM_GETQDISC and RTM_GETTFILTER dumps, which need no capability, BPF_PROG_QUERY, which takes
// CAP_NET_ADMIN, and the names of programs, which take CAP_SYS_ADMIN. What is refused is an error beside the
// programs that could be read; a program whose name was refused has none. lasthop's own are left out: those with
// its name or, where that was refused, those that a lasthop claims.
package program

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
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
	filtered, failed := filteredLinks(ctx, conn)
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
				if filtered[l.Index] {
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
	{model.Ingress, ebpf.AttachTCXIngress, clsact<<16 | 0xfff2},
	{model.Egress, ebpf.AttachTCXEgress, clsact<<16 | 0xfff3},
}

// clsact is the major number of the clsact and ingress qdiscs.
const clsact = 0xffff

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
	list, err := attached(link.QueryOptions{Target: l.Index, Attach: hook})
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

// attached queries the programs of a hook. The query is repeated if more programs
// were attached between its two system calls, for the size and for the list.
func attached(o link.QueryOptions) ([]link.AttachedProgram, error) {
	const attempts = 4
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

// tcRequest is a struct tcmsg: family and padding, link index, handle, parent, info.
func tcRequest(index int, parent uint32) []byte {
	b := make([]byte, nl.SizeofTcMsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[12:], parent)
	return b
}

// filteredLinks lists the links with a qdisc that holds tc filters.
func filteredLinks(ctx context.Context, conn dump.Dumper) (map[int]bool, error) {
	decode := func(m []byte) (int, bool, error) {
		index, err := decodeQdisc(m)
		return index, index != 0, err
	}
	list, err := dump.List(ctx, "list qdiscs", conn, unix.RTM_GETQDISC, tcRequest(0, 0), unix.RTM_NEWQDISC, decode)
	return model.SetOf(list), err
}

// decodeQdisc decodes an RTM_NEWQDISC message. It returns the link's index if the qdisc holds filters, else 0.
func decodeQdisc(m []byte) (index int, err error) {
	a := dump.ParseAfter(m, nl.SizeofTcMsg)
	for a.Next() {
		if kind := a.String(); a.Type == nl.TCA_KIND && (kind == "clsact" || kind == "ingress") {
			index = int(int32(binary.NativeEndian.Uint32(m[4:])))
		}
	}
	return index, a.Err()
}

func (r *reader) filters(ctx context.Context, conn dump.Dumper, l *model.Link, d direction) {
	decode := func(m []byte) (model.Program, bool, error) {
		p, err := decodeFilter(m)
		return p, p.Handle != 0, err
	}
	does, request := "list tc filters of "+l.Name, tcRequest(l.Index, d.parent)
	found, err := dump.List(ctx, does, conn, unix.RTM_GETTFILTER, request, unix.RTM_NEWTFILTER, decode)
	// EINVAL: the qdisc has no such hook; ENODEV: the link is gone.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) {
		r.errs = append(r.errs, err)
	}
	for _, p := range found {
		r.add(l, d.model, p)
	}
}

// decodeFilter decodes an RTM_NEWTFILTER message. Handle is 0 for a message that stands for the filters of one
// priority, which follow, and for a hash table of the u32 classifier.
func decodeFilter(m []byte) (model.Program, error) {
	a := dump.ParseAfter(m, nl.SizeofTcMsg)
	if err := a.Err(); err != nil {
		return model.Program{}, err
	}
	priority := uint16(binary.NativeEndian.Uint32(m[16:]) >> 16)
	p := model.Program{Kind: model.ProgramTC, Handle: binary.NativeEndian.Uint32(m[8:]), Priority: priority}
	var options, classic []byte
	err := a.Decode(binary.NativeEndian, dump.Fields{nl.TCA_KIND: &p.Filter, nl.TCA_OPTIONS: &options})
	const u32Node = 0xfff
	switch {
	case p.Filter == "u32" && p.Handle&u32Node == 0:
		p.Handle = 0
		return p, err
	case p.Filter != "bpf":
		return p, err
	}
	flags := uint32(0)
	failed := dump.Parse(options).Decode(binary.NativeEndian, dump.Fields{
		nl.TCA_BPF_OPS: &classic, nl.TCA_BPF_FLAGS: &flags, nl.TCA_BPF_NAME: &p.Name, nl.TCA_BPF_ID: &p.ID,
	})
	p.Classic = classic != nil && flags&nl.TCA_BPF_FLAG_ACT_DIRECT != 0
	return p, cmp.Or(err, failed)
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
	name := ""
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	switch {
	case errors.Is(err, unix.EPERM):
		n.refused = &model.UnsupportedError{Feature: "name BPF programs", Remedy: "needs CAP_SYS_ADMIN", Err: err}
	case err == nil:
		defer p.Close()
		if info, err := p.Info(); err == nil {
			name = info.Name
		}
	}
	n.by[id] = name
	return name
}
