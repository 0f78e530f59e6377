package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
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

type filter dump.Filter

// number returns the number of the lasthop that the filter belongs to, 0 if it is foreign.
func (f filter) number() uint16 {
	ours := f.Kind == "bpf" && f.Handle&^0xffff == filterHandle && strings.HasPrefix(f.Name, filterName)
	return model.Either(ours, uint16(f.Handle), 0)
}

func (f filter) String() string {
	return fmt.Sprintf("%s (pref %d)", model.Either(f.Name != "", "tc program "+f.Name, "tc filter "+f.Kind), f.Priority)
}

// hooked are the filters of a link's clsact qdisc, by hook, in the order in which they run.
type hooked [len(hooks)][]filter

func (h hooked) foreign() bool { return h.any(func(f filter) bool { return f.number() == 0 }) }

func (h hooked) any(match func(filter) bool) bool {
	return slices.ContainsFunc(slices.Concat(h[:]...), match)
}

// rtnl reads and changes qdiscs and filters of one network namespace.
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

// qdiscs returns the kind of what has the place of clsact, by link.
func (r *rtnl) qdiscs() (map[int]string, error) { return dump.Clsact(context.Background(), r.read) }

// filters lists the filters of a link's hook. There are none where the link (ENODEV) or the qdisc (EINVAL) is not.
func (r *rtnl) filters(index int, hook uint32) ([]filter, error) {
	list, err := dump.Filters(context.Background(), "list tc filters", r.read, index, hook)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return model.Map(list, func(f dump.Filter) filter { return filter(f) }), err
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
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: dump.ClsactHandle, Parent: netlink.HANDLE_CLSACT}}
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
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Handle: f.Handle, Parent: hook, Priority: f.Priority, Protocol: f.Protocol},
		Name:        f.Name, Fd: program, DirectAction: true,
	}
}

func (r *rtnl) removeFilter(index int, hook uint32, f filter) error {
	err := r.change.FilterDel(f.message(index, hook, -1))
	if err == nil {
		return nil
	}
	// It may be gone, with its link, or with its qdisc, which is EINVAL.
	left, failed := r.filters(index, hook)
	if failed == nil && !slices.ContainsFunc(left, func(l filter) bool { return l.Handle == f.Handle && l.Priority == f.Priority }) {
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
	if qdiscs && !others && h.any(func(f filter) bool { return f.Name == madeQdisc }) {
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
