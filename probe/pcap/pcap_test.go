package pcap_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/pcap"
)

// head serializes a packet from its network header on, as much as is kept.
func head(t *testing.T, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, l...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()[:min(len(b.Bytes()), 128)]
}

func samples(t *testing.T) []model.Sample {
	t.Helper()
	four := func(p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 63, Protocol: p, Flags: layers.IPv4DontFragment, SrcIP: net.IPv4(10, 9, 1, 2), DstIP: net.IPv4(10, 9, 8, 7)}
	}
	ip6 := &layers.IPv6{Version: 6, HopLimit: 61, NextHeader: layers.IPProtocolUDP, SrcIP: net.ParseIP("fd00:9::2"), DstIP: net.ParseIP("fd00:8::7")}
	return []model.Sample{
		{Reason: "NETFILTER_DROP", Location: "nft_do_chain", Link: "lxc\x1b[31m", IfIndex: 9, Protocol: 0x800, Length: 60,
			SrcMAC: model.MAC{2, 0, 0, 0, 0, 1}, DstMAC: model.MAC{2, 0, 0, 0, 0, 2},
			Head: head(t, four(layers.IPProtocolTCP), &layers.TCP{SrcPort: 40112, DstPort: 443, SYN: true})},
		{Location: "ip_error", IfIndex: 4, Netns: 4026532001, Protocol: 0x86dd, Length: 1400,
			Head: head(t, ip6, &layers.UDP{SrcPort: 5353, DstPort: 53}, gopacket.Payload(make([]byte, 1352)))},
		{Reason: "NETFILTER_DROP", Location: "nft_do_chain", Link: "lxc\x1b[31m", IfIndex: 9, Protocol: 0x800, Length: 84,
			Src: netip.MustParseAddr("10.9.1.2"), Head: head(t, four(layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(8, 0)})},
		{Reason: "NEIGH_FAILED", Location: strings.Repeat("x", 400), Protocol: 0x806, Length: 28,
			Head: head(t, &layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1,
				SourceHwAddress: make([]byte, 6), SourceProtAddress: []byte{10, 9, 0, 1}, DstHwAddress: make([]byte, 6), DstProtAddress: []byte{10, 9, 1, 2}})},
	}
}

// TestOnce gives two samples of one place and pair, which readings repeat until
// there are later ones.
func TestOnce(t *testing.T) {
	var b bytes.Buffer
	w, err := pcap.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	list := []model.Sample{{Time: time.Unix(1700000000, 1), Protocol: 0x800, Head: []byte{1}}, {Time: time.Unix(1700000000, 2), Protocol: 0x800, Head: []byte{2}}}
	for range 3 {
		if err := w.Write(list); err != nil {
			t.Fatal(err)
		}
	}
	r, err := pcapgo.NewNgReader(&b, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if data, _, err := r.ReadPacketData(); err != nil || data[14] != byte(i+1) {
			t.Errorf("packet %d: % x, %v", i, data, err)
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func write(t *testing.T) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w, err := pcap.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	list := samples(t)
	for i := range list {
		list[i].Time = time.Unix(1700000000, int64(i)*1001)
		// What was given before is not written again.
		if err := w.Write(list[:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	return &b
}

func TestWrite(t *testing.T) {
	r, err := pcapgo.NewNgReader(write(t), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{`lxc\x1b[31m NETFILTER_DROP nft_do_chain`, "link4@net:[4026532001] no-reason ip_error",
		`lxc\x1b[31m NETFILTER_DROP nft_do_chain`, "no-link NEIGH_FAILED " + strings.Repeat("x", 179)}
	for i, s := range samples(t) {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		in, err := r.Interface(ci.InterfaceIndex)
		if err != nil || in.Name != names[i] || in.LinkType != layers.LinkTypeEthernet {
			t.Errorf("packet %d: interface %+v, %v; want %q", i, in, err, names[i])
		}
		if ci.Length != 14+s.Length || !ci.Timestamp.Equal(time.Unix(1700000000, int64(i)*1001)) || !bytes.Equal(data[14:], s.Head) ||
			!bytes.Equal(data[:6], s.DstMAC[:]) || !bytes.Equal(data[6:12], s.SrcMAC[:]) {
			t.Errorf("packet %d: %+v, % x", i, ci, data)
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

// TestPlaces wants one interface for one place: what has no link died in one,
// in whichever namespace that was.
func TestPlaces(t *testing.T) {
	var b bytes.Buffer
	w, err := pcap.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	for netns := range uint32(3) {
		s := model.Sample{Time: time.Unix(1700000000, int64(netns)), Reason: "NO_SOCKET", Location: "tcp_v4_rcv", Netns: 4026532001 + netns, Protocol: 0x800, Head: make([]byte, 20)}
		if err := w.Write([]model.Sample{s}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := pcapgo.NewNgReader(&b, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, ci, err := r.ReadPacketData()
		if err != nil || ci.InterfaceIndex != 1 {
			t.Errorf("interface %d, %v", ci.InterfaceIndex, err)
		}
	}
	if r.NInterfaces() != 2 {
		t.Errorf("%d interfaces", r.NInterfaces())
	}
}

// TestTcpdump has tcpdump read the file, one without packets too.
func TestTcpdump(t *testing.T) {
	dir := t.TempDir()
	var empty bytes.Buffer
	if _, err := pcap.NewWriter(&empty); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"full":  {"10.9.1.2.40112 > 10.9.8.7.443: Flags [S]", "fd00:9::2.5353 > fd00:8::7.53", "ICMP echo request", "who-has 10.9.1.2 tell 10.9.0.1"},
		"empty": nil,
	} {
		b := write(t)
		if name == "empty" {
			b = &empty
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("tcpdump", "-nr", file).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
		for _, w := range want {
			if !strings.Contains(string(out), w) {
				t.Errorf("%q is not in:\n%s", w, out)
			}
		}
	}
}

func TestDescribe(t *testing.T) {
	want := []string{
		"10.9.1.2:40112 > 10.9.8.7:443 TCP SYN ttl 63 DF, 60 bytes",
		"[fd00:9::2]:5353 > [fd00:8::7]:53 UDP hop limit 61, 1400 bytes",
		"10.9.1.2 > 10.9.8.7 ICMP EchoRequest ttl 63 DF, 84 bytes",
		"ARP who has 10.9.1.2, tell 10.9.0.1, 28 bytes",
	}
	for i, s := range samples(t) {
		if got := pcap.Describe(s); got != want[i] {
			t.Errorf("got %q, want %q", got, want[i])
		}
	}
}

// FuzzDescribe describes whatever comes.
func FuzzDescribe(f *testing.F) {
	f.Add(uint16(0x800), []byte{0x45, 0, 0, 40})
	f.Add(uint16(0x86dd), []byte{0x60})
	f.Add(uint16(0x806), []byte{0, 1, 8, 0, 255, 255})
	f.Fuzz(func(t *testing.T, protocol uint16, b []byte) {
		if text := pcap.Describe(model.Sample{Protocol: protocol, Head: b}); text == "" || strings.ContainsAny(text, "\x1b\n") {
			t.Errorf("%q", text)
		}
	})
}
