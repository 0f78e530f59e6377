// Package program lists what is attached to links and cgroups and may drop or
// redirect packets unseen by any rule: programs of XDP and of tcx, filters of
// tc, programs of cgroups.
package program

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// own begins the names of lasthop's programs, this process's and another's.
// They pass every packet on, so that none is ever the answer.
const own = "lasthop_"

// Read lists what is attached to the links of a namespace, link by link, in
// the order in which packets meet it: XDP, then tcx, then tc. conn is a socket
// of rtnetlink there. With an error, what could be read is returned too.
func Read(ctx context.Context, ns *netns.NS, conn *dump.Conn, links []model.Link) ([]model.Program, error) {
	filtered, failed := filteredLinks(ctx, conn)
	r := reader{netns: ns.Inode(), errs: []error{failed}}
	err := ns.Do(func() error {
		for i := range links {
			l := &links[i]
			if err := ctx.Err(); err != nil {
				return err
			}
			r.xdp(l)
			for _, d := range directions {
				r.tcx(l, d)
				if filtered[l.Index] {
					r.filters(ctx, conn, l, d)
				}
			}
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
	// old says that this kernel has no tcx.
	old   bool
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
	if !strings.HasPrefix(p.Name, own) {
		r.found = append(r.found, p)
	}
}

func (r *reader) xdp(l *model.Link) {
	for _, id := range l.XDP {
		r.add(l, model.Ingress, model.Program{Kind: model.ProgramXDP, ID: id})
	}
}

func (r *reader) tcx(l *model.Link, d direction) {
	if r.old {
		return
	}
	ids, err := attached(link.QueryOptions{Target: l.Index, Attach: d.attach})
	switch {
	case errors.Is(err, unix.EINVAL):
		// Linux before 6.6.
		r.old = true
	case errors.Is(err, unix.ENODEV):
		// The link is gone.
	case err != nil:
		r.errs = append(r.errs, fmt.Errorf("list tcx programs: %w", err))
		r.old = true
	}
	for _, id := range ids {
		r.add(l, d.model, model.Program{Kind: model.ProgramTCX, ID: id})
	}
}

// attached asks for the programs of a hook, again when there come to be more
// while the kernel is asked.
func attached(o link.QueryOptions) (ids []uint32, err error) {
	const attempts = 4
	for range attempts {
		var q *link.QueryResult
		if q, err = link.QueryPrograms(o); err == nil {
			for _, p := range q.Programs {
				ids = append(ids, uint32(p.ID))
			}
			return ids, nil
		}
		if !errors.Is(err, unix.ENOSPC) {
			break
		}
	}
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EPERM) {
		// The library takes a refused question for one that the kernel does
		// not know; it has known it since Linux 4.15.
		err = unix.EPERM
	}
	return nil, err
}

// The attributes of qdiscs and filters (linux/rtnetlink.h, linux/pkt_cls.h).
const (
	tcaKind    = 1
	tcaOptions = 2

	tcaBPFOps   = 5
	tcaBPFName  = 7
	tcaBPFFlags = 8
	tcaBPFID    = 11

	// bpfActDirect is the flag of filters whose value is the verdict.
	bpfActDirect = 1
)

// sizeofTCMsg is the fixed header of both: family and padding, the link's
// index, handle, parent, info.
const sizeofTCMsg = 20

func tcRequest(index int, parent uint32) []byte {
	b := make([]byte, sizeofTCMsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[12:], parent)
	return b
}

// filteredLinks are those with a qdisc that holds the filters of the hooks.
func filteredLinks(ctx context.Context, conn *dump.Conn) (out map[int]bool, err error) {
	err = dump.Retry(ctx, func() error {
		out = map[int]bool{}
		return conn.Each(unix.RTM_GETQDISC, tcRequest(0, 0), unix.RTM_NEWQDISC, func(m []byte) error {
			index, err := decodeQdisc(m)
			if index != 0 {
				out[index] = true
			}
			return err
		})
	})
	if err != nil {
		err = fmt.Errorf("list qdiscs: %w", err)
	}
	return out, err
}

// decodeQdisc reads an RTM_NEWQDISC message: the link's index where the qdisc
// is one that holds filters of the hooks, else 0.
func decodeQdisc(m []byte) (index int, err error) {
	a := dump.ParseAfter(m, sizeofTCMsg)
	for a.Next() {
		if kind := a.String(); a.Type == tcaKind && (kind == "clsact" || kind == "ingress") {
			index = int(int32(binary.NativeEndian.Uint32(m[4:])))
		}
	}
	return index, a.Err()
}

func (r *reader) filters(ctx context.Context, conn *dump.Conn, l *model.Link, d direction) {
	var found []model.Program
	err := dump.Retry(ctx, func() error {
		found = nil
		return conn.Each(unix.RTM_GETTFILTER, tcRequest(l.Index, d.parent), unix.RTM_NEWTFILTER, func(m []byte) error {
			p, err := decodeFilter(m)
			if p.Handle != 0 {
				found = append(found, p)
			}
			return err
		})
	})
	switch {
	case err == nil, errors.Is(err, dump.ErrInterrupted):
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		// The link is gone, or its qdisc has no such hook.
		return
	default:
		r.errs = append(r.errs, fmt.Errorf("list tc filters of %s: %w", l.Name, err))
		return
	}
	for _, p := range found {
		r.add(l, d.model, p)
	}
}

// decodeFilter reads an RTM_NEWTFILTER message. One without a handle stands for
// all filters of a priority, which follow; so does a table of u32's, and gets
// none here.
func decodeFilter(m []byte) (model.Program, error) {
	a := dump.ParseAfter(m, sizeofTCMsg)
	if err := a.Err(); err != nil {
		return model.Program{}, err
	}
	p := model.Program{Kind: model.ProgramTC, Handle: binary.NativeEndian.Uint32(m[8:]),
		Priority: uint16(binary.NativeEndian.Uint32(m[16:]) >> 16)}
	var options []byte
	for a.Next() {
		switch a.Type {
		case tcaKind:
			p.Filter = a.String()
		case tcaOptions:
			options = a.Data
		}
	}
	const u32Node = 0xfff
	switch {
	case p.Filter == "u32" && p.Handle&u32Node == 0:
		p.Handle = 0
		return p, a.Err()
	case p.Filter != "bpf":
		return p, a.Err()
	}
	o := dump.Parse(options)
	classic, direct := false, false
	for o.Next() {
		switch o.Type {
		case tcaBPFOps:
			classic = true
		case tcaBPFFlags:
			direct = o.Uint32()&bpfActDirect != 0
		case tcaBPFName:
			p.Name = o.String()
		case tcaBPFID:
			p.ID = o.Uint32()
		}
	}
	p.Classic = classic && direct
	return p, cmp.Or(a.Err(), o.Err())
}

// names are the programs' names by their numbers; one that could not be asked
// for is empty.
type names struct {
	by map[uint32]string
	// refused says that the rights do not reach.
	refused error
}

// of asks for a program's name, once. A program that is gone has none.
func (n *names) of(id uint32) string {
	if name, ok := n.by[id]; ok {
		return name
	}
	name := ""
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	switch {
	case errors.Is(err, unix.EPERM):
		n.refused = &model.UnsupportedError{Feature: "name BPF programs", Remedy: "with CAP_SYS_ADMIN", Err: err}
	case err == nil:
		defer p.Close()
		if info, err := p.Info(); err == nil {
			name = info.Name
		}
	}
	if n.by == nil {
		n.by = map[uint32]string{}
	}
	n.by[id] = name
	return name
}
