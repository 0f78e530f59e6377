package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
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
	// alive is false if the link is gone, or if the programs were detached.
	alive() bool
}

// attacher is a mechanism that attaches the programs to a link. attach runs in
// the link's network namespace.
type attacher interface {
	mode() string
	attach(index int) (hook, error)
}

// tcx is the attacher for Linux 6.6 and later. The programs run before every
// other program of the hook, so they see every packet, and pass each one on.
// They are detached when the process ends.
//
// Attaching and detaching wait for an RCU grace period, some milliseconds.
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

// loopback is the index of lo in every network namespace.
const loopback = 1

// probeTCX queries the programs on lo, which kernels without tcx reject.
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

// attachments are the links that the programs are attached to.
type attachments struct {
	by attacher
	// changing is held while links are attached and detached, which takes
	// seconds for many. mu guards the fields below.
	changing sync.Mutex
	mu       sync.Mutex
	on       map[int]hook
	failed   map[int]error
	pending  int // links still to attach
}

func newAttachments(by attacher) *attachments {
	return &attachments{by: by, on: map[int]hook{}, failed: map[int]error{}}
}

func (a *attachments) get(index int) hook {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.on[index]
}

// Attach replaces the set of watched links, attaching to uplinks first. A link
// that vanished meanwhile is no error. If attaching to a link fails, Attach goes
// on with the others and returns the errors joined.
//
// Each link takes some milliseconds. Other methods can be called meanwhile:
// Close makes Attach return early, and Sources reports the progress.
func (e *Engine) Attach(want []Link) error {
	a := e.attached
	a.changing.Lock()
	defer a.changing.Unlock()

	errs := []error{e.detachOthers(want)}
	want = slices.Clone(want)
	slices.SortStableFunc(want, func(x, y Link) int {
		return -cmp.Compare(flag(x.Uplink), flag(y.Uplink))
	})
	err := e.ns.Do(func() error {
		for i, k := range want {
			if e.closed.Load() {
				return fmt.Errorf("attach to links: %w", unix.EBADF)
			}
			err := e.attachOne(k)
			a.mu.Lock()
			a.pending = len(want) - i - 1
			if err != nil {
				a.failed[k.Index] = err
				errs = append(errs, err)
			}
			a.mu.Unlock()
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// detachOthers detaches from links that are not in want and removes links that
// are gone.
func (e *Engine) detachOthers(want []Link) error {
	a := e.attached
	a.mu.Lock()
	a.failed, a.pending = map[int]error{}, len(want)
	on := maps.Clone(a.on)
	a.mu.Unlock()

	wanted := make(map[int]bool, len(want))
	for _, k := range want {
		wanted[k.Index] = true
	}
	var errs []error
	for index, h := range on {
		if wanted[index] && h.alive() {
			continue
		}
		errs = append(errs, h.Close())
		a.mu.Lock()
		delete(a.on, index)
		a.mu.Unlock()
		errs = append(errs, e.removeLink(index))
	}
	return errors.Join(errs...)
}

func (e *Engine) attachOne(k Link) error {
	if k.Index <= 0 {
		return fmt.Errorf("attach to link %q: no such index: %d", k.Name, k.Index)
	}
	// A program looks up its link, so the table comes first.
	if err := e.setLink(k); err != nil {
		return err
	}
	a := e.attached
	if a.get(k.Index) != nil {
		return nil
	}
	h, err := a.by.attach(k.Index)
	if err == nil {
		a.mu.Lock()
		a.on[k.Index] = h
		a.mu.Unlock()
		return nil
	}
	removed := e.removeLink(k.Index)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return removed
	}
	return errors.Join(loadError("attach to link "+k.Name, err, false), removed)
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
	if a.pending > 0 {
		s.Status = model.Partial
		s.Detail += fmt.Sprintf("; not yet on %d", a.pending)
	}
	for _, index := range slices.Sorted(maps.Keys(a.failed)) {
		s.Status = model.Partial
		s.Detail += "; " + a.failed[index].Error()
	}
	if len(a.on) == 0 {
		s.Status = model.Missing
	}
	return s
}
