package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/claim"
	"github.com/lasthop/lasthop/probe/collect/program"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// tcx is the attacher for Linux 6.6 and later. The programs run before every other program of the hook, so they
// see every packet, and pass each one on. They are detached when the process ends.
//
// Attaching and detaching wait for an RCU grace period, some milliseconds. For many links, a process of our own does that
// at the end, whom nobody waits for.
type tcx struct {
	programs [len(hooks)]*ebpf.Program // by hook
	on       map[int]tcxLinks
	claim    *claim.Claim
	heir     *janitor // of the links, nil where this process detaches from them
}

// handOver has a command that calls Janitor hold the links as well, which end with it after this process. If it cannot be
// started, they end here.
func (t *tcx) handOver(ns *netns.NS, cmd *exec.Cmd) {
	var held []*os.File
	for _, to := range t.on {
		for _, l := range to.links {
			if fd, err := unix.FcntlInt(uintptr(l.(interface{ FD() int }).FD()), unix.F_DUPFD_CLOEXEC, 0); err == nil {
				held = append(held, os.NewFile(uintptr(fd), "link"))
				defer held[len(held)-1].Close()
			}
		}
	}
	// Those with fewer rights know the programs by the claim: it ends last.
	t.heir, _ = startJanitor(ns, cmd, append(slices.Clip(held), t.claim.Sockets...)...)
}

// tcxLinks are the attachments to one link, by hook, and their IDs.
type tcxLinks struct {
	links [len(hooks)]link.Link
	ids   [len(hooks)]link.ID
}

var tcxHooks = [len(hooks)]ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}

func newTCX(programs [len(hooks)]*ebpf.Program) *tcx {
	t := &tcx{programs: programs, on: map[int]tcxLinks{}}
	var ids []uint32
	for _, p := range programs {
		if info, err := p.Info(); err == nil {
			id, _ := info.ID()
			ids = append(ids, uint32(id))
		}
	}
	// Without it, a lasthop with fewer rights takes these programs for others'.
	t.claim, _ = claim.Take(ids...)
	return t
}

func (t *tcx) mode() string { return AttachTCX }

func (t *tcx) close() error {
	if t.heir != nil {
		return errors.Join(t.claim.Close(), t.heir.pipe.Close(), t.heir.cmd.Process.Release())
	}
	return t.claim.Close()
}

func (t *tcx) attach(l Link) error {
	var to tcxLinks
	for i, at := range tcxHooks {
		o := link.TCXOptions{Interface: l.Index, Program: t.programs[i], Attach: at, Anchor: link.Head()}
		attached, err := link.AttachTCX(o)
		if err != nil {
			return errors.Join(err, to.close())
		}
		to.links[i] = attached
		info, err := attached.Info()
		if err != nil {
			return errors.Join(err, to.close())
		}
		to.ids[i] = info.ID
	}
	t.on[l.Index] = to
	return nil
}

func (t *tcxLinks) close() error {
	var errs []error
	for _, l := range t.links {
		if l != nil {
			// A process that is just being started has a copy of the descriptor until it runs: closing ours would leave the
			// program on the link for as long. Where the kernel cannot detach, closing has to do.
			_ = l.Detach()
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

func (t *tcx) detach(indices []int) error {
	var errs []error
	for _, i := range indices {
		errs = append(errs, new(t.on[i]).close())
		delete(t.on, i)
	}
	return errors.Join(errs...)
}

// changed are all links: the kernel sends no notifications.
func (t *tcx) changed(indices []int) ([]int, error) { return indices, nil }

func (t *tcx) check(index int) (trouble, error) {
	ahead, err := tcxBefore(index, t.on[index].ids)
	switch {
	case errors.Is(err, unix.ENODEV):
		return trouble{gone: true}, nil
	case errors.Is(err, errNotAttached):
		return trouble{lost: true}, nil
	}
	return trouble{behind: ahead}, err
}

var errNotAttached = errors.New("not attached")

// tcxBefore names the tcx programs of others on a link that run before ours, whose attachments have these IDs; if
// they are 0, all that are there. The error is ENODEV if the link is gone, errNotAttached if one of ours is.
func tcxBefore(index int, ours [len(hooks)]link.ID) (names []string, err error) {
	for i, at := range tcxHooks {
		list, err := program.Attached(link.QueryOptions{Target: index, Attach: at})
		if err != nil {
			return nil, fmt.Errorf("list tcx programs: %w", err)
		}
		found := ours[i] == 0
		for _, p := range list {
			if id, ok := p.LinkID(); ok && id == ours[i] {
				found = true
				break
			}
			if name := foreign(p.ID); name != "" {
				names = append(names, "tcx program "+name)
			}
		}
		if !found {
			return nil, errNotAttached
		}
	}
	return names, nil
}

// foreign returns the name of a program that is not lasthop's, empty for one that is.
// The names of programs take CAP_SYS_ADMIN. Without it, it is the program's number.
func foreign(id ebpf.ProgramID) string {
	name, _ := program.Name(id)
	return model.Either(claim.Ours(name, uint32(id)), "", cmp.Or(name, fmt.Sprintf("with id %d", id)))
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// probeTCX queries the programs on lo, which kernels without tcx reject.
func probeTCX(ns *netns.NS) error {
	const feature = "attach tc programs by tcx"
	err := ns.Do(func() error {
		_, err := program.Attached(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
		return err
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return refused(feature, err)
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL):
		return &model.UnsupportedError{Feature: feature, Remedy: "needs Linux 6.6 or later; --attach clsact works before", Err: err}
	}
	return fmt.Errorf("%s: %w", feature, err)
}
