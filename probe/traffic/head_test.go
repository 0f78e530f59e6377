package traffic

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"

	"github.com/lasthop/lasthop/probe/netns"
)

// TestKept cuts what applications sent from samples, and no header.
func TestKept(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	a6, b6 := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	secret := gopacket.Payload("visible secret of an application")
	l3 := func(frame []byte) []byte { return frame[14:] }
	withOptions := &layers.TCP{SrcPort: 1, DstPort: 2, Options: []layers.TCPOption{
		{OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: make([]byte, 8)},
	}}
	inner := l3(udpPacket(t, b, a))
	inner6 := l3(udpPacket(t, b6, a6))
	// gopacket's ICMPv6 ends before the four bytes that errors do not use.
	unused := gopacket.Payload(make([]byte, 4))
	later := ip4(a, b, layers.IPProtocolUDP)
	later.FragOffset = 100
	tests := map[string]struct {
		head []byte
		// headers is their size.
		headers int
	}{
		"tcp":            {l3(packet(t, a, b, layers.IPProtocolTCP, &layers.TCP{}, secret)), 20 + 20},
		"tcp options":    {l3(packet(t, a, b, layers.IPProtocolTCP, withOptions, secret)), 20 + 32},
		"udp":            {l3(packet(t, a, b, layers.IPProtocolUDP, udp(), secret)), 20 + 8},
		"udp over ip6":   {l3(packet(t, a6, b6, layers.IPProtocolUDP, udp(), secret)), 40 + 8},
		"echo":           {l3(packet(t, a, b, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: 8 << 8}, secret)), 20 + 8},
		"error":          {l3(packet(t, a, b, layers.IPProtocolICMPv4, &layers.ICMPv4{TypeCode: 3 << 8}, gopacket.Payload(inner), secret)), 20 + 8 + 20 + 8},
		"error of ip6":   {l3(packet(t, a6, b6, layers.IPProtocolICMPv6, &layers.ICMPv6{TypeCode: 1 << 8}, unused, gopacket.Payload(inner6), secret)), 40 + 8 + 40 + 8},
		"ipip":           {l3(packet(t, a, b, layers.IPProtocolIPv4, gopacket.Payload(inner), secret)), 20 + 20 + 8},
		"sit":            {l3(packet(t, a, b, layers.IPProtocolIPv6, gopacket.Payload(inner6), secret)), 20 + 40 + 8},
		"later fragment": {l3(craft(t, eth(layers.EthernetTypeIPv4), later, secret)), 20},
		"unknown":        {l3(packet(t, a, b, 200, secret)), 20},
		"not ip":         {secret, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := kept(tt.head)
			if want := tt.headers + payloadKept; len(got) != want || !bytes.HasPrefix(tt.head, got) {
				t.Errorf("%d bytes of %d, want %d", len(got), len(tt.head), want)
			}
			for n := range tt.head {
				if got := kept(tt.head[:n]); len(got) > tt.headers+payloadKept || !bytes.HasPrefix(tt.head[:n], got) {
					t.Errorf("of %d bytes, %d are kept", n, len(got))
				}
				kindOf(&model.Sample{Head: tt.head[:n]})
			}
		})
	}
}

// TestKindBehindExtensions finds the segment behind every header that may stand
// before it, and none in a later fragment.
func TestKindBehindExtensions(t *testing.T) {
	const syn, fragment = 0x02, 44
	for _, kinds := range [][]byte{{}, {0}, {60}, {43}, {fragment}, {51}, {0, 60, 43, fragment, 51, 60}} {
		head := extensions(t, kinds...)[14:]
		if got := kindOf(&model.Sample{Head: head}); got != syn {
			t.Errorf("behind %v the kind is %#x, want a SYN", kinds, got)
		}
		for n := range head {
			kindOf(&model.Sample{Head: head[:n]})
		}
	}
	later := extensions(t, fragment)[14:]
	later[40+2] = 1
	if got := kindOf(&model.Sample{Head: later}); got != 0 {
		t.Errorf("a later fragment is of kind %#x", got)
	}
}

// TestSampleOfEachKind drops segments of one connection, of which the last are not
// like the first.
func TestSampleOfEachKind(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	dst := netip.MustParseAddr("203.0.113.1")
	segments := []layers.TCP{{SYN: true}, {SYN: true, ACK: true}, {ACK: true}, {ACK: true}}
	raw := rawSocket(t, ends.pod)
	cpus := 0
	onEachCPU(t, func(int) {
		cpus++
		for _, s := range segments {
			if err := unix.Sendto(raw, tcpPacket(t, podIP, dst, s)[14:], 0, &unix.SockaddrInet4{Addr: dst.As4()}); err != nil {
				t.Fatal(err)
			}
		}
	})
	tr := dropped(t, e, uint64(cpus*len(segments)))
	kinds := map[uint8]int{}
	for s := range model.Each(tr.Samples) {
		kinds[kindOf(s)]++
	}
	const syn, ack = 0x02, 0x10
	if len(kinds) != 3 || kinds[syn] != 1 || kinds[syn|ack] != 1 || kinds[ack] != 1 {
		t.Errorf("samples by kind: %v", kinds)
	}
}

// rawSocket sends whole IPv4 packets in a namespace.
func rawSocket(t *testing.T, ns *netns.NS) int {
	t.Helper()
	var fd int
	inside(t, ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}
