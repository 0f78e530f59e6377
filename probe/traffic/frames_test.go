package traffic

import (
	"bytes"
	"encoding/binary"
	command "flag"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

var frames = command.Int("frames", 20_000, "how many frames TestFrames gives to the programs")

// TestFrames gives random and mutated frames to both programs, on links with and
// without Ethernet. Each passes unchanged, and is counted as what a parser in Go takes
// it for.
func TestFrames(t *testing.T) {
	seeds := seedFrames(t)
	for i, tt := range []struct {
		name      string
		link      Link
		direction model.Direction
	}{
		{"ingress", Link{Uplink: true}, model.Ingress},
		{"egress", Link{Uplink: true}, model.Egress},
		{"ingress without Ethernet", Link{Uplink: true, NoEthernet: true}, model.Ingress},
		{"egress without Ethernet", Link{Uplink: true, NoEthernet: true}, model.Egress},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench{open(t, Config{NS: newNS(t), Pairs: true}), t}
			tt.link.Index, tt.link.Name = loopback, "lo"
			if err := b.setLink(tt.link); err != nil {
				t.Fatal(err)
			}
			if err := b.SetLocal([]Local{{Addr: pod, Pairs: true}, {Addr: pod6}, {Addr: rawPod}, {Addr: rawPod6}, {Addr: node, Node: true}}); err != nil {
				t.Fatal(err)
			}
			// All other addresses are of a range, so that every packet is counted.
			if err := b.SetPrefixes([]netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}); err != nil {
				t.Fatal(err)
			}
			m := mutator{Rand: rand.New(rand.NewPCG(1, uint64(i))), seeds: seeds}
			var want counted
			p, out := b.program(tt.direction), make([]byte, maxFrame)
			for range *frames / 4 {
				frame := m.frame()
				o := ebpf.RunOptions{Data: frame, DataOut: out}
				ret, err := p.Run(&o)
				if err != nil {
					t.Fatalf("%d bytes: %v: %x", len(frame), err, frame)
				}
				if int32(ret) != -1 || !bytes.Equal(o.DataOut, frame) {
					t.Fatalf("returned %d, and made of\n%x\n%x", int32(ret), frame, o.DataOut)
				}
				want.take(frame, tt.link.NoEthernet)
			}
			tr := b.traffic()
			var got counted
			ends := map[model.Side]uint64{}
			for _, h := range tr.Hops {
				ends[h.Side] += h.Packets
			}
			for _, a := range tr.ARP {
				got.neighbors += a.Packets
			}
			got.packets, got.malformed = ends[model.AsSource], tr.Lost.Malformed
			// That table has room for so many.
			got.neighbors += b.counters.lost[bpf.TCLostLOST_NEIGH]
			if got != want || ends[model.AsDestination] != want.packets || tr.Lost.Unparsed != 0 {
				t.Errorf("counted %+v, %d by destination, %d unparsed; want %+v", got, ends[model.AsDestination], tr.Lost.Unparsed, want)
			}
			if want.packets == 0 || want.malformed == 0 || want.neighbors == 0 {
				t.Errorf("not all kinds were tried: %+v", want)
			}
		})
	}
}

// Pods whose packets say what they are without Ethernet: Program.Run takes the
// EtherType from bytes 12 and 13 all the same, which are of the source address there.
var (
	rawPod  = netip.MustParseAddr("8.0.0.5")
	rawPod6 = netip.MustParseAddr("fd00:1:86dd::5")
)

// counted is what becomes of frames. One that is cut off behind its IP header is both
// counted and malformed.
type counted struct{ packets, neighbors, malformed uint64 }

// take adds a frame, by a parser that has nothing in common with the programs'.
func (c *counted) take(frame []byte, noEthernet bool) {
	ethertype, rest := binary.BigEndian.Uint16(frame[12:]), frame
	if !noEthernet {
		rest = frame[14:]
		for tags := 0; tags < 2 && (ethertype == 0x8100 || ethertype == 0x88a8); tags++ {
			if len(rest) < 4 {
				c.malformed++
				return
			}
			ethertype, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
		}
	}
	switch ethertype {
	case 0x0806:
		c.arp(rest)
	case 0x0800:
		if len(rest) < 20 || rest[0]>>4 != 4 || rest[0]&15 < 5 {
			c.malformed++
			return
		}
		c.packets++
		if binary.BigEndian.Uint16(rest[6:])&0x1fff == 0 {
			c.transport(rest[9], after(rest, int(rest[0]&15)*4), validIPv4)
		}
	case 0x86dd:
		c.ipv6(rest)
	}
}

func (c *counted) arp(b []byte) {
	switch {
	case len(b) < 28:
		c.malformed++
	case bytes.Equal(b[:6], []byte{0, 1, 8, 0, 6, 4}) && b[6] == 0 && (b[7] == 1 || b[7] == 2):
		c.neighbors++
	}
}

func (c *counted) ipv6(b []byte) {
	if !validIPv6(b) {
		c.malformed++
		return
	}
	next, limit, rest := b[6], b[7], b[40:]
	for n := 0; n < 6 && slices.Contains([]byte{0, 43, 44, 51, 60}, next); n++ {
		if len(rest) < 8 {
			c.packets++
			c.malformed++
			return
		}
		size := 8 + int(rest[1])*8
		switch next {
		case 44:
			if binary.BigEndian.Uint16(rest[2:])&0xfff8 != 0 {
				c.packets++
				return
			}
			size = 8
		case 51:
			size = 8 + int(rest[1])*4
		}
		next, rest = rest[0], after(rest, size)
	}
	if next == 58 && limit == 255 && len(rest) >= 8 && (rest[0] == 135 || rest[0] == 136) {
		if len(rest) >= 24 {
			c.neighbors++
			return
		}
		c.packets++
		c.malformed++
		return
	}
	c.packets++
	c.transport(next, rest, validIPv6)
}

// transport looks at the transport header, and at the packet that an error quotes.
func (c *counted) transport(proto byte, b []byte, valid func([]byte) bool) {
	errors := map[byte][]byte{1: {3, 4, 11, 12}, 58: {1, 2, 3, 4}}[proto]
	need := map[byte]int{6: 20, 1: 8, 58: 8}[proto]
	if len(b) < need || len(errors) > 0 && slices.Contains(errors, b[0]) && !valid(b[8:]) {
		c.malformed++
	}
}

func validIPv4(b []byte) bool { return len(b) >= 20 && b[0]>>4 == 4 && b[0]&15 >= 5 }
func validIPv6(b []byte) bool { return len(b) >= 40 && b[0]>>4 == 6 }

// after is what stands behind n bytes.
func after(b []byte, n int) []byte { return b[min(n, len(b)):] }

// seedFrames are frames of all kinds that pass a node.
func seedFrames(t *testing.T) [][]byte {
	t.Helper()
	ls := func(l ...gopacket.SerializableLayer) []gopacket.SerializableLayer { return l }
	inner := ls(ip4(pod, remote, layers.IPProtocolTCP), &layers.TCP{SrcPort: 4000, DstPort: 80, SYN: true})
	behind := func(outer ...gopacket.SerializableLayer) []byte { return craft(t, append(outer, inner...)...) }
	vxlan := udp()
	vxlan.DstPort = 4789
	later := tcpPacket(t, pod, other, layers.TCP{ACK: true})
	binary.BigEndian.PutUint16(later[14+6:], 100)
	all := [][]byte{
		later,
		behind(eth(layers.EthernetTypeIPv4), ip4(node, other, layers.IPProtocolIPv4)),
		behind(eth(layers.EthernetTypeIPv4), ip4(node, other, layers.IPProtocolGRE), &layers.GRE{Protocol: layers.EthernetTypeIPv4}),
		behind(eth(layers.EthernetTypeIPv4), ip4(node, other, layers.IPProtocolUDP), vxlan, &layers.VXLAN{VNI: 7, ValidIDFlag: true}, eth(layers.EthernetTypeIPv4)),
		behind(eth(layers.EthernetTypeIPv6), ip6(pod6, other6, layers.IPProtocolIPv4)),
		extensions(t, 44), extensions(t, 60, 51),
		tagged(arp(t, layers.ARPReply, node, pod, macA), 0x88a8, 0x8100),
		udpPacket(t, rawPod, pod)[14:], tcpPacket(t, rawPod, other, layers.TCP{})[14:],
		packet(t, rawPod, pod, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(11, 0)}, gopacket.Payload(udpPacket(t, pod, remote)[14:]))[14:],
		udpPacket(t, rawPod6, other6)[14:], tcpPacket(t, rawPod6, pod6, layers.TCP{})[14:], rawSolicit(t),
	}
	// The order of a map would be another each time.
	named := every(t)
	names := make([]string, 0, len(named))
	for name := range named {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, named[name])
	}
	return all
}

// rawSolicit is a neighbour solicitation without Ethernet.
func rawSolicit(t *testing.T) []byte {
	t.Helper()
	p := solicit(t, pod6, macA)[14:]
	source := rawPod6.As16()
	copy(p[8:], source[:])
	return p
}

// maxFrame bounds the frames, in bytes.
const maxFrame = 512

// mutator makes frames, from seeds or of nothing.
type mutator struct {
	*rand.Rand
	seeds [][]byte
}

func (m mutator) frame() []byte {
	var f []byte
	if m.IntN(16) == 0 {
		f = make([]byte, 14+m.IntN(maxFrame/4))
		for i := range f {
			f[i] = byte(m.Uint32())
		}
		binary.BigEndian.PutUint16(f[12:], m.ethertype())
	} else {
		f = slices.Clone(m.seeds[m.IntN(len(m.seeds))])
	}
	for range m.IntN(5) {
		f = m.mutate(f)
	}
	return runnable(f)
}

func (m mutator) mutate(f []byte) []byte {
	at := m.IntN(len(f))
	switch m.IntN(8) {
	case 0, 1:
		f[at] ^= 1 << m.IntN(8)
	case 2:
		f[at] = []byte{0, 1, 4, 6, 17, 43, 44, 0x45, 0x4f, 51, 58, 60, 0x60, 135, 136, 255}[m.IntN(16)]
	case 3:
		f[at] = byte(m.Uint32())
	case 4:
		f = f[:max(at, 14)]
	case 5:
		f = append(f, make([]byte, m.IntN(64))...)
	case 6:
		f = tagged(f, m.ethertype())
	case 7:
		other := m.seeds[m.IntN(len(m.seeds))]
		f = append(f[:max(at, 14)], other[m.IntN(len(other)):]...)
	}
	return f[:min(len(f), maxFrame)]
}

func (m mutator) ethertype() uint16 {
	return []uint16{0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x88cc, 0x05dc}[m.IntN(7)]
}

// runnable is a frame that the kernel runs programs on: whole up to the IP header,
// where that is next.
func runnable(f []byte) []byte {
	least := map[uint16]int{0x0800: 14 + 20, 0x86dd: 14 + 40}[binary.BigEndian.Uint16(f[12:])]
	if len(f) < least {
		return tagged(f, 0x8100)
	}
	return f
}
