package traffic

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

func TestReasonNames(t *testing.T) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	names := reasonNames(types)
	if told := hasReason(types); told != (names != nil) {
		t.Fatalf("reasons: %v, names: %v", told, names)
	}
	found := map[model.Reason]bool{}
	for _, r := range names {
		found[r] = true
	}
	for _, r := range []model.Reason{unspecified, "NETFILTER_DROP", "NO_SOCKET"} {
		if names != nil && !found[r] {
			t.Errorf("%s is not among the reasons", r)
		}
	}
	if r := (&drops{}).given(2); r != "" {
		t.Errorf("without reasons: %s", r)
	}
}

// TestSubsystems: reasons of subsystems have names, those of a module from the time that it is loaded.
func TestSubsystems(t *testing.T) {
	enum := func(name string, first uint64, values ...string) *btf.Enum {
		e := &btf.Enum{Name: name, Size: 4}
		for i, v := range values {
			e.Values = append(e.Values, btf.EnumValue{Name: v, Value: first + uint64(i)})
		}
		return e
	}
	spec := func(types ...btf.Type) *btf.Spec {
		b, err := btf.NewBuilder(types, nil)
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.Spec()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	tracepoint := &btf.Typedef{Name: "btf_trace_kfree_skb", Type: &btf.Pointer{Target: &btf.FuncProto{
		Return: (*btf.Void)(nil), Params: make([]btf.FuncParam, kfreeParams)}}}
	for i := range kfreeParams {
		tracepoint.Type.(*btf.Pointer).Target.(*btf.FuncProto).Params[i].Type = &btf.Pointer{Target: (*btf.Void)(nil)}
	}
	const openvswitch, qdisc = 2 << 16, 3 << 16
	modules := map[string]*btf.Spec{"mac80211": spec(enum("mac80211_drop_reason", 0, "RX_QUEUED", "RX_CONTINUE"))}
	read := 0
	d := drops{
		names: reasonNames(spec(tracepoint, enum("skb_drop_reason", 0, "SKB_NOT_DROPPED_YET", "SKB_CONSUMED", "SKB_DROP_REASON_NOT_SPECIFIED"),
			enum("qdisc_drop_reason", qdisc, "__QDISC_DROP_REASON", "QDISC_DROP_GENERIC", "QDISC_DROP_OVERLIMIT"))),
		module: func(name string) (*btf.Spec, error) {
			if s := modules[name]; s != nil {
				read++
				return s, nil
			}
			return nil, os.ErrNotExist
		},
	}
	check := func(n uint32, want model.Reason) {
		t.Helper()
		if got := d.given(n); got != want {
			t.Errorf("reason %#x is %s, not %s", n, got, want)
		}
	}
	check(2, unspecified)
	check(qdisc|2, "QDISC_DROP_OVERLIMIT")
	check(openvswitch|9, "REASON_2_9")
	modules["openvswitch"] = spec(enum("ovs_drop_reason", openvswitch, "__OVS_DROP_REASON", "OVS_DROP_LAST_ACTION", "OVS_DROP_ACTION_ERROR"))
	check(openvswitch|1, "OVS_DROP_LAST_ACTION")
	check(openvswitch|2, "OVS_DROP_ACTION_ERROR")
	check(1, "SKB_CONSUMED")
	check(77, "REASON_0_77")
	check(openvswitch|9, "REASON_2_9")
	if read != 3 {
		t.Errorf("modules' types were read %d times", read)
	}
}

func TestDerive(t *testing.T) {
	const pointOfReturn = 0xffffffff81000010
	for _, tt := range []struct {
		name     string
		names    map[uint32]model.Reason
		release  uint32
		location string
		reason   uint32
		want     model.Reason
	}{
		{"for another host", nil, release(5, 10), "ip_rcv_core", unix.PACKET_OTHERHOST, "OTHERHOST"},
		{"with a wrong header", nil, release(5, 10), "ip_rcv_core", unix.PACKET_HOST, ""},
		{"no route", nil, release(5, 15), "ip_error", uint32(unix.ENETUNREACH) << 16, "IP_INNOROUTES"},
		{"a blackhole", nil, release(5, 10), "ip_error", uint32(unix.EINVAL) << 16, unspecified},
		{"no forwarding, or unreachable", nil, release(5, 10), "ip_error", uint32(unix.EHOSTUNREACH) << 16, ""},
		{"the last hop", nil, release(5, 10), "ip_forward", 1 << 8, "IP_INHDR"},
		{"too big", nil, release(5, 10), "ip_forward", 0, "PKT_TOO_BIG"},
		{"no room for a neighbour", nil, release(5, 10), "ip_finish_output2", 0, "NEIGH_CREATEFAIL"},
		{"the same of IPv6", nil, release(5, 15), "ip6_finish_output2", 0, "NEIGH_CREATEFAIL"},
		{"no room in a CPU's backlog", nil, release(5, 10), "enqueue_to_backlog", 0, "CPU_BACKLOG"},
		{"a function that nobody knows", nil, release(5, 10), "some_driver", 0, ""},
		{"a reason that the kernel gives", map[uint32]model.Reason{2: "IP_CSUM"}, release(6, 1), "icmpv6_rcv", 2, "IP_CSUM"},
		{"none that the kernel gives, delivered", map[uint32]model.Reason{2: unspecified}, release(6, 1), "icmpv6_rcv", 2, model.Consumed},
		{"the same, later", map[uint32]model.Reason{2: unspecified}, release(6, 12), "icmpv6_rcv", 2, unspecified},
		// The number is a reason's, and no packet's type.
		{"none that the kernel gives, lost", map[uint32]model.Reason{3: unspecified}, release(5, 16), "ip_rcv_core", 3, unspecified},
	} {
		d := &drops{names: tt.names, release: tt.release, symbols: newSymbols()}
		d.symbols.names[pointOfReturn] = tt.location
		if got := d.reason(&bpf.DropDropKey{Location: pointOfReturn, Reason: tt.reason}); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestSameReasons has packets freed for reasons that diagnose judges by. Whether
// the kernel gives them or not, they are the same.
func TestSameReasons(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	routed, blackhole, prohibited := netip.MustParseAddr("198.18.1.1"), netip.MustParseAddr("198.18.2.1"), netip.MustParseAddr("198.18.3.1")
	inside(t, ends.node, func() error {
		for _, r := range []netlink.Route{
			{Dst: single(routed), LinkIndex: ends.nodeLink.Index, Scope: netlink.SCOPE_LINK, MTU: 1000},
			{Dst: single(blackhole), Type: unix.RTN_BLACKHOLE},
			{Dst: single(prohibited), Type: unix.RTN_PROHIBIT},
		} {
			if err := netlink.RouteAdd(&r); err != nil {
				return err
			}
		}
		return nil
	})
	to := func(dst netip.Addr, change func(*layers.IPv4), payload int) []byte {
		ip := ip4(podIP, dst, layers.IPProtocolUDP)
		change(ip)
		return craft(t, &layers.Ethernet{SrcMAC: fixedMAC(podIP), DstMAC: fixedMAC(nodeIP), EthernetType: layers.EthernetTypeIPv4},
			ip, udp(), gopacket.Payload(make([]byte, payload)))
	}
	plain := func(*layers.IPv4) {}
	elsewhere := to(nodeIP, plain, 10)
	copy(elsewhere, fixedMAC(routed))
	packets := map[model.Reason][][]byte{
		"IP_INNOROUTES": {to(netip.MustParseAddr("203.0.113.9"), plain, 10)},
		unspecified:     {to(blackhole, plain, 10), to(prohibited, plain, 10)},
		"IP_INHDR":      {to(routed, func(ip *layers.IPv4) { ip.TTL = 1 }, 10)},
		"PKT_TOO_BIG":   {to(routed, func(ip *layers.IPv4) { ip.Flags = layers.IPv4DontFragment }, 1200)},
		"OTHERHOST":     {elsewhere},
		"NO_SOCKET":     {to(nodeIP, plain, 10)},
	}
	want := map[model.Reason]uint64{}
	var sum uint64
	for r, list := range packets {
		want[r] = uint64(len(list))
		sum += want[r]
		for _, p := range list {
			ends.sendFrame(t, p)
		}
	}
	got := map[model.Reason]uint64{}
	for _, d := range dropped(t, e, sum).Drops {
		got[d.Reason] += d.Packets
	}
	for r, n := range want {
		if got[r] != n {
			t.Errorf("%s: %d packets, want %d", r, got[r], n)
		}
	}
	if t.Failed() {
		t.Logf("drops %+v", e.Traffic().Drops)
	}
}

// TestDeliveredIsNoDrop: Linux before 6.3 frees ICMPv6 and IGMP as if they were
// lost, once they were handled.
func TestDeliveredIsNoDrop(t *testing.T) {
	ends := newRouter(t)
	nodeIP6, podIP6 := netip.MustParseAddr("fd00:77::1"), netip.MustParseAddr("fd00:77::2")
	address(t, ends.node, ends.nodeLink, nodeIP6)
	address(t, ends.pod, ends.podLink, podIP6)
	e := ends.watched(t, Config{})
	if err := e.SetLocal([]Local{{Addr: podIP}, {Addr: podIP6}, {Addr: nodeIP, Node: true}}); err != nil {
		t.Fatal(err)
	}
	echo := layers.ICMPv6Echo{Identifier: 1, SeqNumber: 1}
	ends.sendFrame(t, craft(t,
		&layers.Ethernet{SrcMAC: fixedMAC(podIP), DstMAC: fixedMAC(nodeIP), EthernetType: layers.EthernetTypeIPv6},
		ip6(podIP6, nodeIP6, layers.IPProtocolICMPv6),
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}, &echo))
	all := netip.MustParseAddr("224.0.0.1")
	ip := ip4(podIP, all, layers.IPProtocolIGMP)
	ip.TTL = 1
	query := []byte{byte(layers.IGMPMembershipQuery), 10, 0xee, 0xf5, 0, 0, 0, 0} // of all groups
	ends.sendFrame(t, craft(t,
		&layers.Ethernet{SrcMAC: fixedMAC(podIP), DstMAC: net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv4},
		ip, gopacket.Payload(query)))
	// What is lost after them shows that they were handled.
	ends.lose(t, netip.MustParseAddr("203.0.113.9"), 1)
	for _, d := range dropped(t, e, 1).Drops {
		if d.Proto != unix.IPPROTO_UDP && !d.Is(model.Delivered) {
			t.Errorf("delivered, and taken for lost: %+v", d)
		}
	}
}

// TestHandshakesThatFindNoRoom: what a full listener refuses of a handshake with a SYN
// cookie is no segment that nobody listens for, though later kernels say NO_SOCKET.
func TestHandshakesThatFindNoRoom(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	// Nobody has the client's address, so that nobody resets its connections.
	client := netip.MustParseAddr("10.77.0.9")
	if err := errors.Join(e.SetNamespaces([]Namespace{{Inode: ends.node.Inode()}}), e.SetLocal([]Local{{Addr: client}})); err != nil {
		t.Fatal(err)
	}
	const port, clients, room = 8080, 3, 1
	inside(t, ends.node, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrInet4{Port: port}),
			// With a backlog of 0 every SYN is answered by a cookie.
			unix.Listen(fd, 0),
			netlink.NeighAdd(&netlink.Neigh{
				LinkIndex: ends.nodeLink.Index, IP: client.AsSlice(), HardwareAddr: fixedMAC(podIP), State: netlink.NUD_PERMANENT,
			}))
	})
	segment := func(from int, change func(*layers.TCP)) []byte {
		tcp := &layers.TCP{SrcPort: layers.TCPPort(from), DstPort: port, Seq: 100, Window: 1000}
		change(tcp)
		return craft(t, &layers.Ethernet{SrcMAC: fixedMAC(podIP), DstMAC: fixedMAC(nodeIP), EthernetType: layers.EthernetTypeIPv4},
			ip4(client, nodeIP, layers.IPProtocolTCP), tcp)
	}
	var acks [][]byte
	for from := 4001; from <= 4000+clients; from++ {
		cookie := ends.answered(t, segment(from, func(s *layers.TCP) { s.SYN = true }), uint16(from))
		acks = append(acks, segment(from, func(s *layers.TCP) { s.ACK, s.Seq, s.Ack = true, s.Seq+1, cookie.Seq+1 }))
	}
	for _, ack := range acks {
		ends.sendFrame(t, ack)
	}
	for _, d := range dropped(t, e, clients-room).Drops {
		if d.Proto != unix.IPPROTO_TCP || d.Packets != clients-room || d.Is(model.NoSocket) || d.Is(model.NoRoom) == d.Is(model.Delivered) {
			t.Errorf("drop %+v", d)
		}
	}
}

// answered has the pod's link send a TCP segment, and returns what answers it.
func (e *twoEnds) answered(t *testing.T, frame []byte, port uint16) *layers.TCP {
	t.Helper()
	const protocol = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // in network byte order
	var fd int
	inside(t, e.pod, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return os.NewSyscallError("socket", err)
	})
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatal(err)
	}
	e.sendFrame(t, frame)
	for buf := make([]byte, 2000); ; {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			t.Fatalf("wait for an answer: %v", err)
		}
		p := gopacket.NewPacket(buf[:n], layers.LayerTypeEthernet, gopacket.Default)
		if tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP); ok && tcp.DstPort == layers.TCPPort(port) {
			return tcp
		}
	}
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func address(t *testing.T, ns *netns.NS, l Link, a netip.Addr) {
	t.Helper()
	inside(t, ns, func() error {
		on, err := netlink.LinkByIndex(l.Index)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(on, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD})
	})
}

// sendFrame has the pod send a frame.
func (e *twoEnds) sendFrame(t *testing.T, frame []byte) {
	t.Helper()
	inside(t, e.pod, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: e.podLink.Index})
	})
}
