package traffic

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Features tests each kernel feature that the engine needs by using it, in the
// node's network namespace. It leaves nothing loaded or attached.
func Features(ns *netns.NS) []model.Feature {
	// If this fails and matters, loading below fails too.
	_ = rlimit.RemoveMemlock()
	return []model.Feature{
		feature("kernel", "Linux 5.10 or later", tryKernel),
		feature("BTF", "a kernel built with CONFIG_DEBUG_INFO_BTF", tryBTF),
		feature("BPF programs", "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN", tryLoad),
		feature("tcx", "Linux 6.6 or later; CAP_BPF and CAP_NET_ADMIN", func() (string, error) { return tryTCX(ns) }),
		feature("ring buffer", "Linux 5.8 or later; CAP_BPF", tryRing),
		feature("drop tracepoint", "CAP_BPF and CAP_PERFMON; BTF", tryDrops),
		feature("kernel symbols", "CAP_SYSLOG, or sysctl kernel.kptr_restrict=0", trySymbols),
	}
}

func feature(name, remedy string, try func() (string, error)) model.Feature {
	detail, err := try()
	if err != nil {
		return model.Feature{Name: name, Status: model.Missing, Detail: err.Error(), Remedy: remedy}
	}
	return model.Feature{Name: name, Status: model.OK, Detail: detail}
}

func tryKernel() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", fmt.Errorf("read kernel version: %w", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	code, err := features.LinuxVersionCode()
	if err != nil {
		return "", fmt.Errorf("read kernel version: %w", err)
	}
	if code < 5<<16|10<<8 {
		return "", fmt.Errorf("kernel %s is too old", release)
	}
	return release, nil
}

func tryBTF() (string, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return "", err
	}
	if hasReason(types) {
		return "with drop reasons", nil
	}
	return "without drop reasons, which Linux 5.17 added", nil
}

// withEmpty calls f with a program that does nothing.
func withEmpty(f func(*ebpf.Program) error) error {
	spec, err := bpf.LoadEmpty()
	if err != nil {
		return err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return err
	}
	defer coll.Close()
	return f(coll.Programs[bpf.EmptyProgLasthopEmpty])
}

func tryLoad() (string, error) {
	if err := checkRights("load tc programs"); err != nil {
		return "", err
	}
	return "", withEmpty(func(*ebpf.Program) error { return nil })
}

func tryTCX(ns *netns.NS) (string, error) {
	return "", withEmpty(func(p *ebpf.Program) error {
		return ns.Do(func() error {
			h, err := (&tcx{ingress: p, egress: p}).attach(loopback)
			if err != nil {
				return err
			}
			return h.Close()
		})
	})
}

func tryRing() (string, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		return "", err
	}
	return "", m.Close()
}

// tryDrops attaches the drop program with no namespace to watch: it counts
// nothing.
func tryDrops() (string, error) {
	cfg := Config{MaxAddrs: 1, MaxLinks: 1}
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
		return "", errors.New("hidden: every address reads as 0")
	}
	return "", nil
}
