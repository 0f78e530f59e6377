package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// What tc programs return (linux/pkt_cls.h).
const (
	actUnspec = -1
	actOK     = 0
	actShot   = 2
)

// What XDP programs return (linux/bpf.h).
const (
	xdpDrop = 1
	xdpPass = 2
)

// guardName is what the programs of faults are called.
const guardName = "site_guard"

// wire is a number as a program sees it that loads it from a packet.
func wire(b []byte) int32 { return int32(binary.NativeEndian.Uint32(b)) }

// etherIPv4 is IPv4's EtherType, likewise.
var etherIPv4 = int32(binary.NativeEndian.Uint16([]byte{0x08, 0x00}))

// Offsets in struct __sk_buff and struct xdp_md.
const (
	skbProtocol = 16
	xdpData     = 0
	xdpDataEnd  = 4
)

// pass is a tc program that returns one verdict for all.
func pass(verdict int32) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}
}

// guard drops IPv4 and leaves the rest to others.
func guard() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbProtocol, asm.Word),
		asm.Mov.Imm(asm.R0, actUnspec),
		asm.JNE.Imm32(asm.R2, etherIPv4, "out"),
		asm.Mov.Imm(asm.R0, actShot),
		asm.Return().WithSymbol("out"),
	}
}

// guardXDP is guard for XDP.
func guardXDP() asm.Instructions {
	const header, etherType = 14, 12
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, xdpData, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, xdpDataEnd, asm.Word),
		asm.Mov.Imm(asm.R0, xdpPass),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, header),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R4, asm.R2, etherType, asm.Half),
		asm.JNE.Imm32(asm.R4, etherIPv4, "out"),
		asm.Mov.Imm(asm.R0, xdpDrop),
		asm.Return().WithSymbol("out"),
	}
}

// withProgram loads a program, cuts its name to what the kernel takes, and
// does something with it.
func withProgram(kind ebpf.ProgramType, name string, code asm.Instructions, f func(*ebpf.Program) error) error {
	const longest = 15
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, Name: name[:min(len(name), longest)], License: "GPL", Instructions: code})
	if err != nil {
		return fmt.Errorf("load program %s: %w", name, err)
	}
	defer p.Close()
	return f(p)
}

// hookParent is the class of clsact that stands for a direction.
func hookParent(d model.Direction) uint32 {
	if d == model.Ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// clsact is the qdisc of a link that holds such filters.
func clsact(l netlink.Link) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0)}}
}

// tcxHook is where tcx attaches programs for a direction.
func tcxHook(d model.Direction) ebpf.AttachType {
	if d == model.Ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// filter is a tc filter that holds a program.
func (sp *space) filter(link netlink.Link, d model.Direction, name string, priority uint16) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: link.Attrs().Index, Parent: hookParent(d), Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL},
		Name:        name, DirectAction: true,
	}
}

// attachTC puts a program on a link as a filter of clsact, which outlives this
// process.
func (sp *space) attachTC(link string, d model.Direction, name string, priority uint16, code asm.Instructions) error {
	return sp.withLink(link, "attach "+name+" to", func(l netlink.Link) error {
		if err := sp.nl.QdiscAdd(clsact(l)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return withProgram(ebpf.SchedCLS, name, code, func(p *ebpf.Program) error {
			f := sp.filter(l, d, name, priority)
			f.Fd = p.FD()
			return sp.nl.FilterAdd(f)
		})
	})
}

// detachTC takes such a filter away, and with the last one the qdisc.
func (sp *space) detachTC(link string, d model.Direction, name string, priority uint16) error {
	return sp.withLink(link, "detach "+name+" from", func(l netlink.Link) error {
		if err := sp.nl.FilterDel(sp.filter(l, d, name, priority)); err != nil {
			return err
		}
		for _, d := range []model.Direction{model.Ingress, model.Egress} {
			left, err := sp.nl.FilterList(l, hookParent(d))
			if err != nil || len(left) > 0 {
				return err
			}
		}
		return sp.nl.QdiscDel(clsact(l))
	})
}

// attachTCX puts a program behind those that a hook has, without a link, so
// that it outlives this process.
func (sp *space) attachTCX(link string, d model.Direction, name string, code asm.Instructions) error {
	return sp.withLink(link, "attach "+name+" to", func(l netlink.Link) error {
		return withProgram(ebpf.SchedCLS, name, code, func(p *ebpf.Program) error {
			return sp.ns.Do(func() error {
				return bpflink.RawAttachProgram(bpflink.RawAttachProgramOptions{Target: l.Attrs().Index, Program: p, Attach: tcxHook(d), Anchor: bpflink.Tail()})
			})
		})
	})
}

// detachTCX takes the program of that name from a hook.
func (sp *space) detachTCX(link string, d model.Direction, name string) error {
	return sp.withLink(link, "detach "+name+" from", func(l netlink.Link) error {
		return sp.ns.Do(func() error {
			found, err := bpflink.QueryPrograms(bpflink.QueryOptions{Target: l.Attrs().Index, Attach: tcxHook(d)})
			if err != nil {
				return err
			}
			for _, a := range found.Programs {
				if err := detachNamed(l.Attrs().Index, tcxHook(d), a.ID, name); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func detachNamed(index int, where ebpf.AttachType, id ebpf.ProgramID, name string) error {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name != name {
		return err
	}
	return bpflink.RawDetachProgram(bpflink.RawDetachProgramOptions{Target: index, Program: p, Attach: where})
}

// setXDP gives a link a program of the kernel's generic XDP, or with none
// takes it away.
func (sp *space) setXDP(link, name string, code asm.Instructions) error {
	return sp.withLink(link, "set XDP of", func(l netlink.Link) error {
		set := func(fd int) error {
			return sp.ns.Do(func() error { return netlink.LinkSetXdpFdWithFlags(l, fd, unix.XDP_FLAGS_SKB_MODE) })
		}
		if code == nil {
			return set(-1)
		}
		return withProgram(ebpf.XDP, name, code, func(p *ebpf.Program) error { return set(p.FD()) })
	})
}

// guardPriority is that of the faults' tc filters: behind a plugin's own.
const guardPriority = 100

// ciliumPriority is that of Cilium's filters.
const ciliumPriority = 1

// ciliumPrograms attaches what a Cilium node has on its links, once its pods
// are there.
func (b *builder) ciliumPrograms(n *scenario.Node, sp *space) error {
	if n.Datapath == "" {
		return nil
	}
	attach := func(link string, d model.Direction, section string, code asm.Instructions) error {
		if n.Datapath == scenario.DatapathTCX {
			return sp.attachTCX(link, d, section, code)
		}
		return sp.attachTC(link, d, section+"-"+link, ciliumPriority, code)
	}
	type hook struct {
		link, section string
		d             model.Direction
		code          asm.Instructions
	}
	fromNet, err := b.fromNetdev(n, sp)
	if err != nil {
		return err
	}
	hooks := []hook{
		{n.NIC, "cil_from_netdev", model.Ingress, fromNet},
		{n.NIC, "cil_to_netdev", model.Egress, pass(actOK)},
		{ciliumHostLink, "cil_to_host", model.Ingress, pass(actOK)},
		{ciliumHostLink, "cil_from_host", model.Egress, pass(actOK)},
	}
	for i := range n.Pods {
		p := &n.Pods[i]
		code, err := b.fromContainer(n, p, sp)
		if err != nil {
			return err
		}
		hooks = append(hooks, hook{p.Link, "cil_from_container", model.Ingress, code}, hook{p.Link, "cil_to_container", model.Egress, pass(actOK)})
	}
	for _, h := range hooks {
		if err := attach(h.link, h.d, h.section, h.code); err != nil {
			return err
		}
	}
	return nil
}

// fromNetdev is the program at the network card's ingress: with the redirect
// datapath it moves what is for a pod right into the pod's namespace.
func (b *builder) fromNetdev(n *scenario.Node, sp *space) (asm.Instructions, error) {
	if n.Datapath != scenario.DatapathRedirect {
		return pass(actOK), nil
	}
	deliver, err := toPods(n, "", sp)
	if err != nil {
		return nil, err
	}
	return append(loadDestination(), append(deliver, leave()...)...), nil
}

// fromContainer is the program at a pod's link: with the redirect datapath it
// moves packets to the node's other pods, and out by the network card those
// that keep the pod's address.
func (b *builder) fromContainer(n *scenario.Node, p *scenario.Pod, sp *space) (asm.Instructions, error) {
	if n.Datapath != scenario.DatapathRedirect {
		return pass(actOK), nil
	}
	deliver, err := toPods(n, p.Name, sp)
	if err != nil {
		return nil, err
	}
	nic, err := sp.link(n.NIC)
	if err != nil {
		return nil, err
	}
	code := append(loadDestination(), deliver...)
	own := n.IP.As4()
	code = append(code, asm.JEq.Imm32(asm.R7, wire(own[:]), "stack"))
	for i, out := range n.NonMasquerade {
		code = append(code, redirectNeigh(out, nic.Attrs().Index, fmt.Sprintf("beyond%d", i))...)
	}
	return append(code, leave()...), nil
}

// loadDestination keeps the packet in R6 and its IPv4 destination in R7; what
// has none goes on as it is.
func loadDestination() asm.Instructions {
	const destination, size = 14 + 16, 4
	return append(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbProtocol, asm.Word),
		asm.JNE.Imm32(asm.R2, etherIPv4, "stack"),
	}, append(loadBytes(destination, size), asm.LoadMem(asm.R7, asm.RFP, -8, asm.Word))...)
}

// leaveFirst has what is no TCP segment, and the first ones of a connection, go on as
// they are. It takes the IPv4 header to have no options.
func leaveFirst() asm.Instructions {
	const protocol, flags, tcp, syn = 14 + 9, 14 + 20 + 13, 6, 0x02
	code := append(loadBytes(protocol, 1), asm.LoadMem(asm.R2, asm.RFP, -8, asm.Byte), asm.JNE.Imm(asm.R2, tcp, "stack"))
	return append(append(code, loadBytes(flags, 1)...),
		asm.LoadMem(asm.R2, asm.RFP, -8, asm.Byte), asm.And.Imm(asm.R2, syn), asm.JNE.Imm(asm.R2, 0, "stack"))
}

// loadBytes copies bytes of the packet in R6 to the stack.
func loadBytes(offset, size int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, offset),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, size),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "stack"),
	}
}

// leave gives the packet to the kernel's own stack.
func leave() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, actOK).WithSymbol("stack"), asm.Return()}
}

// toPods redirects what is for one of the node's pods, but the one that is
// named, to the inner end of its link.
func toPods(n *scenario.Node, but string, sp *space) (asm.Instructions, error) {
	var code asm.Instructions
	for i, p := range n.Pods {
		if p.Name == but {
			continue
		}
		deliver, err := toPeer(&p, fmt.Sprintf("next%d", i), sp)
		if err != nil {
			return nil, err
		}
		code = append(code, deliver...)
	}
	return code, nil
}

// toPeer redirects what is for a pod to the inner end of its link, and goes on at
// the symbol next with the rest.
func toPeer(p *scenario.Pod, next string, sp *space) (asm.Instructions, error) {
	l, err := sp.link(p.Link)
	if err != nil {
		return nil, err
	}
	a := p.IP.As4()
	code := asm.Instructions{asm.JNE.Imm32(asm.R7, wire(a[:]), next)}
	for k, b := range append(p.MAC[:], l.Attrs().HardwareAddr...) {
		code = append(code, asm.StoreImm(asm.RFP, int16(k-24), int64(b), asm.Byte))
	}
	return append(code,
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 0), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -24),
		asm.Mov.Imm(asm.R4, 12), asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R1, int32(l.Attrs().Index)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Return(),
		// A jump needs somewhere to land.
		asm.Mov.Reg(asm.R7, asm.R7).WithSymbol(next)), nil
}

// redirectNeigh sends what is for a range out by a link, to the next hop that
// the node's routes name.
func redirectNeigh(to netip.Prefix, index int, next string) asm.Instructions {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-to.Bits()))
	a := to.Masked().Addr().As4()
	return asm.Instructions{
		asm.Mov.Reg(asm.R8, asm.R7),
		asm.And.Imm32(asm.R8, wire(mask)),
		asm.JNE.Imm32(asm.R8, wire(a[:]), next),
		asm.Mov.Imm(asm.R1, int32(index)), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 0), asm.Mov.Imm(asm.R4, 0),
		asm.FnRedirectNeigh.Call(), asm.Return(),
		asm.Mov.Reg(asm.R7, asm.R7).WithSymbol(next),
	}
}
