package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// The mechanisms that attach the programs to links.
const (
	AttachTCX    = "tcx"    // Linux 6.6 and later
	AttachClsact = "clsact" // every kernel
	// AttachAuto is tcx where the kernel has it, unless links are many and clsact does no harm: see clsactHarmless.
	AttachAuto = "auto"
)

// attacher is a mechanism that attaches the programs to links. Its methods run in
// the links' network namespace, and not at the same time.
type attacher interface {
	mode() string
	attach(Link) error
	// detach detaches from links. Those that are gone are no error.
	detach(indices []int) error
	// changed returns the links of these that may have been changed by others since the last call.
	changed(indices []int) ([]int, error)
	// check looks at what others did to the programs on a link.
	check(index int) (trouble, error)
	// close is called when everything is detached.
	close() error
}

// mostTCX is the most links that AttachAuto attaches to by tcx if it could do otherwise. Each takes two RCU grace
// periods, 20 to 28 ms on Linux 6.18 at 250 Hz, so all take less than half a second.
const mostTCX = 16

// chooseAttacher returns what attaches to the links. It runs in their namespace.
func (e *Engine) chooseAttacher(links []Link) (attacher, error) {
	programs := [len(hooks)]*ebpf.Program{e.coll.Programs[bpf.TCProgLasthopIngress], e.coll.Programs[bpf.TCProgLasthopEgress]}
	byTCX := e.cfg.Attach == AttachTCX
	if e.cfg.Attach == AttachAuto && e.noTCX == nil {
		free, err := clsactHarmless(e.ns, links)
		if err != nil {
			return nil, err
		}
		byTCX = len(links) <= mostTCX || !free
	}
	if byTCX {
		return newTCX(programs), nil
	}
	return openClsact(e.ns, programs, e.noTCX == nil, e.cfg.Janitor)
}

// clsactHarmless reports whether attaching by clsact loses no packet, and counts
// all of them as tcx does, on a kernel that has both.
//
// To make or remove the qdisc, the kernel takes the link's other qdisc away for some 0.1 ms (dev_deactivate in
// qdisc_graft), and drops what would leave by the link meanwhile. So every link must have a clsact qdisc already.
// And none may have tcx programs of others, which run before clsact and may hide packets from it.
func clsactHarmless(ns *netns.NS, links []Link) (bool, error) {
	r, err := openRTNL(ns)
	if err != nil {
		return false, err
	}
	defer r.close()
	kinds, err := r.qdiscs()
	if err != nil {
		return false, err
	}
	for _, l := range links {
		if kinds[l.Index] != "clsact" {
			return false, nil
		}
		others, err := tcxBefore(l.Index, [len(hooks)]link.ID{})
		if err != nil && !errors.Is(err, unix.ENODEV) || len(others) > 0 {
			return false, err
		}
	}
	return true, nil
}

type attachments struct {
	// changing is held while links are attached and detached, which takes seconds for many. mu guards the fields
	// below; on and by change only while both are held.
	changing sync.Mutex
	mu       sync.Mutex
	by       attacher // nil until it is chosen, for the first links to attach to
	on       map[int]*attachment
	failed   map[int]error
	pending  map[int]bool // links still to attach
	looked   time.Time
	blind    error // why the last look failed
	gaps     []*gap
	gapsSeen uint64 // see model.Lost.Gaps
}

func (a *attachments) locked(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// AttachMode names the mechanism that attaches programs to links: AttachTCX or
// AttachClsact, or nothing before the first Attach.
func (e *Engine) AttachMode() (mode string) {
	e.locked(func() {
		if e.by != nil {
			mode = e.by.mode()
		}
	})
	return mode
}

// Attach replaces the set of watched links, attaching to uplinks first. A link that vanished meanwhile is no
// error. If attaching to a link fails, Attach goes on with the others and returns the errors joined.
//
// By tcx each link takes some milliseconds. Other methods can be called meanwhile:
// Close makes Attach return early, and Sources reports the progress.
//
// Links that it has not come to by a time, unless that is zero, stay pending: uplinks and those that are First never.
func (e *Engine) Attach(want []Link, until time.Time) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("attach to links: %w", unix.EBADF)
	}
	return e.ns.Do(func() error {
		if e.by == nil {
			by, err := e.chooseAttacher(want)
			if err != nil {
				return err
			}
			e.locked(func() { e.by = by })
		}
		return e.attachTo(want, until)
	})
}

// Pending are the links that are still to be attached to, by index.
func (e *Engine) Pending() (links map[int]bool) {
	e.locked(func() { links = maps.Clone(e.pending) })
	return links
}

func (e *Engine) attachTo(want []Link, until time.Time) error {
	e.locked(func() {
		e.failed, e.pending = map[int]error{}, model.Table(want, func(k *Link) (int, bool) { return k.Index, true })
	})
	others := maps.Clone(e.on)
	for _, k := range want {
		delete(others, k.Index)
	}
	errs := []error{e.detach(slices.Collect(maps.Keys(others)))}
	e.look(time.Now())
	want = slices.Clone(want)
	first := func(k Link) byte { return 2*flag(k.Uplink) + flag(k.First) }
	slices.SortStableFunc(want, func(x, y Link) int { return cmp.Compare(first(y), first(x)) })
	for _, k := range want {
		if e.closed.Load() {
			return fmt.Errorf("attach to links: %w", unix.EBADF)
		}
		if e.on[k.Index] == nil && first(k) == 0 && !until.IsZero() && time.Now().After(until) {
			continue
		}
		err := e.attachOne(k)
		errs = append(errs, err)
		e.locked(func() {
			delete(e.pending, k.Index)
			if err != nil {
				e.failed[k.Index] = err
			}
		})
	}
	return errors.Join(errs...)
}

func (e *Engine) detach(indices []int) error {
	if len(indices) == 0 {
		return nil
	}
	errs := []error{e.by.detach(indices)}
	for _, index := range indices {
		e.locked(func() {
			e.end(e.on[index], time.Now())
			delete(e.on, index)
		})
		errs = append(errs, e.removeLink(index))
	}
	return errors.Join(errs...)
}

func (e *Engine) attachOne(k Link) error {
	if k.Index <= 0 {
		return fmt.Errorf("attach to link %q: no link with index %d", k.Name, k.Index)
	}
	// A program looks up its link, so the table comes first.
	if err := e.setLink(k); err != nil {
		return err
	}
	if at := e.on[k.Index]; at != nil {
		at.link = k
		return nil
	}
	err := e.by.attach(k)
	if err == nil {
		e.locked(func() { e.on[k.Index] = &attachment{link: k} })
		return nil
	}
	removed := e.removeLink(k.Index)
	if vanished(err) {
		return removed
	}
	return errors.Join(loadError("attach to link "+k.Name, err, false), removed)
}

func vanished(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) }

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

// detachAll detaches from everything for good.
func (e *Engine) detachAll() error {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.by == nil {
		return nil
	}
	return e.ns.Do(func() error {
		if t, is := e.by.(*tcx); is && len(e.on) > mostTCX && e.cfg.Janitor != nil {
			t.handOver(e.ns, e.cfg.Janitor())
		}
		return errors.Join(e.detach(slices.Collect(maps.Keys(e.on))), e.by.close())
	})
}

func (a *attachments) source() model.Source {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := model.Source{Name: model.SourceTC, Status: model.Missing, Detail: "not attached to any link yet"}
	if a.by == nil {
		return s
	}
	s.Status, s.Detail = model.OK, a.by.mode()+" on "+model.Quantity(len(a.on), "link")
	add := func(format string, args ...any) {
		s.Status = model.Partial
		s.Detail += "; " + fmt.Sprintf(format, args...)
	}
	if n := len(a.pending); n > 0 {
		add("%d not attached yet", n)
	}
	for _, index := range slices.Sorted(maps.Keys(a.failed)) {
		add("%v", a.failed[index])
	}
	for _, text := range gapTexts(a.gaps) {
		add("%s", text)
	}
	if a.blind != nil {
		add("unknown whether other programs hide packets: %v", a.blind)
	}
	if len(a.on) == 0 {
		s.Status = model.Missing
	}
	return s
}
