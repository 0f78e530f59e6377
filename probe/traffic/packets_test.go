package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/lasthop/lasthop/probe/model"
)

func TestLegs(t *testing.T) {
	tests := []struct {
		name     string
		src, dst netip.Addr
		tcp      *layers.TCP
		icmp     gopacket.SerializableLayer
		want     model.HopCount // of source and destination, where local
	}{
		{name: "udp", src: pod, dst: other, want: model.HopCount{}},
		{name: "udp6", src: other6, dst: pod6, want: model.HopCount{}},
		{name: "two pods", src: pod, dst: pod2, want: model.HopCount{}},
		{name: "node", src: node, dst: other, want: model.HopCount{}},
		{name: "syn", src: pod, dst: other, tcp: &layers.TCP{SYN: true}, want: model.HopCount{SYN: 1}},
		{name: "syn with ece", src: pod, dst: other, tcp: &layers.TCP{SYN: true, ECE: true, CWR: true}, want: model.HopCount{SYN: 1}},
		{name: "synack", src: other, dst: pod, tcp: &layers.TCP{SYN: true, ACK: true}, want: model.HopCount{SYNACK: 1}},
		{name: "rst", src: other, dst: pod, tcp: &layers.TCP{RST: true}, want: model.HopCount{RST: 1}},
		{name: "rstack", src: other, dst: pod, tcp: &layers.TCP{RST: true, ACK: true}, want: model.HopCount{RST: 1}},
		{name: "ack", src: pod, dst: other, tcp: &layers.TCP{ACK: true, PSH: true}, want: model.HopCount{}},
		{name: "fin", src: pod, dst: other, tcp: &layers.TCP{FIN: true, ACK: true}, want: model.HopCount{}},
		{name: "syn6", src: pod6, dst: other6, tcp: &layers.TCP{SYN: true}, want: model.HopCount{SYN: 1}},
		{name: "echo", src: pod, dst: other, icmp: &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)}, want: model.HopCount{}},
		{name: "unreachable", src: other, dst: pod, icmp: &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, want: model.HopCount{ICMPErrors: 1}},
		{name: "time exceeded", src: other, dst: pod, icmp: &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(11, 0)}, want: model.HopCount{ICMPErrors: 1}},
		{name: "too big6", src: other6, dst: pod6, icmp: &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(2, 0)}, want: model.HopCount{ICMPErrors: 1}},
		{name: "neither", src: other, dst: remote},
	}
	for i, tt := range tests {
		for j, d := range []model.Direction{model.Ingress, model.Egress} {
			if testing.Short() && (i+j)%2 == 0 {
				continue // Programs are loaded for each.
			}
			t.Run(tt.name+" "+string(d), func(t *testing.T) {
				b := newBench(t, Link{})
				p := udpPacket(t, tt.src, tt.dst)
				ttl := uint(64)
				switch {
				case tt.tcp != nil:
					p = tcpPacket(t, tt.src, tt.dst, *tt.tcp)
				case tt.icmp != nil && tt.src.Is4():
					p = packet(t, tt.src, tt.dst, layers.IPProtocolICMPv4, tt.icmp, gopacket.Payload(make([]byte, 28)))
				case tt.icmp != nil:
					p = packet(t, tt.src, tt.dst, layers.IPProtocolICMPv6, tt.icmp, gopacket.Payload(make([]byte, 52)))
				}
				if tt.src.Is6() {
					ttl = 63
				}
				for range 3 {
					b.run(d, p)
				}
				tr := b.traffic()
				for s, a := range map[model.Side]netip.Addr{model.AsSource: tt.src, model.AsDestination: tt.dst} {
					got := hopOf(tr, a.String(), d, s)
					got.First, got.Last = time.Time{}, time.Time{}
					want := model.HopCount{}
					if slices.Contains([]netip.Addr{pod, pod2, pod6, node}, a) {
						want = tt.want
						want.Addr, want.Direction, want.Side = a, d, s
						want.IfIndex, want.Link = 1, "lo"
						want.Packets, want.Bytes = 3, 3*uint64(len(p))
						want.SYN, want.SYNACK, want.RST, want.ICMPErrors = 3*want.SYN, 3*want.SYNACK, 3*want.RST, 3*want.ICMPErrors
						want.TTLs = 1 << (ttl % 64)
					}
					if got != want {
						t.Errorf("as %s:\ngot  %+v\nwant %+v", s, got, want)
					}
				}
				if len(lostOf(tr)) > 0 {
					t.Errorf("lost: %q", tr.Lost.Detail)
				}
			})
		}
	}
}

// TestOrigin has the node send a pod what came to it by an uplink, by another link, by
// one that is not watched, and its own. What arrives has come from nowhere yet.
func TestOrigin(t *testing.T) { eachMode(t, testOrigin) }

func testOrigin(t *testing.T, mode string) {
	ends := newTwoEnds(t)
	setMAC(t, ends)
	ends.forwarding(t)
	links, local := []Link{ends.nodeLink}, []Local{{Addr: podIP}, {Addr: nodeIP, Node: true}}
	origins := []struct {
		name         string
		from         *net.UDPConn
		inner, outer uint64
	}{
		{name: "the node itself", from: ends.nodeConn},
		{name: "an uplink", outer: 1},
		{name: "another link", inner: 1},
		{name: "a link that is not watched", inner: 1},
	}
	for i := range origins[1:] {
		gateway, sender := netip.AddrFrom4([4]byte{10, 78, byte(i), 1}), netip.AddrFrom4([4]byte{10, 78, byte(i), 2})
		far := newNS(t)
		near, _ := veth(t, ends.node, fmt.Sprintf("near%d", i), gateway.String()+"/24", far, "far", sender.String()+"/24")
		inside(t, far, func() error {
			_, all, _ := net.ParseCIDR("0.0.0.0/0")
			return netlink.RouteAdd(&netlink.Route{Gw: gateway.AsSlice(), Dst: all})
		})
		o := &origins[i+1]
		o.from = listen(t, far, sender)
		local = append(local, Local{Addr: sender})
		near.Uplink = o.outer > 0
		if o.name != "a link that is not watched" {
			links = append(links, near)
		}
	}
	e := open(t, Config{NS: ends.node, Attach: mode})
	if err := errors.Join(e.SetLocal(local), e.Attach(links, time.Time{})); err != nil {
		t.Fatal(err)
	}
	var want model.HopCount
	for _, o := range origins {
		sender := netip.MustParseAddrPort(o.from.LocalAddr().String()).Addr()
		if _, err := o.from.WriteToUDPAddrPort([]byte("sent"), netip.AddrPortFrom(podIP, 7000)); err != nil {
			t.Fatal(err)
		}
		if err := ends.podConn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, from, err := ends.podConn.ReadFromUDPAddrPort(make([]byte, 9)); err != nil || from.Addr() != sender {
			t.Fatalf("%s: received from %s, %v", o.name, from, err)
		}
		tr := poll(t, e)
		out := hopOf(tr, sender.String(), model.Egress, model.AsSource)
		if out.Packets != 1 || out.FromInside != o.inner || out.FromUplink != o.outer {
			t.Errorf("%s, as source: %d packets, %d from inside, %d from an uplink", o.name, out.Packets, out.FromInside, out.FromUplink)
		}
		want.Packets++
		want.FromInside += o.inner
		want.FromUplink += o.outer
		out = hopOf(tr, podIP.String(), model.Egress, model.AsDestination)
		if out.Packets != want.Packets || out.FromInside != want.FromInside || out.FromUplink != want.FromUplink {
			t.Errorf("with %s, as destination: %d packets, %d from inside, %d from an uplink; want %d, %d, %d", o.name,
				out.Packets, out.FromInside, out.FromUplink, want.Packets, want.FromInside, want.FromUplink)
		}
		for _, h := range tr.Hops {
			if h.Direction == model.Ingress && (h.Packets == 0 || h.FromInside+h.FromUplink > 0) {
				t.Errorf("%s arrived: %+v", o.name, h)
			}
		}
	}
}

// extensions builds an IPv6 packet whose headers, each {kind, bytes}, stand
// before a TCP SYN.
func extensions(t *testing.T, kinds ...byte) []byte {
	t.Helper()
	syn := make([]byte, 20)
	syn[12], syn[13] = 5<<4, 2
	var headers []byte
	for i, k := range kinds {
		next := byte(layers.IPProtocolTCP)
		if i+1 < len(kinds) {
			next = kinds[i+1]
		}
		h := make([]byte, 8)
		switch layers.IPProtocol(k) {
		case layers.IPProtocolAH:
			h = make([]byte, 24)
			h[1] = 24/4 - 2
		case layers.IPProtocolIPv6Destination:
			h = make([]byte, 16)
			h[1] = 1
		}
		h[0] = next
		headers = append(headers, h...)
	}
	first := layers.IPProtocolTCP
	if len(kinds) > 0 {
		first = layers.IPProtocol(kinds[0])
	}
	return packet(t, pod6, other6, first, gopacket.Payload(append(headers, syn...)))
}

func TestIPv6Extensions(t *testing.T) {
	const hop, routing, fragment, ah, dst = 0, 43, 44, 51, 60
	tests := map[string]struct {
		kinds []byte
		syn   uint64
	}{
		"none":            {nil, 1},
		"hop by hop":      {[]byte{hop}, 1},
		"all":             {[]byte{hop, dst, routing, fragment, ah, dst}, 1},
		"more than read":  {[]byte{hop, dst, routing, dst, dst, dst, dst}, 0},
		"first fragment":  {[]byte{fragment}, 1},
		"authenticated":   {[]byte{ah}, 1},
		"destination, ah": {[]byte{dst, ah}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Link{})
			b.run(model.Ingress, extensions(t, tt.kinds...))
			got := hopOf(b.traffic(), pod6.String(), model.Ingress, model.AsSource)
			if got.Packets != 1 || got.SYN != tt.syn {
				t.Errorf("packets %d, SYN %d; want 1, %d", got.Packets, got.SYN, tt.syn)
			}
		})
	}
}

// TestFragments gives later fragments whose first bytes look like a SYN.
func TestFragments(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	p := tcpPacket(t, pod, other, layers.TCP{SYN: true})
	binary.BigEndian.PutUint16(p[14+6:], 100)
	p6 := extensions(t, 44)
	binary.BigEndian.PutUint16(p6[14+40+2:], 100<<3)
	b.run(model.Egress, p)
	b.run(model.Egress, p6)
	tr := b.traffic()
	for _, a := range []netip.Addr{pod, pod6} {
		if h := hopOf(tr, a.String(), model.Egress, model.AsSource); h.Packets != 1 || h.SYN != 0 {
			t.Errorf("%s: packets %d, SYN %d; want 1, 0", a, h.Packets, h.SYN)
		}
	}
	if p := peerOf(tr, pod, other).Out; p != (model.PeerCount{Packets: 1, Other: 1, Fragments: 1}) {
		t.Errorf("peer: %+v, want 1 fragment", p)
	}
}

func tagged(p []byte, ethertypes ...uint16) []byte {
	out := slices.Clone(p[:12])
	for i, t := range ethertypes {
		out = binary.BigEndian.AppendUint16(out, t)
		out = binary.BigEndian.AppendUint16(out, uint16(100+i))
	}
	return append(out, p[12:]...)
}

func TestVLAN(t *testing.T) {
	plain := tcpPacket(t, pod, other, layers.TCP{SYN: true})
	tests := map[string]struct {
		tags []uint16
		want uint64
	}{
		"one":         {[]uint16{0x8100}, 1},
		"two":         {[]uint16{0x88a8, 0x8100}, 1},
		"two of a q":  {[]uint16{0x8100, 0x8100}, 1},
		"three":       {[]uint16{0x88a8, 0x8100, 0x8100}, 0},
		"none at all": {nil, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Link{})
			b.run(model.Ingress, tagged(plain, tt.tags...))
			if h := hopOf(b.traffic(), pod.String(), model.Ingress, model.AsSource); h.Packets != tt.want || h.SYN != tt.want {
				t.Errorf("packets %d, SYN %d; want %d", h.Packets, h.SYN, tt.want)
			}
		})
	}
}

// every crafts one packet of each kind that is parsed.
func every(t *testing.T) map[string][]byte {
	t.Helper()
	quote := craft(t, ip4(pod, remote, layers.IPProtocolUDP), udp())
	return map[string][]byte{
		"tcp":      tcpPacket(t, pod, other, layers.TCP{SYN: true}),
		"udp":      udpPacket(t, pod, pod2),
		"icmp":     packet(t, other, pod, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 1)}, gopacket.Payload(quote)),
		"options":  options(t),
		"ipv6":     udpPacket(t, pod6, other6),
		"ext":      extensions(t, 0, 60, 43, 44, 51, 60),
		"icmp6":    packet(t, other6, pod6, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 0)}, gopacket.Payload(udpPacket(t, pod6, other6)[10:])),
		"arp":      arp(t, layers.ARPRequest, node, pod, macA),
		"nd":       solicit(t, pod6, macA),
		"vlan":     tagged(tcpPacket(t, pod, other, layers.TCP{}), 0x88a8, 0x8100),
		"vlan arp": tagged(arp(t, layers.ARPReply, node, pod, macA), 0x8100),
		"lldp":     craft(t, eth(0x88cc), gopacket.Payload(make([]byte, 40))),
	}
}

func options(t *testing.T) []byte {
	ip := ip4(pod, other, layers.IPProtocolTCP)
	ip.Options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
	return craft(t, eth(layers.EthernetTypeIPv4), ip, &layers.TCP{SYN: true})
}

func TestIPv4Options(t *testing.T) {
	b := newBench(t, Link{})
	b.run(model.Egress, options(t))
	if h := hopOf(b.traffic(), pod.String(), model.Egress, model.AsSource); h.Packets != 1 || h.SYN != 1 {
		t.Errorf("packets %d, SYN %d; want 1, 1", h.Packets, h.SYN)
	}
}

// TestTruncated cuts every kind of packet at every length. None may be
// changed, none stopped; run looks at that.
func TestTruncated(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	for name, p := range every(t) {
		t.Run(name, func(t *testing.T) {
			b.t = t
			// The kernel runs no program on less than the Ethernet
			// header, and the IP header where it is next: behind a
			// tag that can be cut too.
			start := 14
			switch binary.BigEndian.Uint16(p[12:]) {
			case 0x0800:
				start += 20
			case 0x86dd:
				start += 40
			}
			for n := start; n <= len(p); n++ {
				b.run(model.Ingress, p[:n])
				b.run(model.Egress, p[:n])
			}
			p := tagged(p, 0x8100)
			for n := 14; n <= len(p); n++ {
				b.run(model.Ingress, p[:n])
				b.run(model.Egress, p[:n])
			}
		})
	}
	b.t = t
	if tr := b.traffic(); tr.Lost.Malformed == 0 || tr.Lost.Unparsed+tr.Lost.Counters != 0 {
		t.Errorf("lost %+v, want only malformed ones", tr.Lost)
	}
}

// TestMalformed counts packets with truncated or malformed headers.
func TestMalformed(t *testing.T) {
	ip := udpPacket(t, pod, other)
	with := func(p []byte, at int, v byte) []byte {
		p = slices.Clone(p)
		p[at] = v
		return p
	}
	tcp := tcpPacket(t, pod, other, layers.TCP{SYN: true})
	tests := map[string]struct {
		packet  []byte
		counted uint64 // all the same, since its addresses were read
	}{
		"version":      {with(ip, 14, 0x55), 0},
		"short header": {with(ip, 14, 0x44), 0},
		"cut ip":       {tagged(ip, 0x8100)[:18+19], 0},
		"cut tcp":      {tcp[:14+20+10], 1},
		"long header":  {with(tcp, 14, 0x4f), 1},
		"version 6":    {with(udpPacket(t, pod6, other6), 14, 0x40), 0},
		"cut ext":      {extensions(t, 0)[:14+40+4], 1},
		"cut arp":      {arp(t, layers.ARPRequest, node, pod, macA)[:14+20], 0},
		"cut nd":       {solicit(t, pod6, macA)[:14+40+16], 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Link{})
			b.run(model.Ingress, tt.packet)
			tr := b.traffic()
			if tr.Lost.Malformed != 1 || tr.Lost.Unparsed != 0 {
				t.Errorf("%d malformed, %d unparsed; want 1 and none", tr.Lost.Malformed, tr.Lost.Unparsed)
			}
			var n uint64
			for _, h := range tr.Hops {
				n += h.Packets
			}
			if n != tt.counted {
				t.Errorf("counted %d, want %d", n, tt.counted)
			}
		})
	}
}

func TestMACs(t *testing.T) {
	b := newBench(t, Link{})
	p := udpPacket(t, pod, other)
	for i := range 6 {
		p[5] = byte(i)
		for range i + 1 {
			b.run(model.Egress, p)
		}
	}
	tr := b.traffic()
	if len(tr.MACs) != 6 || tr.Lost.MACs != 0 {
		t.Fatalf("%d pairs, %d lost; want 6 and none", len(tr.MACs), tr.Lost.MACs)
	}
	for i, m := range tr.MACs {
		want := model.MACPair{
			Addr: pod, IfIndex: 1, Link: "lo", Direction: model.Egress, Side: model.AsSource,
			Src: model.MACFrom(macA), Dst: model.MAC{2, 0, 0, 0, 0, byte(i)}, Packets: uint64(i + 1),
		}
		if m != want {
			t.Errorf("pair %d:\ngot  %+v\nwant %+v", i, m, want)
		}
	}
}

func TestTTLs(t *testing.T) {
	b := newBench(t, Link{})
	for _, ttl := range []byte{1, 63, 64, 64, 255} {
		p := udpPacket(t, pod, other)
		p[14+8] = ttl
		b.run(model.Egress, p)
	}
	const want = 1<<1 | 1<<63 | 1<<0
	if h := hopOf(b.traffic(), pod.String(), model.Egress, model.AsSource); h.TTLs != want {
		t.Errorf("TTLs %#x, want %#x", h.TTLs, uint64(want))
	}
}

func TestPeers(t *testing.T) {
	icmp := func(src, dst netip.Addr, kind uint8, payload []byte) []byte {
		return packet(t, src, dst, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0)}, gopacket.Payload(payload))
	}
	quote := craft(t, ip4(pod, remote, layers.IPProtocolUDP), udp())
	quote6 := craft(t, ip6(pod6, other6, layers.IPProtocolUDP), udp())
	tests := map[string]struct {
		direction model.Direction
		packet    []byte
		local, to netip.Addr
		want      model.PeerCount
	}{
		"syn":         {model.Egress, tcpPacket(t, pod, remote, layers.TCP{SYN: true}), pod, remote, model.PeerCount{Packets: 1, Requests: 1}},
		"synack":      {model.Ingress, tcpPacket(t, remote, pod, layers.TCP{SYN: true, ACK: true}), pod, remote, model.PeerCount{Packets: 1, Replies: 1}},
		"ack":         {model.Egress, tcpPacket(t, pod, remote, layers.TCP{ACK: true}), pod, remote, model.PeerCount{Packets: 1, Replies: 1}},
		"rst":         {model.Ingress, tcpPacket(t, remote, pod, layers.TCP{RST: true}), pod, remote, model.PeerCount{Packets: 1, Replies: 1}},
		"udp":         {model.Egress, udpPacket(t, pod, remote), pod, remote, model.PeerCount{Packets: 1, Other: 1}},
		"node":        {model.Egress, udpPacket(t, node, other), node, other, model.PeerCount{Packets: 1, Other: 1}},
		"echo":        {model.Egress, icmp(pod, remote, 8, nil), pod, remote, model.PeerCount{Packets: 1, Requests: 1}},
		"echo reply":  {model.Ingress, icmp(remote, pod, 0, nil), pod, remote, model.PeerCount{Packets: 1, Replies: 1}},
		"error":       {model.Ingress, icmp(other, pod, 11, quote), pod, remote, model.PeerCount{ICMPErrors: 1}},
		"error to us": {model.Ingress, icmp(other, node, 3, quote), pod, remote, model.PeerCount{ICMPErrors: 1}},
		"v6": {model.Ingress, packet(t, netip.MustParseAddr("2001:db8::1"), pod6, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(3, 0)},
			gopacket.Payload(append(make([]byte, 4), quote6...))), pod6, other6, model.PeerCount{ICMPErrors: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Link{Uplink: true})
			b.run(tt.direction, tt.packet)
			tr := b.traffic()
			if len(tr.Peers) != 1 {
				t.Fatalf("peers %+v, want one", tr.Peers)
			}
			p := peerOf(tr, tt.local, tt.to)
			got, not := p.Out, p.In
			if tt.direction == model.Ingress {
				got, not = not, got
			}
			if got != tt.want || not != (model.PeerCount{}) {
				t.Errorf("got %+v, the other way %+v; want %+v", got, not, tt.want)
			}
			if (tt.direction == model.Egress) == p.FirstOut.IsZero() {
				t.Errorf("first out %v", p.FirstOut)
			}
		})
	}
}

// TestNoPeers are packets that no pair is counted of.
func TestNoPeers(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	if err := b.SetPrefixes([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}); err != nil {
		t.Fatal(err)
	}
	b.run(model.Egress, udpPacket(t, pod, pod2))
	b.run(model.Egress, udpPacket(t, pod, node))
	b.run(model.Egress, udpPacket(t, remote, other))
	if p := b.traffic().Peers; len(p) != 0 {
		t.Errorf("peers %+v, want none", p)
	}
	b = newBench(t, Link{})
	b.run(model.Egress, udpPacket(t, pod, other))
	if p := b.traffic().Peers; len(p) != 0 {
		t.Errorf("peers %+v on a link that is no uplink", p)
	}
}

func TestCollisions(t *testing.T) {
	var local []Local
	for i := range 7 {
		// All end as pod does.
		local = append(local, Local{Addr: netip.AddrFrom4([4]byte{10, byte(50 + i), 2, 5})})
	}
	b := newBench(t, Link{}, local...)
	all := append(local, Local{Addr: pod})
	for i, l := range all {
		for range i + 1 {
			b.run(model.Egress, udpPacket(t, l.Addr, other))
		}
	}
	b.run(model.Egress, udpPacket(t, netip.MustParseAddr("10.99.2.5"), other))
	check := func(all []Local, n func(int) uint64) {
		t.Helper()
		tr := b.traffic()
		for i, l := range all {
			if h := hopOf(tr, l.Addr.String(), model.Egress, model.AsSource); h.Packets != n(i) {
				t.Errorf("%s: %d packets, want %d", l.Addr, h.Packets, n(i))
			}
		}
	}
	check(all, func(i int) uint64 { return uint64(i + 1) })
	if err := b.SetLocal(append(all, Local{Addr: netip.MustParseAddr("10.98.2.5")})); err == nil {
		t.Error("a ninth address with the same end was taken silently")
	}

	// Out of the middle, the head and the end of the chain, then back.
	left := []Local{all[1], all[3], all[6]}
	if err := b.SetLocal(left); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		b.run(model.Egress, udpPacket(t, l.Addr, other))
	}
	if err := b.SetLocal(all); err != nil {
		t.Fatal(err)
	}
	for _, l := range all {
		b.run(model.Egress, udpPacket(t, l.Addr, other))
	}
	check(all, func(i int) uint64 {
		if slices.Contains(left, all[i]) {
			return uint64(i + 3)
		}
		return uint64(i + 2)
	})
}

func TestRanges(t *testing.T) {
	b := newBench(t, Link{})
	prefixes := []netip.Prefix{
		netip.MustParsePrefix("10.9.0.0/16"),
		netip.MustParsePrefix("10.9.3.0/24"),
		netip.MustParsePrefix("20.0.0.0/7"),
		netip.MustParsePrefix("fd00:2::/48"),
		netip.MustParsePrefix("10.1.2.0/24"), // around the local ones
	}
	if err := b.SetPrefixes(prefixes); err != nil {
		t.Fatal(err)
	}
	for dst, want := range map[string]string{
		"10.9.3.7":     "10.9.3.0/24",
		"10.9.4.7":     "10.9.0.0/16",
		"21.200.0.1":   "20.0.0.0/7",
		"22.0.0.1":     "",
		"fd00:2::1":    "fd00:2::/48",
		"fd00:2:0:1::": "fd00:2::/48",
		"fd00:2:1::1":  "",
		"10.1.2.200":   "10.1.2.0/24",
	} {
		a := netip.MustParseAddr(dst)
		src := other
		if a.Is6() {
			src = other6
		}
		before := rangeCounts(b.traffic())
		b.run(model.Egress, udpPacket(t, src, a))
		after := rangeCounts(b.traffic())
		for _, p := range prefixes {
			n := after[p] - before[p]
			if (n == 1) != (p.String() == want) || n > 1 {
				t.Errorf("%s: counted %d for %s, want it for %q", dst, n, p, want)
			}
		}
	}
	// A local address is itself, whatever range is around it.
	before := rangeCounts(b.traffic())
	b.run(model.Egress, udpPacket(t, pod, other))
	if after := rangeCounts(b.traffic()); after[prefixes[4]] != before[prefixes[4]] {
		t.Error("a local address was counted for the range around it")
	}
	// Without the longer one, the shorter has it.
	if err := b.SetPrefixes(prefixes[:1]); err != nil {
		t.Fatal(err)
	}
	before = rangeCounts(b.traffic())
	b.run(model.Egress, udpPacket(t, other, remote))
	if after := rangeCounts(b.traffic()); after[prefixes[0]] != before[prefixes[0]]+1 {
		t.Error("the shorter range was not counted after the longer was gone")
	}
}

func rangeCounts(tr model.Traffic) map[netip.Prefix]uint64 {
	out := map[netip.Prefix]uint64{}
	for _, h := range tr.Hops {
		if h.Prefix.IsValid() {
			out[h.Prefix] += h.Packets
		}
	}
	return out
}

func arp(t testing.TB, op uint16, sender, target netip.Addr, mac net.HardwareAddr) []byte {
	t.Helper()
	return craft(t, eth(layers.EthernetTypeARP), &layers.ARP{
		AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4,
		HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
		SourceHwAddress: mac, SourceProtAddress: sender.AsSlice(),
		DstHwAddress: make([]byte, 6), DstProtAddress: target.AsSlice(),
	})
}

func solicit(t testing.TB, target netip.Addr, mac net.HardwareAddr) []byte {
	t.Helper()
	ip := ip6(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1:ff00:5"), layers.IPProtocolICMPv6)
	ip.HopLimit = 255
	return craft(t, eth(layers.EthernetTypeIPv6), ip,
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(135, 0)},
		&layers.ICMPv6NeighborSolicitation{TargetAddress: target.AsSlice(), Options: layers.ICMPv6Options{
			{Type: 14, Data: make([]byte, 6)}, // a nonce before it
			{Type: layers.ICMPv6OptSourceAddress, Data: mac},
		}})
}

func advertise(t testing.TB, target netip.Addr, mac net.HardwareAddr) []byte {
	t.Helper()
	ip := ip6(target, netip.MustParseAddr("fe80::1"), layers.IPProtocolICMPv6)
	ip.HopLimit = 255
	return craft(t, eth(layers.EthernetTypeIPv6), ip,
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(136, 0)},
		&layers.ICMPv6NeighborAdvertisement{TargetAddress: target.AsSlice(), Options: layers.ICMPv6Options{
			{Type: layers.ICMPv6OptTargetAddress, Data: mac},
		}})
}

func TestNeighbors(t *testing.T) {
	b := newBench(t, Link{})
	for range 3 {
		b.run(model.Ingress, arp(t, layers.ARPRequest, node, pod, macA))
	}
	b.run(model.Egress, arp(t, layers.ARPReply, pod, node, macB))
	b.run(model.Ingress, tagged(arp(t, layers.ARPReply, pod, node, macB), 0x8100))
	b.run(model.Ingress, arp(t, layers.ARPRequest, pod, pod, macB)) // an announcement
	b.run(model.Ingress, solicit(t, pod6, macA))
	b.run(model.Egress, advertise(t, pod6, macB))
	b.run(model.Egress, advertise(t, pod6, nil))
	tr := b.traffic()
	row := func(d model.Direction, reply bool, a netip.Addr, mac net.HardwareAddr, n uint64) model.ARPCount {
		return model.ARPCount{IfIndex: 1, Link: "lo", Direction: d, Reply: reply, Addr: a, MAC: model.MACFrom(mac), Packets: n}
	}
	want := []model.ARPCount{
		row(model.Egress, true, pod, macB, 1),
		row(model.Egress, true, pod6, nil, 1),
		row(model.Egress, true, pod6, macB, 1),
		row(model.Ingress, false, pod, macA, 3),
		row(model.Ingress, false, pod6, macA, 1),
		row(model.Ingress, true, pod, macB, 2),
	}
	if !slices.Equal(tr.ARP, want) {
		t.Errorf("got  %+v\nwant %+v", tr.ARP, want)
	}
	// It is the link's business, not the pod's traffic.
	if len(tr.Hops) != 0 {
		t.Errorf("hops %+v, want none", tr.Hops)
	}
}

func TestNeighborOverflow(t *testing.T) {
	b := newBench(t, Link{})
	p := arp(t, layers.ARPRequest, node, pod, macA)
	const more = 500
	for i := range uint32(maxNeighbors + more) {
		binary.BigEndian.PutUint32(p[14+24:], i)
		b.run(model.Ingress, p)
	}
	tr := b.traffic()
	if len(tr.ARP) != maxNeighbors || tr.Lost.Counters != more {
		t.Errorf("%d kinds, %d lost; want %d, %d", len(tr.ARP), tr.Lost.Counters, maxNeighbors, more)
	}
}

// TestUnknownLink counts a packet on a link that was not added.
func TestUnknownLink(t *testing.T) {
	b := newBench(t, Link{})
	if err := b.removeLink(1); err != nil {
		t.Fatal(err)
	}
	b.run(model.Ingress, udpPacket(t, pod, other))
	if tr := b.traffic(); tr.Lost.Counters != 1 || len(tr.Hops) != 0 {
		t.Errorf("hops %+v, lost %+v", tr.Hops, tr.Lost)
	}
}

// TestFirstLast takes its times from the polls.
func TestFirstLast(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	at := func(n int) model.HopCount {
		if err := b.Poll(epoch(n)); err != nil {
			t.Fatal(err)
		}
		return hopOf(b.Traffic(), pod.String(), model.Egress, model.AsSource)
	}
	at(1)
	b.run(model.Egress, udpPacket(t, pod, other))
	at(2)
	b.run(model.Egress, udpPacket(t, pod, other))
	at(3)
	if h := at(4); !h.First.Equal(epoch(2)) || !h.Last.Equal(epoch(3)) {
		t.Errorf("first %v, last %v", h.First, h.Last)
	}
	p := peerOf(b.Traffic(), pod, other)
	if !p.FirstOut.Equal(epoch(2)) || !p.LastOut.Equal(epoch(3)) || !p.LastIn.IsZero() {
		t.Errorf("peer %+v", p)
	}
}

// TestLocalComesAndGoes keeps the counts of an address that leaves, goes on
// with them, and gives its slot away only when there is no other.
func TestLocalComesAndGoes(t *testing.T) {
	b := newBench(t, Link{Uplink: true})
	count := func(a netip.Addr) uint64 {
		return hopOf(b.traffic(), a.String(), model.Egress, model.AsSource).Packets
	}
	b.run(model.Egress, udpPacket(t, pod, other))
	if err := b.SetLocal([]Local{{Addr: pod2}}); err != nil {
		t.Fatal(err)
	}
	b.run(model.Egress, udpPacket(t, pod, other))
	if n := count(pod); n != 1 {
		t.Errorf("after it left: %d packets, want 1", n)
	}
	if err := b.SetLocal([]Local{{Addr: pod}}); err != nil {
		t.Fatal(err)
	}
	b.run(model.Egress, udpPacket(t, pod, other))
	if n := count(pod); n != 2 {
		t.Errorf("after it came back: %d packets, want 2", n)
	}
	var many []Local
	for i := range 64 {
		many = append(many, Local{Addr: netip.AddrFrom4([4]byte{10, 30, 1, byte(i)})})
	}
	if err := b.SetLocal(many[:60]); err != nil {
		t.Fatal(err)
	}
	b.traffic()
	if err := b.SetLocal(many); err != nil {
		t.Fatal(err)
	}
	if n := count(pod); n != 0 {
		t.Errorf("after its slot was another's: %d packets", n)
	}
	b.run(model.Egress, udpPacket(t, many[63].Addr, other))
	if n := count(many[63].Addr); n != 1 {
		t.Errorf("in a slot that was another's: %d packets, want 1", n)
	}
	if p := peerOf(b.Traffic(), many[63].Addr, other); p.Out.Packets != 1 {
		t.Errorf("peer in a slot that was another's: %+v", p)
	}
	if err := b.SetLocal(append(many, Local{Addr: pod})); err == nil {
		t.Error("one address too many was taken silently")
	}
}

func TestBadInput(t *testing.T) {
	b := newBench(t, Link{})
	for _, a := range []netip.Addr{{}, netip.IPv4Unspecified()} {
		if err := b.SetLocal([]Local{{Addr: a}}); err == nil {
			t.Errorf("address %v was taken", a)
		}
	}
	if err := b.SetPrefixes([]netip.Prefix{{}}); err == nil {
		t.Error("an invalid range was taken")
	}
	for _, cfg := range []Config{{}, {NS: b.ns, MaxAddrs: 1 << 20}, {NS: b.ns, MaxLinks: 1 << 20}, {NS: b.ns, MaxAddrs: -1}} {
		if e, err := Open(cfg); err == nil {
			e.Close()
			t.Errorf("%+v was opened", cfg)
		}
	}
	// An IPv4 address in IPv6 clothes, and one with a zone, are themselves.
	if err := b.SetLocal([]Local{{Addr: netip.MustParseAddr("::ffff:10.1.2.5")}, {Addr: netip.MustParseAddr("fe80::1%eth9")}}); err != nil {
		t.Fatal(err)
	}
	b.run(model.Egress, udpPacket(t, pod, other))
	if h := hopOf(b.traffic(), pod.String(), model.Egress, model.AsSource); h.Packets != 1 {
		t.Error("a mapped address was not taken as IPv4")
	}
}

func TestLinkTableFull(t *testing.T) {
	b := newBench(t, Link{})
	// Slots: eight at a time.
	for i := 2; i <= 8; i++ {
		if err := b.setLink(Link{Index: i, Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.setLink(Link{Index: 9, Name: "9"}); err == nil {
		t.Error("one link too many was taken silently")
	}
	if err := b.removeLink(8); err != nil {
		t.Fatal(err)
	}
	b.traffic()
	if err := b.setLink(Link{Index: 8 + linkTable, Name: "far"}); err != nil {
		t.Errorf("link with a large index: %v", err)
	}
}
