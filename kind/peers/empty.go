package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/lasthop/lasthop/probe/netns"
)

// emptyHooks attaches a program that does nothing where lasthop attaches its own: the
// least that any program costs there.
func emptyHooks() (stop func() error, err error) {
	const unspec = -1 // TC_ACT_UNSPEC
	return empty(&ebpf.ProgramSpec{Type: ebpf.SchedCLS}, unspec, func(p *ebpf.Program) (links []link.Link, err error) {
		ns, err := netns.Named(node)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		err = ns.Do(func() error {
			for _, name := range []string{"veth-client", "veth-server"} {
				at, err := net.InterfaceByName(name)
				if err != nil {
					return err
				}
				for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
					l, err := link.AttachTCX(link.TCXOptions{Interface: at.Index, Program: p, Attach: hook})
					if err != nil {
						return err
					}
					links = append(links, l)
				}
			}
			return nil
		})
		return links, err
	})
}

// emptyTracepoint does so where packets are dropped.
func emptyTracepoint() (stop func() error, err error) {
	spec := &ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "kfree_skb"}
	return empty(spec, 0, func(p *ebpf.Program) ([]link.Link, error) {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return nil, err
		}
		return []link.Link{l}, nil
	})
}

// empty loads a program that only returns a value, and attaches it.
func empty(spec *ebpf.ProgramSpec, value int32, attach func(*ebpf.Program) ([]link.Link, error)) (stop func() error, err error) {
	spec.License = "Dual MIT/GPL"
	spec.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, value), asm.Return()}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return nil, fmt.Errorf("load an empty program: %w", err)
	}
	links, err := attach(p)
	stop = func() error {
		errs := []error{p.Close()}
		for _, l := range links {
			errs = append(errs, l.Close())
		}
		return errors.Join(errs...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach an empty program: %w", err), stop())
	}
	return stop, nil
}
