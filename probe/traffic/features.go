package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Features tests each kernel feature that the engine needs by using it, in the
// node's network namespace. It leaves nothing loaded or attached.
func Features(ns *netns.NS) []model.Feature {
	// If this fails and matters, loading below fails too.
	_ = rlimit.RemoveMemlock()
	program := []cap.Value{cap.BPF, cap.PERFMON}
	return []model.Feature{
		feature("kernel", needs{5, 10, nil, ""}, tryKernel),
		feature("BTF", needs{5, 2, nil, "a kernel built with CONFIG_DEBUG_INFO_BTF"}, tryBTF),
		feature("BPF programs", needs{5, 10, rights, ""}, tryLoad),
		feature("attaching", needs{5, 10, rights, "before Linux 6.6: the kernel modules sch_ingress and cls_bpf"}, func() (string, error) { return tryAttach(ns) }),
		feature("ring buffer", needs{5, 8, []cap.Value{cap.BPF}, ""}, tryRing),
		feature("drop tracepoint", needs{5, 10, program, "a kernel built with CONFIG_DEBUG_INFO_BTF"}, tryDrops),
		leftBehind(ns),
		feature("kernel symbols", needs{5, 10, []cap.Value{cap.SYSLOG}, "sysctl kernel.kptr_restrict=1"}, trySymbols),
	}
}

func feature(name string, n needs, try func() (string, error)) model.Feature {
	detail, err := try()
	if err == nil {
		return model.Feature{Name: name, Status: model.OK, Detail: detail}
	}
	detail = err.Error()
	if errors.Is(err, unix.EPERM) {
		// The remedy says why; the library would guess.
		detail = unix.EPERM.Error()
	}
	return model.Feature{Name: name, Status: model.Missing, Detail: detail, Remedy: n.remedy(err)}
}

func tryKernel() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read kernel version: %w", err)
	}
	running := unix.ByteSliceToString(u.Release[:])
	if before(5, 10) {
		return "", fmt.Errorf("kernel %s is too old", running)
	}
	return running, nil
}

func tryBTF() (string, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return "", err
	}
	return model.Either(hasReason(types), "with drop reasons", "without drop reasons, which Linux 5.17 added"), nil
}

// withStub calls f with a program that passes every packet on: a stub without a program to call.
func withStub(f func(*ebpf.Program) error) error {
	coll, err := load("stub")
	if err != nil {
		return err
	}
	defer coll.Close()
	return f(coll.Programs[bpf.StubProgLasthopStubIn])
}

func tryLoad() (string, error) {
	if err := checkRights("load tc programs"); err != nil {
		return "", err
	}
	return "", withStub(func(*ebpf.Program) error { return nil })
}

// tryAttach attaches to the loopback, by clsact where the kernel has no tcx.
func tryAttach(ns *netns.NS) (detail string, err error) {
	err = withStub(func(p *ebpf.Program) error {
		programs := [len(hooks)]*ebpf.Program{p, p}
		var by attacher = newTCX(programs)
		noTCX := probeTCX(ns)
		if _, old := errors.AsType[*model.UnsupportedError](noTCX); old {
			detail = "; tcx needs Linux 6.6 or later"
			if by, err = openClsact(ns, programs, false, nil); err != nil {
				return err
			}
		} else if noTCX != nil {
			return noTCX
		}
		detail = by.mode() + detail
		return ns.Do(func() error {
			return errors.Join(by.attach(Link{Index: loopback, Name: "lo"}), by.detach([]int{loopback}), by.close())
		})
	})
	return detail, err
}

// leftBehind reports what killed lasthops left. Their filters pass every packet on, and the next Open removes them.
func leftBehind(ns *netns.NS) model.Feature {
	f, links := model.Feature{Name: "leftovers", Status: model.OK, Detail: "none"}, 0
	switch err := leftovers(ns, func(_ *rtnl, _ uint16, n int) error { links += n; return nil }); {
	case err != nil:
		f.Status, f.Detail = model.Missing, err.Error()
	case links > 0:
		f.Status, f.Remedy = model.Partial, "run any command that watches packets: it removes them"
		f.Detail = fmt.Sprintf("a killed lasthop left tc filters on %s; they pass all packets", model.Quantity(links, "link"))
	}
	return f
}

func tryRing() (string, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		return "", err
	}
	return "", m.Close()
}

// tryDrops attaches the drop program with no namespace to watch: it counts nothing.
func tryDrops() (string, error) {
	cfg := Config{MaxAddrs: 1, MaxLinks: 1, cpus: 1}
	spec, err := tcSpec(cfg)
	if err != nil {
		return "", err
	}
	spec.Programs = nil
	tc, err := ebpf.NewCollection(spec)
	if err != nil {
		return "", err
	}
	defer tc.Close()
	d, err := openDrops(tc, cfg)
	if err != nil {
		return "", err
	}
	return "", d.close()
}

func trySymbols() (string, error) {
	s := newSymbols()
	s.want(0)
	if err := s.resolve(); err != nil {
		return "", err
	}
	if !s.readable {
		return "", errors.New("hidden: all addresses are 0")
	}
	return "", nil
}

// MapSize is what the kernel says that a map takes, in bytes.
type MapSize struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
}

// MapSizes lists the maps of an engine in the node's namespace, the largest first. It attaches to no link.
func MapSizes(ns *netns.NS) (out []MapSize, err error) {
	e, err := Open(Config{NS: ns, KeepLeftovers: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return e.mapSizes()
}

func (e *Engine) mapSizes() (out []MapSize, err error) {
	colls := []*ebpf.Collection{e.coll}
	if e.drops != nil {
		colls = append(colls, e.drops.coll)
	}
	seen := map[ebpf.MapID]bool{}
	for _, coll := range colls {
		for name, m := range coll.Maps {
			info, err := m.Info()
			if err != nil {
				return nil, fmt.Errorf("read the size of map %s: %w", name, err)
			}
			id, _ := info.ID()
			n, ok := info.Memlock()
			if !ok && name == bpf.DropMapEvents {
				// Before Linux 6.4 the kernel does not tell a ring buffer's.
				n = uint64(m.MaxEntries())
			}
			if !seen[id] {
				out = append(out, MapSize{name, n})
			}
			seen[id] = true
		}
	}
	slices.SortFunc(out, func(a, b MapSize) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name)) })
	return out, nil
}
