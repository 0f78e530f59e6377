package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Our filters are known by their name and by their handle, which holds the number of the lasthop that made them.
// Another program that shares a priority with us gets the handles 1, 2, 3, …
const (
	filterName   = "lasthop_stub"
	filterHandle = 0x4c480000 // "LH"
	// madeQdisc in a filter's name says that a lasthop made its clsact qdisc.
	madeQdisc = filterName + "+clsact"
)

// hooks are the classes of clsact: what comes in, what goes out.
var hooks = [...]uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}

type filter struct {
	kind               string
	handle             uint32
	priority, protocol uint16
	chain              uint32
	// name and program are those of a filter of the kind bpf.
	name    string
	program uint32
}

// number returns the number of the lasthop that the filter belongs to, 0 if it is foreign.
func (f filter) number() uint16 {
	if f.kind != "bpf" || f.handle&^0xffff != filterHandle || !strings.HasPrefix(f.name, filterName) {
		return 0
	}
	return uint16(f.handle)
}

func (f filter) String() string {
	what := model.Either(f.name != "", "tc program "+f.name, "tc filter "+f.kind)
	return fmt.Sprintf("%s (pref %d)", what, f.priority)
}

// hooked are the filters of a link's clsact qdisc, by hook, in the order in which they run.
type hooked [len(hooks)][]filter

func (h hooked) foreign() bool { return h.any(func(f filter) bool { return f.number() == 0 }) }

func (h hooked) any(match func(filter) bool) bool {
	return slices.ContainsFunc(slices.Concat(h[:]...), match)
}

// rtnl reads and changes qdiscs and filters of one network namespace. Reading is
// its own, since the library decodes every qdisc and action there is.
type rtnl struct {
	read   *dump.Conn
	change *netlink.Handle
}

func openRTNL(ns *netns.NS) (*rtnl, error) {
	read, change, err := dump.Route(ns)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return &rtnl{read, change}, nil
}

func (r *rtnl) close() {
	r.change.Close()
	r.read.Close()
}

// clsactHandle is the handle of the qdiscs clsact and ingress, of which a link has at most one.
const clsactHandle = 0xffff << 16

// qdiscs returns the kind of what has the place of clsact, by link.
func (r *rtnl) qdiscs() (map[int]string, error) {
	out := map[int]string{}
	err := dump.Retry(context.Background(), "list qdiscs", func() error {
		clear(out)
		return r.read.Each(unix.RTM_GETQDISC, new(nl.TcMsg).Serialize(), unix.RTM_NEWQDISC, func(m []byte) error {
			a := dump.ParseAfter(m, nl.SizeofTcMsg)
			for a.Next() {
				if head := nl.DeserializeTcMsg(m); head.Handle == clsactHandle && a.Type == nl.TCA_KIND {
					out[int(head.Ifindex)] = a.String()
				}
			}
			return a.Err()
		})
	})
	return out, err
}

// filters lists the filters of a link's hook. There are none where the link (ENODEV) or the qdisc (EINVAL) is not.
func (r *rtnl) filters(index int, hook uint32) ([]filter, error) {
	about := (&nl.TcMsg{Ifindex: int32(index), Parent: hook}).Serialize()
	list, err := dump.List(context.Background(), "list tc filters", r.read, unix.RTM_GETTFILTER, about, unix.RTM_NEWTFILTER, decodeFilter)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return list, err
}

// decodeFilter decodes a message about a filter. One without a handle stands for all of one priority.
func decodeFilter(m []byte) (f filter, ok bool, err error) {
	a := dump.ParseAfter(m, nl.SizeofTcMsg)
	if err := a.Err(); err != nil {
		return f, false, err
	}
	head := nl.DeserializeTcMsg(m)
	f.handle, f.priority, f.protocol = head.Handle, uint16(head.Info>>16), nl.Swap16(uint16(head.Info))
	var options dump.Attrs
	for a.Next() {
		switch a.Type {
		case nl.TCA_KIND:
			f.kind = a.String()
		case nl.TCA_CHAIN:
			f.chain = a.Uint32()
		case nl.TCA_OPTIONS:
			options = a.Nested()
		}
	}
	for f.kind == "bpf" && options.Next() {
		switch options.Type {
		case nl.TCA_BPF_NAME:
			f.name = options.String()
		case nl.TCA_BPF_ID:
			f.program = options.Uint32()
		}
	}
	return f, f.handle != 0, cmp.Or(a.Err(), options.Err())
}

func (r *rtnl) hooked(index int) (h hooked, err error) {
	for i, hook := range hooks {
		if h[i], err = r.filters(index, hook); err != nil {
			return h, err
		}
	}
	return h, nil
}

// all lists the filters of every clsact qdisc, by link.
func (r *rtnl) all() (map[int]hooked, error) {
	kinds, err := r.qdiscs()
	if err != nil {
		return nil, err
	}
	out := map[int]hooked{}
	for index, kind := range kinds {
		if kind != "clsact" {
			continue
		}
		if out[index], err = r.hooked(index); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *rtnl) exists(index int) (bool, error) {
	_, err := r.change.LinkByIndex(index)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return false, nil
	}
	return err == nil, err
}

func qdiscOf(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: clsactHandle, Parent: netlink.HANDLE_CLSACT}}
}

// unlessBusy repeats a change of a qdisc as long as somebody else is listing or
// changing its filters, which is EBUSY since Linux 6.4.
func unlessBusy(change func() error) (err error) {
	const attempts = 100
	for range attempts {
		if err = change(); !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return err
}

// message describes a filter of a link's hook. program is a file descriptor.
func (f filter) message(index int, hook uint32, program int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Handle: f.handle, Parent: hook, Priority: f.priority, Protocol: f.protocol},
		Name:        f.name, Fd: program, DirectAction: true,
	}
}

func (r *rtnl) removeFilter(index int, hook uint32, f filter) error {
	err := r.change.FilterDel(f.message(index, hook, -1))
	if err == nil {
		return nil
	}
	// It may be gone, with its link, or with its qdisc, which is EINVAL.
	left, failed := r.filters(index, hook)
	if failed == nil && !slices.ContainsFunc(left, func(l filter) bool { return l.handle == f.handle && l.priority == f.priority }) {
		return nil
	}
	return errors.Join(fmt.Errorf("remove tc filter: %w", err), failed)
}

func (r *rtnl) removeQdisc(index int) error {
	err := unlessBusy(func() error { return r.change.QdiscDel(qdiscOf(index)) })
	if err == nil {
		return nil
	}
	left, failed := r.qdiscs()
	if _, there := left[index]; failed == nil && !there {
		return nil
	}
	return errors.Join(fmt.Errorf("remove clsact qdisc: %w", err), failed)
}

// remove removes the filters of one lasthop from the links that on selects, and the clsact qdiscs that a lasthop
// made, if no other lasthop uses them. As long as another program has a filter on any link of the node, all
// qdiscs stay: it may be about to use them, as Cilium is between making qdisc and filter.
func (r *rtnl) remove(number uint16, on func(index int) bool) error {
	all, err := r.all()
	if err != nil {
		return err
	}
	var errs []error
	for index, h := range all {
		if on(index) && h.any(func(f filter) bool { return f.number() == number }) {
			errs = append(errs, r.removeFrom(index, number, !anyForeign(all)))
		}
	}
	return errors.Join(errs...)
}

func anyForeign(all map[int]hooked) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(all)), hooked.foreign)
}

// removeEmpty removes the clsact qdisc of a link if there is no filter, nor
// any other program on the node. Link 0 is none.
func (r *rtnl) removeEmpty(index int) error {
	all, err := r.all()
	if err != nil {
		return err
	}
	if h, there := all[index]; !there || h.any(func(filter) bool { return true }) || anyForeign(all) {
		return nil
	}
	return r.removeQdisc(index)
}

func (r *rtnl) removeFrom(index int, number uint16, qdiscs bool) error {
	// Listed again, so that as little time as possible passes before the qdisc goes, and all its filters with it.
	h, err := r.hooked(index)
	if err != nil {
		return err
	}
	others := h.any(func(f filter) bool { return f.number() != number })
	if qdiscs && !others && h.any(func(f filter) bool { return f.name == madeQdisc }) {
		return r.removeQdisc(index)
	}
	var errs []error
	for i, list := range h {
		for _, f := range list {
			if f.number() == number {
				errs = append(errs, r.removeFilter(index, hooks[i], f))
			}
		}
	}
	return errors.Join(errs...)
}
