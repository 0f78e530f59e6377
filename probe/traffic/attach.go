package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// hook is one link's programs, in both directions.
type hook interface {
	io.Closer
	// alive is false when the link is gone and has taken the programs
	// along, or somebody has removed them.
	alive() bool
}

// attacher is a mechanism that puts the programs on a link. attach is called
// inside the link's namespace.
type attacher interface {
	mode() string
	attach(index int) (hook, error)
}

// tcx is the attacher for Linux 6.6 and later. It goes before every other
// program of the hook, so that nothing is hidden from it; it hides nothing
// from them, and is gone with the process.
//
// The kernel waits for all CPUs, some milliseconds, whenever a program is
// added to a hook or removed.
type tcx struct {
	ingress, egress *ebpf.Program
}

func (t *tcx) mode() string { return "tcx" }

func (t *tcx) attach(index int) (hook, error) {
	in, err := attachTCX(index, t.ingress, ebpf.AttachTCXIngress)
	if err != nil {
		return nil, err
	}
	out, err := attachTCX(index, t.egress, ebpf.AttachTCXEgress)
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return tcxHook{in, out}, nil
}

func attachTCX(index int, p *ebpf.Program, where ebpf.AttachType) (link.Link, error) {
	return link.AttachTCX(link.TCXOptions{
		Interface: index,
		Program:   p,
		Attach:    where,
		Anchor:    link.Head(),
	})
}

type tcxHook [2]link.Link

func (h tcxHook) alive() bool {
	for _, l := range h {
		info, err := l.Info()
		if err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
			return false
		}
	}
	return true
}

func (h tcxHook) Close() error { return errors.Join(h[0].Close(), h[1].Close()) }

// loopback is the index that every namespace's has.
const loopback = 1

// probeTCX asks for the programs of the loopback, which every namespace has.
// Kernels without tcx do not know the question.
func probeTCX(ns *netns.NS) error {
	const feature = "attach tc programs by tcx"
	err := ns.Do(func() error {
		_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return refused(feature, err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return &model.UnsupportedError{Feature: feature, Remedy: "Linux 6.6 or later", Err: err}
	}
	return fmt.Errorf("%s: %w", feature, err)
}

// attachments are the links that programs are on.
type attachments struct {
	by     attacher
	mu     sync.Mutex
	on     map[int]hook
	failed map[int]error
	names  map[int]string // of what was last asked for
}

func newAttachments(by attacher) *attachments {
	return &attachments{by: by, on: map[int]hook{}}
}

// Attach makes the set of watched links equal to this one, uplinks first. A
// link that vanished meanwhile is no error; one that refuses the programs does
// not keep the others from getting them. Close ends it early.
func (e *Engine) Attach(want []Link) error {
	a := e.attached
	a.mu.Lock()
	defer a.mu.Unlock()

	a.failed, a.names = map[int]error{}, map[int]string{}
	for _, k := range want {
		a.names[k.Index] = k.Name
	}
	var errs []error
	for index, h := range a.on {
		if _, ok := a.names[index]; ok && h.alive() {
			continue
		}
		errs = append(errs, e.detach(index))
	}
	want = slices.Clone(want)
	slices.SortStableFunc(want, func(x, y Link) int {
		return -cmp.Compare(flag(x.Uplink), flag(y.Uplink))
	})
	err := e.ns.Do(func() error {
		for _, k := range want {
			if e.closed.Load() {
				return fmt.Errorf("attach to links: %w", unix.EBADF)
			}
			if err := e.attachOne(k); err != nil {
				a.failed[k.Index] = err
				errs = append(errs, err)
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func (e *Engine) attachOne(k Link) error {
	if k.Index <= 0 {
		return fmt.Errorf("attach to link %q: no such index: %d", k.Name, k.Index)
	}
	// The table comes first: a program must know its link.
	if err := e.setLink(k); err != nil {
		return err
	}
	if e.attached.on[k.Index] != nil {
		return nil
	}
	h, err := e.attached.by.attach(k.Index)
	if err == nil {
		e.attached.on[k.Index] = h
		return nil
	}
	removed := e.removeLink(k.Index)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		delete(e.attached.names, k.Index)
		return removed
	}
	return errors.Join(loadError("attach to link "+k.Name, err, false), removed)
}

func (e *Engine) detach(index int) error {
	err := e.attached.on[index].Close()
	delete(e.attached.on, index)
	return errors.Join(err, e.removeLink(index))
}

func (e *Engine) setLink(k Link) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.links.set(k, e.counters.forgetLink)
}

func (e *Engine) removeLink(index int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.links.remove(index)
}

func (a *attachments) source() model.Source {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := model.Source{
		Name:   model.SourceTC,
		Status: model.OK,
		Detail: fmt.Sprintf("%s on %d links", a.by.mode(), len(a.on)),
	}
	if len(a.on) == 0 {
		s.Status = model.Missing
	}
	var why []string
	for index, name := range a.names {
		if err := a.failed[index]; err != nil {
			why = append(why, err.Error())
		} else if a.on[index] == nil {
			why = append(why, "not yet on "+name)
		}
	}
	if len(why) > 0 {
		slices.Sort(why)
		if len(a.on) > 0 {
			s.Status = model.Partial
		}
		s.Detail += "; " + strings.Join(why, "; ")
	}
	return s
}

func (a *attachments) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, h := range a.on {
		errs = append(errs, h.Close())
	}
	a.on = map[int]hook{}
	return errors.Join(errs...)
}
