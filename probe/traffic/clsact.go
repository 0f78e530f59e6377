package traffic

import (
	"errors"
	"fmt"
	"math"
	"os/exec"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// clsact is the attacher for every kernel: filters of the clsact qdisc, which is made where there is none. It needs
// some microseconds a link. Each filter is a stub, which calls the programs through an array: see stub.bpf.c.
//
// Filters outlive their process, so a janitor removes them if this one is killed,
// and so does the next Open if both are.
type clsact struct {
	net     *rtnl
	stub    *ebpf.Collection
	ids     [len(hooks)]uint32 // of the stub's programs, by hook
	number  *number
	janitor *janitor
	news    *news
	// tcx says that the kernel has tcx, whose programs run before ours.
	tcx bool
	// present are the qdiscs that were there, nil if they were not listed.
	present map[int]string
}

var stubs = [...]string{bpf.StubProgLasthopStubIn, bpf.StubProgLasthopStubOut}

// openClsact loads the stub and lets it call the programs, which are ordered by hook. janitor may be nil.
func openClsact(ns *netns.NS, programs [len(hooks)]*ebpf.Program, tcx bool, janitor func() *exec.Cmd) (_ *clsact, err error) {
	c := &clsact{tcx: tcx}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("attach by clsact: %w", err), c.close())
		}
	}()
	if c.net, err = openRTNL(ns); err != nil {
		return nil, err
	}
	if c.stub, err = load("stub"); err != nil {
		return nil, err
	}
	for i, name := range stubs {
		info, err := c.stub.Programs[name].Info()
		if err != nil {
			return nil, err
		}
		id, _ := info.ID()
		c.ids[i] = uint32(id)
		if err := c.stub.Maps[bpf.StubMapLasthopEntries].Put(uint32(i), programs[i]); err != nil {
			return nil, err
		}
	}
	if c.number, err = takeNumber(ns, c.net); err != nil {
		return nil, err
	}
	if c.news, err = openNews(ns); err != nil {
		return nil, err
	}
	if janitor != nil {
		c.janitor, err = startJanitor(ns, janitor(), c.number.socket)
	}
	return c, err
}

func (c *clsact) mode() string { return AttachClsact }

// close makes the filters inert that are still attached, and ends the janitor.
func (c *clsact) close() error {
	var errs []error
	if c.stub != nil {
		c.stub.Close()
	}
	if c.janitor != nil {
		errs = append(errs, c.janitor.end())
	}
	if c.news != nil {
		errs = append(errs, c.news.Close())
	}
	// Last, so that a number is free only when no process acts in its name.
	if c.number != nil {
		errs = append(errs, c.number.socket.Close())
	}
	if c.net != nil {
		c.net.close()
	}
	return errors.Join(errs...)
}

func (c *clsact) attach(l Link) error {
	made, err := c.haveQdisc(l.Index)
	for i := 0; i < len(hooks) && err == nil; i++ {
		err = c.add(l.Index, i, made)
	}
	if made {
		err = errors.Join(err, c.janitor.making(0))
	}
	if err != nil {
		err = errors.Join(err, c.detach([]int{l.Index}))
	}
	return err
}

// haveQdisc makes a clsact qdisc if there is none.
func (c *clsact) haveQdisc(index int) (made bool, err error) {
	kind, err := c.qdisc(index)
	if err == nil && kind == "" {
		err = errors.Join(c.janitor.making(index), unlessBusy(func() error { return c.net.change.QdiscAdd(qdiscOf(index)) }))
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EEXIST):
			// Somebody else was faster.
			c.present = nil
			kind, err = c.qdisc(index)
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
			err = &model.UnsupportedError{Feature: "attach by clsact", Remedy: "needs the kernel modules sch_ingress and cls_bpf", Err: err}
		}
		err = errors.Join(err, c.janitor.making(0))
	}
	if err == nil && kind != "clsact" {
		// The qdisc ingress has the place of clsact, and no hook for egress: the
		// kernel would take our filter for egress, and run it on ingress.
		err = fmt.Errorf("another program's qdisc %s takes the place of clsact", kind)
	}
	return false, err
}

// qdisc returns the kind of what has the place of clsact on a link, if anything.
func (c *clsact) qdisc(index int) (_ string, err error) {
	if c.present == nil {
		if c.present, err = c.net.qdiscs(); err != nil {
			return "", err
		}
	}
	return c.present[index], nil
}

// Where other programs have no filter, ours gets an unusual priority:
// a filter of another protocol or kind cannot have the same one.
const usualPriority = 50

// add adds our filter to a hook, before those of others. Only where the first of
// these has priority 1 and is not of our kind, ours gets behind it: check tells.
func (c *clsact) add(index, hook int, made bool) error {
	var present []filter
	if !made {
		var err error
		if present, err = c.net.filters(index, hooks[hook]); err != nil {
			return err
		}
		made = slices.ContainsFunc(present, func(f filter) bool { return f.number() != 0 && f.Name == madeQdisc })
	}
	f := filter{
		Kind: "bpf", Name: model.Either(made, madeQdisc, filterName), Handle: filterHandle | uint32(c.number.n),
		Priority: freePriority(present), Protocol: unix.ETH_P_ALL,
	}
	return c.net.change.FilterAdd(f.message(index, hooks[hook], c.stub.Programs[stubs[hook]].FD()))
}

// freePriority returns a priority with which a filter that is added runs before those of others. At the same
// priority cls_bpf puts the newest first, but all must be of its kind and protocol.
func freePriority(present []filter) uint16 {
	first := uint16(math.MaxUint16)
	for i := range present {
		if f := &present[i]; f.number() == 0 && f.Chain == 0 {
			first = min(first, f.Priority)
		}
	}
	fits := func(p uint16) bool {
		return !slices.ContainsFunc(present, func(f filter) bool {
			return f.Priority == p && f.Chain == 0 && (f.Kind != "bpf" || f.Protocol != unix.ETH_P_ALL)
		})
	}
	switch {
	case first > usualPriority:
		return usualPriority
	case first > 1:
		return first - 1
	case fits(1):
		return 1
	}
	p := uint16(usualPriority)
	for !fits(p) {
		p++
	}
	return p
}

func (c *clsact) detach(indices []int) error {
	c.present = nil
	there, err := c.net.qdiscs()
	if err != nil {
		return err
	}
	// The kernel has removed the filters of links that are gone.
	indices = slices.DeleteFunc(slices.Clone(indices), func(i int) bool { return there[i] == "" })
	if len(indices) == 0 {
		return nil
	}
	return c.net.remove(c.number.n, func(index int) bool { return slices.Contains(indices, index) })
}

func (c *clsact) changed(indices []int) ([]int, error) {
	c.present = nil
	links, all, err := c.news.links()
	if err != nil || all || c.tcx {
		// There are no notifications about tcx.
		return indices, err
	}
	// Nor is there one about a link that was removed, and made anew.
	there, err := c.net.qdiscs()
	return slices.DeleteFunc(slices.Clone(indices), func(i int) bool { return !links[i] && there[i] != "" }), err
}

func (c *clsact) check(index int) (trouble, error) {
	h, err := c.net.hooked(index)
	if err != nil {
		return trouble{}, err
	}
	var t trouble
	for i, list := range h {
		at := slices.IndexFunc(list, func(f filter) bool { return f.number() == c.number.n && f.Program == c.ids[i] })
		if at < 0 {
			if there, err := c.net.exists(index); err != nil || !there {
				return trouble{gone: true}, err
			}
			t.lost = true
			continue
		}
		for _, f := range list[:at] {
			if f.number() == 0 && f.Chain == 0 {
				t.behind = append(t.behind, f.String())
			}
		}
	}
	if c.tcx {
		ahead, err := tcxBefore(index, [len(hooks)]link.ID{})
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return t, err
		}
		t.behind = append(t.behind, ahead...)
	}
	slices.Sort(t.behind)
	t.behind = slices.Compact(t.behind)
	return t, nil
}
