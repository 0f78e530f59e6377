package active

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/probe/model"
)

// payload tells a reader of a capture where an echo request is from.
const payload = "lasthop check --active"

// ttl is far more than the hops in a cluster's network.
const ttl = 64

// craft encodes a request's frame. id and seq are for echo requests.
func craft(p *model.Probe, id, seq uint16) ([]byte, error) {
	if p.From.Is4() != p.To.Is4() || !p.To.IsValid() || p.Kind == model.ProbeARP && p.To.Is6() {
		return nil, fmt.Errorf("craft %s probe from %s to %s: want addresses of one family; ARP is IPv4 only", p.Kind, p.From, p.To)
	}
	eth := &layers.Ethernet{SrcMAC: p.SrcMAC[:], DstMAC: p.DstMAC[:]}
	var rest []gopacket.SerializableLayer
	switch {
	case p.Kind == model.ProbeEcho && p.To.Is6():
		eth.EthernetType = layers.EthernetTypeIPv6
		ip := &layers.IPv6{Version: 6, HopLimit: ttl, NextHeader: layers.IPProtocolICMPv6, SrcIP: p.From.AsSlice(), DstIP: p.To.AsSlice()}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}
		if err := icmp.SetNetworkLayerForChecksum(ip); err != nil {
			return nil, fmt.Errorf("craft %s probe: %w", p.Kind, err)
		}
		rest = []gopacket.SerializableLayer{ip, icmp, &layers.ICMPv6Echo{Identifier: id, SeqNumber: seq}, gopacket.Payload(payload)}
	case p.Kind == model.ProbeEcho:
		eth.EthernetType = layers.EthernetTypeIPv4
		rest = []gopacket.SerializableLayer{
			&layers.IPv4{Version: 4, TTL: ttl, Protocol: layers.IPProtocolICMPv4, SrcIP: p.From.AsSlice(), DstIP: p.To.AsSlice()},
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: id, Seq: seq},
			gopacket.Payload(payload),
		}
	case p.Kind == model.ProbeARP:
		eth.EthernetType = layers.EthernetTypeARP
		rest = []gopacket.SerializableLayer{&layers.ARP{
			AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4,
			Operation:       layers.ARPRequest,
			SourceHwAddress: p.SrcMAC[:], SourceProtAddress: p.From.AsSlice(),
			DstHwAddress: make([]byte, 6), DstProtAddress: p.To.AsSlice(),
		}}
	default:
		return nil, fmt.Errorf("craft probe: unknown kind %q", p.Kind)
	}
	buf, opts := gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, append([]gopacket.SerializableLayer{eth}, rest...)...); err != nil {
		return nil, fmt.Errorf("craft %s probe: %w", p.Kind, err)
	}
	return slices.Clone(buf.Bytes()), nil
}

type reply struct {
	kind model.ProbeKind
	// from is the sender's address, to the target's.
	from, to netip.Addr
	// id and seq are set for echo, mac for ARP.
	id, seq uint16
	mac     model.MAC
}

// answers reports whether the reply is for the probe, except for id and seq.
func (r *reply) answers(p *model.Probe) bool {
	return r.kind == p.Kind && r.from == p.To && r.to == p.From
}

// decode decodes a frame. It returns false for anything but a complete ICMP or ICMPv6 echo reply or ARP reply.
func decode(frame []byte) (r reply, ok bool) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	headers := append(p.Layers(), nil, nil, nil, nil)
	if p.ErrorLayer() != nil {
		return r, false
	}
	// In any other order of headers, such as ICMPv6 in IPv4, it is no reply.
	switch network := headers[1].(type) {
	case *layers.IPv4:
		echo, is := headers[2].(*layers.ICMPv4)
		if is && echo.TypeCode == layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoReply, 0) {
			return reply{kind: model.ProbeEcho, from: addr(network.SrcIP), to: addr(network.DstIP), id: echo.Id, seq: echo.Seq}, true
		}
	case *layers.IPv6:
		icmp, is := headers[2].(*layers.ICMPv6)
		echo, whole := headers[3].(*layers.ICMPv6Echo)
		if is && whole && icmp.TypeCode == layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoReply, 0) {
			return reply{kind: model.ProbeEcho, from: addr(network.SrcIP), to: addr(network.DstIP), id: echo.Identifier, seq: echo.SeqNumber}, true
		}
	case *layers.ARP:
		if network.Operation == layers.ARPReply && network.Protocol == layers.EthernetTypeIPv4 &&
			len(network.SourceHwAddress) == 6 && len(network.SourceProtAddress) == 4 {
			from, to := addr(network.SourceProtAddress), addr(network.DstProtAddress)
			return reply{kind: model.ProbeARP, from: from, to: to, mac: model.MACFrom(network.SourceHwAddress)}, true
		}
	}
	return r, false
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
