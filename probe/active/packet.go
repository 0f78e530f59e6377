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
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
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

// decoder decodes replies. It is not safe for concurrent use.
type decoder struct {
	eth    layers.Ethernet
	ip     layers.IPv4
	icmp   layers.ICMPv4
	ip6    layers.IPv6
	icmp6  layers.ICMPv6
	echo6  layers.ICMPv6Echo
	arp    layers.ARP
	parser *gopacket.DecodingLayerParser
	found  []gopacket.LayerType
}

func newDecoder() *decoder {
	d := &decoder{}
	d.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &d.eth, &d.ip, &d.icmp, &d.ip6, &d.icmp6, &d.echo6, &d.arp)
	d.parser.IgnoreUnsupported = true
	return d
}

// The headers that each kind of reply has. Any other order is no reply: ICMPv6 in
// IPv4, say, would be read with the IPv6 addresses of an earlier frame.
var (
	echoHeaders  = []gopacket.LayerType{layers.LayerTypeEthernet, layers.LayerTypeIPv4, layers.LayerTypeICMPv4}
	echo6Headers = []gopacket.LayerType{layers.LayerTypeEthernet, layers.LayerTypeIPv6, layers.LayerTypeICMPv6, layers.LayerTypeICMPv6Echo}
	arpHeaders   = []gopacket.LayerType{layers.LayerTypeEthernet, layers.LayerTypeARP}
)

// decode decodes a frame. It returns false for anything but a complete ICMP or ICMPv6 echo reply or ARP reply.
func (d *decoder) decode(frame []byte) (reply, bool) {
	if err := d.parser.DecodeLayers(frame, &d.found); err != nil {
		return reply{}, false
	}
	a := &d.arp
	switch {
	case slices.Equal(d.found, echoHeaders) && d.icmp.TypeCode == layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoReply, 0):
		return reply{kind: model.ProbeEcho, from: addr(d.ip.SrcIP), to: addr(d.ip.DstIP), id: d.icmp.Id, seq: d.icmp.Seq}, true
	case slices.Equal(d.found, echo6Headers) && d.icmp6.TypeCode == layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoReply, 0):
		return reply{kind: model.ProbeEcho, from: addr(d.ip6.SrcIP), to: addr(d.ip6.DstIP), id: d.echo6.Identifier, seq: d.echo6.SeqNumber}, true
	case slices.Equal(d.found, arpHeaders) && a.Operation == layers.ARPReply && a.Protocol == layers.EthernetTypeIPv4 &&
		len(a.SourceHwAddress) == 6 && len(a.SourceProtAddress) == 4:
		return reply{kind: model.ProbeARP, from: addr(a.SourceProtAddress), to: addr(a.DstProtAddress), mac: model.MACFrom(a.SourceHwAddress)}, true
	}
	return reply{}, false
}

func addr(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
