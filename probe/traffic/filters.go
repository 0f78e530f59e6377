package traffic

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns"
)

// Our filters are known by their name and by their handle, which holds the
// number of the lasthop that made them. Another program that shares a priority
// with us gets the handles 1, 2, 3, …
const (
	filterName   = "lasthop_stub"
	filterHandle = 0x4c480000 // "LH"
	// madeQdisc in a filter's name says that a lasthop made its clsact qdisc.
	madeQdisc = filterName + "+clsact"
)

// hooks are the classes of clsact: what comes in, what goes out.
var hooks = [...]uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS}

// filter is a tc filter.
type filter struct {
	kind               string
	handle             uint32
	priority, protocol uint16
	chain              uint32
	// name and program are those of a filter of the kind bpf.
	name    string
	program uint32
}

// number returns the number of the lasthop that the filter belongs to, 0 if it is
// foreign.
func (f *filter) number() uint16 {
	if f.kind != "bpf" || f.handle&^0xffff != filterHandle || !strings.HasPrefix(f.name, filterName) {
		return 0
	}
	return uint16(f.handle)
}

func (f *filter) String() string {
	what := "tc filter " + f.kind
	if f.name != "" {
		what = "tc program " + f.name
	}
	return fmt.Sprintf("%s (pref %d)", what, f.priority)
}

// hooked are the filters of a link's clsact qdisc, by hook, in the order in which
// they run.
type hooked [len(hooks)][]filter

// foreign reports whether the qdisc has a filter that is of no lasthop.
func (h *hooked) foreign() bool {
	return h.any(func(f *filter) bool { return f.number() == 0 })
}

func (h *hooked) any(match func(*filter) bool) bool {
	for _, list := range h {
		for i := range list {
			if match(&list[i]) {
				return true
			}
		}
	}
	return false
}

// rtnl reads and changes qdiscs and filters of one network namespace. Reading is
// its own, since the library decodes every qdisc and action there is.
type rtnl struct {
	change *netlink.Handle
	read   map[int]*nl.SocketHandle
}

func openRTNL(ns *netns.NS) (*rtnl, error) {
	r := &rtnl{}
	err := ns.Do(func() (err error) {
		if r.change, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		s, err := nl.GetNetlinkSocketAt(vnetns.None(), vnetns.None(), unix.NETLINK_ROUTE)
		if err != nil {
			r.change.Close()
			return err
		}
		if err := errors.Join(s.SetReceiveTimeout(&nl.SocketTimeoutTv), s.SetSendTimeout(&nl.SocketTimeoutTv)); err != nil {
			r.change.Close()
			s.Close()
			return err
		}
		r.read = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return r, nil
}

func (r *rtnl) close() {
	r.change.Close()
	for _, s := range r.read {
		s.Close()
	}
}

// ask sends a request of struct tcmsg and returns the messages of the reply. A
// dump is repeated if what it lists changed meanwhile.
func (r *rtnl) ask(request int, flags int, about nl.TcMsg, reply uint16) ([][]byte, error) {
	const attempts = 8
	var list [][]byte
	var err error
	for range attempts {
		req := nl.NewNetlinkRequest(request, flags)
		req.Sockets = r.read
		req.AddData(&about)
		if list, err = req.Execute(unix.NETLINK_ROUTE, reply); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// decode calls each with the attributes of a message about a qdisc or filter.
func decode(m []byte, each func(attr int, value []byte) error) (nl.TcMsg, error) {
	if len(m) < nl.SizeofTcMsg {
		return nl.TcMsg{}, fmt.Errorf("tc message of %d bytes: %w", len(m), unix.EBADMSG)
	}
	return *nl.DeserializeTcMsg(m), decodeAttrs(m[nl.SizeofTcMsg:], each)
}

func decodeAttrs(b []byte, each func(attr int, value []byte) error) error {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		if err := each(int(a.Attr.Type&nl.NLA_TYPE_MASK), a.Value); err != nil {
			return err
		}
	}
	return nil
}

func uint32Of(b []byte) (uint32, error) {
	if len(b) < 4 {
		return 0, unix.EBADMSG
	}
	return nl.NativeEndian().Uint32(b), nil
}

// clsactHandle is the handle of the qdiscs clsact and ingress, of which a link has
// at most one.
const clsactHandle = 0xffff << 16

// qdiscs returns the kind of what has the place of clsact, by link.
func (r *rtnl) qdiscs() (map[int]string, error) {
	list, err := r.ask(unix.RTM_GETQDISC, unix.NLM_F_DUMP, nl.TcMsg{}, unix.RTM_NEWQDISC)
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	out := map[int]string{}
	for _, m := range list {
		kind := ""
		head, err := decode(m, func(attr int, v []byte) error {
			if attr == nl.TCA_KIND {
				kind = unix.ByteSliceToString(v)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list qdiscs: %w", err)
		}
		if head.Handle == clsactHandle {
			out[int(head.Ifindex)] = kind
		}
	}
	return out, nil
}

// filters lists the filters of a link's hook. There are none where the link or the
// qdisc is not.
func (r *rtnl) filters(index int, hook uint32) ([]filter, error) {
	list, err := r.ask(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, nl.TcMsg{Ifindex: int32(index), Parent: hook}, unix.RTM_NEWTFILTER)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list tc filters: %w", err)
	}
	var out []filter
	for _, m := range list {
		f, err := decodeFilter(m)
		if err != nil {
			return nil, fmt.Errorf("list tc filters: %w", err)
		}
		// A message without a handle stands for all of one priority.
		if f.handle != 0 {
			out = append(out, f)
		}
	}
	return out, nil
}

func decodeFilter(m []byte) (filter, error) {
	var f filter
	var options []byte
	head, err := decode(m, func(attr int, v []byte) (err error) {
		switch attr {
		case nl.TCA_KIND:
			f.kind = unix.ByteSliceToString(v)
		case nl.TCA_CHAIN:
			f.chain, err = uint32Of(v)
		case nl.TCA_OPTIONS:
			options = v
		}
		return err
	})
	f.handle = head.Handle
	f.priority, f.protocol = uint16(head.Info>>16), nl.Swap16(uint16(head.Info))
	if err != nil || f.kind != "bpf" {
		return f, err
	}
	return f, decodeAttrs(options, func(attr int, v []byte) (err error) {
		switch attr {
		case nl.TCA_BPF_NAME:
			f.name = unix.ByteSliceToString(v)
		case nl.TCA_BPF_ID:
			f.program, err = uint32Of(v)
		}
		return err
	})
}

// hooked lists the filters of both hooks of a link.
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

// exists reports whether there is a link of that index.
func (r *rtnl) exists(index int) (bool, error) {
	_, err := r.change.LinkByIndex(index)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	return err == nil, err
}

// absent reports whether a dump of filters failed since the link (ENODEV) or the
// qdisc (EINVAL) is not there.
func absent(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}

func qdiscOf(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: clsactHandle, Parent: netlink.HANDLE_CLSACT}}
}

// addQdisc makes a clsact qdisc. The error is EEXIST if there is one, or the qdisc
// ingress.
func (r *rtnl) addQdisc(index int) error {
	return unlessBusy(func() error { return r.change.QdiscAdd(qdiscOf(index)) })
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

func (f *filter) message(index int, hook uint32) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Handle: f.handle, Parent: hook, Priority: f.priority, Protocol: f.protocol},
		Name:        f.name, Fd: -1, DirectAction: true,
	}
}

func (r *rtnl) addFilter(index int, hook uint32, f *filter, program int) error {
	m := f.message(index, hook)
	m.Fd = program
	return r.change.FilterAdd(m)
}

func (r *rtnl) removeFilter(index int, hook uint32, f *filter) error {
	err := r.change.FilterDel(f.message(index, hook))
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

// remove removes the filters of one lasthop from the links that on selects, and
// the clsact qdiscs that a lasthop made, if no other lasthop uses them. As long
// as another program has a filter on any link of the node, all qdiscs stay: it
// may be about to use them, as Cilium is between making qdisc and filter.
func (r *rtnl) remove(number uint16, on func(index int) bool) error {
	all, err := r.all()
	if err != nil {
		return err
	}
	foreign := false
	for _, h := range all {
		foreign = foreign || h.foreign()
	}
	var errs []error
	for index, h := range all {
		if on(index) && h.any(func(f *filter) bool { return f.number() == number }) {
			errs = append(errs, r.removeFrom(index, number, !foreign))
		}
	}
	return errors.Join(errs...)
}

// removeEmpty removes the clsact qdisc of a link if nobody has a filter there, nor
// any other program on the node. Link 0 is none.
func (r *rtnl) removeEmpty(index int) error {
	all, err := r.all()
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.foreign() {
			return nil
		}
	}
	h, there := all[index]
	if !there || h.any(func(*filter) bool { return true }) {
		return nil
	}
	return r.removeQdisc(index)
}

func (r *rtnl) removeFrom(index int, number uint16, qdiscs bool) error {
	// Listed again, so that as little time as possible passes before the qdisc
	// goes, and all its filters with it.
	h, err := r.hooked(index)
	if err != nil {
		return err
	}
	others := h.any(func(f *filter) bool { return f.number() != number })
	if qdiscs && !others && h.any(func(f *filter) bool { return f.name == madeQdisc }) {
		return r.removeQdisc(index)
	}
	var errs []error
	for i, list := range h {
		for f := range slices.Values(list) {
			if f.number() == number {
				errs = append(errs, r.removeFilter(index, hooks[i], &f))
			}
		}
	}
	return errors.Join(errs...)
}
