package pcap

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// Describe describes a sample in one line, as far as its head was kept:
//
//	10.1.0.2:40112 > 10.1.3.9:443 TCP SYN ttl 63, 60 bytes
func Describe(s model.Sample) string {
	p := gopacket.NewPacket(frame(s), layers.LayerTypeEthernet, gopacket.DecodeOptions{Lazy: true, NoCopy: true, SkipDecodeRecovery: false})
	var words []string
	if arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP); ok {
		words = append(words, describeARP(arp))
	} else {
		words = append(words, strings.TrimSpace(ends(s, p)+" "+transport(p)))
	}
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		words = append(words, fmt.Sprintf("ttl %d", ip.TTL))
		if ip.FragOffset > 0 || ip.Flags&layers.IPv4MoreFragments != 0 {
			words = append(words, fmt.Sprintf("fragment at %d", int(ip.FragOffset)*8))
		} else if ip.Flags&layers.IPv4DontFragment != 0 {
			words = append(words, "DF")
		}
	case *layers.IPv6:
		words = append(words, fmt.Sprintf("hop limit %d", ip.HopLimit))
	}
	return report.Clean(fmt.Sprintf("%s, %d bytes", strings.Join(words, " "), s.Length))
}

// ends returns source and destination, with ports if there are any.
func ends(s model.Sample, p gopacket.Packet) string {
	ends := [2]netip.Addr{s.Src, s.Dst}
	if n := p.NetworkLayer(); n != nil {
		src, dst := n.NetworkFlow().Endpoints()
		for i, e := range []gopacket.Endpoint{src, dst} {
			if a, ok := netip.AddrFromSlice(e.Raw()); ok {
				ends[i] = a
			}
		}
	}
	var ports [2]gopacket.Endpoint
	if t := p.TransportLayer(); t != nil {
		ports[0], ports[1] = t.TransportFlow().Endpoints()
	}
	var words [2]string
	for i, a := range ends {
		switch port := ports[i].Raw(); {
		case !a.IsValid():
			words[i] = "?"
		case len(port) == 2:
			words[i] = netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)).String()
		default:
			words[i] = a.String()
		}
	}
	return words[0] + " > " + words[1]
}

func transport(p gopacket.Packet) string {
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.TCP:
			return "TCP" + flags(l)
		case *layers.ICMPv4:
			return "ICMP " + l.TypeCode.String()
		case *layers.ICMPv6:
			return "ICMPv6 " + l.TypeCode.String()
		}
	}
	if t := p.TransportLayer(); t != nil {
		return t.LayerType().String()
	}
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		return ip.Protocol.String()
	case *layers.IPv6:
		return ip.NextHeader.String()
	}
	if e, ok := p.LinkLayer().(*layers.Ethernet); ok {
		return fmt.Sprintf("EtherType 0x%04x", uint16(e.EthernetType))
	}
	return ""
}

func flags(t *layers.TCP) string {
	var b strings.Builder
	for _, f := range []struct {
		set  bool
		name string
	}{{t.SYN, "SYN"}, {t.FIN, "FIN"}, {t.RST, "RST"}, {t.PSH, "PSH"}, {t.ACK, "ACK"}, {t.URG, "URG"}} {
		if f.set {
			b.WriteString(" " + f.name)
		}
	}
	return b.String()
}

func describeARP(a *layers.ARP) string {
	addr := func(b []byte) string {
		if x, ok := netip.AddrFromSlice(b); ok {
			return x.String()
		}
		return "?"
	}
	switch a.Operation {
	case layers.ARPRequest:
		return fmt.Sprintf("ARP who has %s, tell %s", addr(a.DstProtAddress), addr(a.SourceProtAddress))
	case layers.ARPReply:
		return fmt.Sprintf("ARP %s is at %s", addr(a.SourceProtAddress), model.MACFrom(a.SourceHwAddress))
	}
	return fmt.Sprintf("ARP operation %d", a.Operation)
}
