package traffic

import (
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/probe/model"
)

// TestOuterHeader has outer headers before packets, as before Linux 5.14, cut off at
// every length. Program.Run takes the inner protocol from bytes 12 and 13.
func TestOuterHeader(t *testing.T) {
	b := newBench(t, Link{NoEthernet: true})
	b.links.keepsOuter = true
	if err := b.setLink(Link{Index: loopback, Name: "lo", NoEthernet: true, IPTunnel: true}); err != nil {
		t.Fatal(err)
	}
	outer := func(protocol layers.IPProtocol, source string, inner gopacket.SerializableLayer) []byte {
		return craft(t, ip4(netip.MustParseAddr(source), node, protocol), inner, &layers.TCP{SYN: true})
	}
	v4 := outer(layers.IPProtocolIPv4, "8.0.0.1", ip4(pod, other, layers.IPProtocolTCP))
	v6 := outer(layers.IPProtocolIPv6, "134.221.0.1", ip6(pod6, other6, layers.IPProtocolTCP))
	framed := append(craft(t, eth(layers.EthernetTypeIPv4))[:14:14], outer(layers.IPProtocolIPv4, "192.0.2.1", ip4(pod2, other, layers.IPProtocolTCP))...)
	for _, tt := range []struct {
		name   string
		frame  []byte
		addr   netip.Addr
		before int // bytes of outer headers
		least  int // what the kernel takes for a whole IP header
	}{
		{"IPv4", v4, pod, 20, 34}, {"IPv6", v6, pod6, 20, 54}, {"IPv4 behind Ethernet", framed, pod2, 34, 34},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.t = t
			malformed := b.traffic().Lost.Malformed
			b.run(model.Ingress, tt.frame)
			tr := b.traffic()
			want := uint64(len(tt.frame) - tt.before)
			if h := hopOf(tr, tt.addr.String(), model.Ingress, model.AsSource); h.Packets != 1 || h.SYN != 1 || h.Bytes != want {
				t.Errorf("%+v, want 1 packet of %d bytes with SYN", h, want)
			}
			if n := tr.Lost.Malformed - malformed; n != 0 {
				t.Errorf("%d malformed", n)
			}
			for n := tt.least; n < len(tt.frame); n++ {
				b.run(model.Ingress, tt.frame[:n])
			}
			if n := b.traffic().Lost.Malformed - malformed; n != uint64(len(tt.frame)-tt.least) {
				t.Errorf("%d malformed, want all %d that were cut off", n, len(tt.frame)-tt.least)
			}
		})
	}
	b.t = t
	// What goes out has no outer header.
	b.run(model.Egress, v4)
	if h := hopOf(b.traffic(), pod.String(), model.Egress, model.AsSource); h.Packets != 0 {
		t.Errorf("egress: %+v", h)
	}
}
