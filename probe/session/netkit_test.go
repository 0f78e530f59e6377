//go:build kernels

// Only some kernels have netkit: make test-kernels builds this and runs it there.

package session_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/session"
)

// TestNetkit has a program of a netkit pair drop what a pod sends, then what it is
// sent, and wants it named both times.
func TestNetkit(t *testing.T) {
	n := &node{ns: newNetns(t), pod: newNetns(t), peer: newNetns(t),
		podAddr: netip.MustParseAddr("100.64.9.2"), peerAddr: netip.MustParseAddr("198.18.0.2")}
	h := handle(t, n.ns)
	pair := &netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "podlink"}}
	pair.SetPeerAttrs(&netlink.LinkAttrs{Name: "eth0"})
	check(t, h.LinkAdd(pair))
	eth0, err := h.LinkByName("eth0")
	check(t, err)
	check(t, h.LinkSetNsFd(eth0, n.pod.FD()))
	introduce(t, h, n.pod, "podlink", "eth0", "100.64.9.1/24", "100.64.9.2/24")
	n.join(t, h, n.peer, "uplink", "far", "198.18.0.1/24", "198.18.0.2/24")
	check(t, h.RouteAdd(&netlink.Route{Gw: n.peerAddr.AsSlice()}))
	check(t, handle(t, n.pod).RouteAdd(&netlink.Route{Gw: net.IPv4(100, 64, 9, 1)}))
	check(t, n.ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	n.populate(t)
	primary, err := h.LinkByName("podlink")
	check(t, err)

	for _, tt := range []struct {
		direction model.Direction
		end       ebpf.AttachType
		from      *netns.NS
		to        netip.Addr
	}{
		{model.Ingress, ebpf.AttachNetkitPeer, n.pod, n.peerAddr},
		{model.Egress, ebpf.AttachNetkitPrimary, n.ns, n.podAddr},
	} {
		t.Run(string(tt.direction), func(t *testing.T) {
			const drop = 2
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Name: "netkit_guard", License: "GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()}})
			check(t, err)
			defer p.Close()
			var l link.Link
			check(t, n.ns.Do(func() (err error) {
				l, err = link.AttachNetkit(link.NetkitOptions{Interface: primary.Attrs().Index, Program: p, Attach: tt.end})
				return err
			}))
			defer l.Close()
			info, err := p.Info()
			check(t, err)
			id, _ := info.ID()
			var once sync.Once
			s, err := session.Observe(t.Context(), session.Options{Options: collect.Options{NS: n.ns, HostRoot: "/"}, For: 2 * time.Second,
				Progress: func(model.Window, time.Time) { once.Do(func() { sendTo(t, tt.from, tt.to) }) }})
			check(t, err)
			if s.Status(model.SourcePrograms) != model.OK {
				t.Errorf("the programs are not all known: %+v", s.Sources)
			}
			want := fmt.Sprintf("on podlink %s: netkit program netkit_guard, id %d", tt.direction, id)
			for _, f := range diagnose.Judge(s).Findings {
				for _, e := range f.Evidence {
					if f.Code == "BPFDrop" && strings.Contains(e.Text, want) {
						return
					}
				}
			}
			t.Errorf("no BPFDrop with %q in\n%+v\nprograms %+v\ndrops %+v", want, diagnose.Judge(s).Findings, s.Programs, s.Traffic.Drops)
		})
	}
}

// sendTo sends some datagrams.
func sendTo(t *testing.T, from *netns.NS, to netip.Addr) {
	if err := from.Do(func() error {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
		if err != nil {
			return err
		}
		defer c.Close()
		for range 8 {
			if _, err := c.Write([]byte("x")); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
