package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// forwarding makes the node route for the pod, but for what it has no route
// to.
func (e *twoEnds) forwarding(t testing.TB) {
	t.Helper()
	inside(t, e.node, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			return err
		}
		return permanent(e.nodeLink, podIP)
	})
	inside(t, e.pod, func() error {
		if err := permanent(e.podLink, nodeIP); err != nil {
			return err
		}
		_, all, _ := net.ParseCIDR("0.0.0.0/0")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: e.podLink.Index, Gw: nodeIP.AsSlice(), Dst: all})
	})
}

// permanent fixes a neighbour, so that nothing waits for an answer to ARP.
func permanent(on Link, a netip.Addr) error {
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: on.Index, IP: a.AsSlice(), State: netlink.NUD_PERMANENT,
		HardwareAddr: fixedMAC(a),
	})
}

// fixedMAC is the address that the lab gives the link of an IP.
func fixedMAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{2, 0, b[0], b[1], b[2], b[3]}
}

func setMAC(t testing.TB, e *twoEnds) {
	t.Helper()
	inside(t, e.node, func() error {
		l, err := netlink.LinkByIndex(e.nodeLink.Index)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, fixedMAC(nodeIP))
	})
	inside(t, e.pod, func() error {
		l, err := netlink.LinkByIndex(e.podLink.Index)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(l, fixedMAC(podIP))
	})
}

func newRouter(t testing.TB) *twoEnds {
	t.Helper()
	e := newTwoEnds(t)
	setMAC(t, e)
	e.forwarding(t)
	return e
}

// secondPod is another address of the pod of newPair.
var secondPod = netip.MustParseAddr("10.77.0.3")

// newPair has two pods, by addresses of one namespace. The socket sends for the second.
func newPair(t testing.TB) (*twoEnds, *net.UDPConn) {
	t.Helper()
	e := newRouter(t)
	config(t, e.pod, e.podLink.Name, secondPod.String()+"/24")
	return e, listen(t, e.pod, secondPod)
}

// loseFrom sends a packet to where the node has no route.
func loseFrom(t testing.TB, conn *net.UDPConn, dst netip.Addr) {
	t.Helper()
	if _, err := conn.WriteToUDPAddrPort([]byte("lost"), netip.AddrPortFrom(dst, 9)); err != nil {
		t.Fatal(err)
	}
}

// lose sends packets from the pod to where the node has no route.
func (e *twoEnds) lose(t testing.TB, dst netip.Addr, n int) {
	t.Helper()
	for range n {
		loseFrom(t, e.podConn, dst)
	}
}

// dropped polls until n packets were counted as dropped.
func dropped(t testing.TB, e *Engine, n uint64) model.Traffic {
	t.Helper()
	var tr model.Traffic
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		tr = poll(t, e)
		var sum uint64
		for _, d := range tr.Drops {
			sum += d.Packets
		}
		if sum >= n {
			return tr
		}
	}
	t.Fatalf("drops %+v, want %d", tr.Drops, n)
	return tr
}

func TestDrops(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if s := sourceStatus(e, model.SourceDrops); s.Status != model.OK {
		t.Fatalf("drops: %+v", s)
	}
	dst := netip.MustParseAddr("203.0.113.9")
	before := time.Now()
	ends.lose(t, dst, 9)
	tr := dropped(t, e, 9)
	if len(tr.Drops) != 1 {
		t.Fatalf("drops %+v, want one kind", tr.Drops)
	}
	d := tr.Drops[0]
	if d.First.Before(before) || d.Last.Before(d.First) {
		t.Errorf("times %v, %v", d.First, d.Last)
	}
	d.First, d.Last = time.Time{}, time.Time{}
	want := model.Drop{
		Src: podIP, Dst: dst, Proto: unix.IPPROTO_UDP,
		Reason: "IP_INNOROUTES", Location: "ip_error",
		IfIndex: ends.nodeLink.Index, Link: ends.nodeLink.Name, Netns: ends.node.Inode(),
		DstMAC: model.MACFrom(fixedMAC(nodeIP)), Packets: 9,
	}
	if d != want {
		t.Errorf("got  %+v\nwant %+v", d, want)
	}
	if len(tr.Samples) != 1 {
		t.Fatalf("%d samples, want 1", len(tr.Samples))
	}
	s := tr.Samples[0]
	if s.Time.Before(before.Add(-time.Second)) || s.Time.After(time.Now().Add(time.Second)) {
		t.Errorf("sampled at %v, not about %v", s.Time, before)
	}
	// Each CPU samples its 1st, 2nd, 4th and 8th.
	if s.Count&(s.Count-1) != 0 || s.Count > 8 {
		t.Errorf("sample of the %d-th", s.Count)
	}
	if s.Reason != d.Reason || s.Location != d.Location || s.Link != d.Link || s.Src != podIP || s.Dst != dst ||
		s.SrcMAC != model.MACFrom(fixedMAC(podIP)) || s.DstMAC != d.DstMAC || s.Protocol != unix.ETH_P_IP || s.Length != 32 {
		t.Errorf("sample %+v", s)
	}
	if len(s.Head) != 32 || string(s.Head[28:]) != "lost" || netip.AddrFrom4([4]byte(s.Head[16:20])) != dst {
		t.Errorf("head %x", s.Head)
	}
	if len(lostOf(tr)) > 0 {
		t.Errorf("lost %q", tr.Lost.Detail)
	}
}

// TestDropsElsewhere loses the same packets where nobody asked for them.
func TestDropsElsewhere(t *testing.T) {
	watched, foreign := newRouter(t), newRouter(t)
	e := watched.watched(t, Config{})
	dst := netip.MustParseAddr("203.0.113.9")
	foreign.lose(t, dst, 5)
	watched.lose(t, dst, 1)
	for _, d := range dropped(t, e, 1).Drops {
		if d.Netns != watched.node.Inode() || d.Packets != 1 {
			t.Errorf("drop %+v", d)
		}
	}
	// In the pod's namespace they count: a port that nobody listens on.
	if _, err := watched.nodeConn.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(podIP, 9)); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, d := range dropped(t, e, 2).Drops {
		found = found || d.Netns == watched.pod.Inode() && d.Reason == "NO_SOCKET"
	}
	if !found {
		t.Errorf("no drop in the pod's namespace: %+v", e.Traffic().Drops)
	}
	// And no more once the pod is gone.
	if err := e.SetNamespaces([]Namespace{{Inode: watched.node.Inode()}}); err != nil {
		t.Fatal(err)
	}
	if err := e.SetLocal([]Local{{Addr: nodeIP, Node: true}}); err != nil {
		t.Fatal(err)
	}
	watched.lose(t, dst, 5)
	var sum uint64
	for _, d := range poll(t, e).Drops {
		sum += d.Packets
	}
	if sum != 2 {
		t.Errorf("%d drops, want the 2 from before", sum)
	}
}

// TestDropsOfTheNext loses packets in a namespace that has the inode of one that is gone: they
// do not count, before and after the program has seen the one that is watched.
func TestDropsOfTheNext(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	cookie, err := ends.node.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	if cookie == 0 {
		t.Fatal("this kernel does not tell a namespace's cookie")
	}
	dst := netip.MustParseAddr("203.0.113.9")
	for _, step := range []struct {
		cookie      uint64
		lose, count uint64
	}{{cookie + 1, 5, 0}, {cookie, 3, 3}, {cookie + 1, 5, 3}, {cookie, 1, 4}} {
		if err := e.SetNamespaces([]Namespace{{ends.node.Inode(), step.cookie}}); err != nil {
			t.Fatal(err)
		}
		ends.lose(t, dst, int(step.lose))
		var sum uint64
		for _, d := range poll(t, e).Drops {
			sum += d.Packets
		}
		if sum != step.count {
			t.Errorf("%+v: %d drops", step, sum)
		}
	}
}

// TestMalformedDrops has the kernel free packets with a wrong header: they are
// their sender's fault, and not lost by the programs. What a program is tested on is
// no packet.
func TestMalformedDrops(t *testing.T) {
	ends := newRouter(t)
	e := ends.watched(t, Config{})
	var empty emptyObjects
	if err := loadEmptyObjects(&empty, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { empty.Close() })
	inside(t, ends.node, func() error {
		_, _, err := empty.LasthopEmpty.Test([]byte{12: 8, 99: 0})
		return err
	})
	inside(t, ends.pod, func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		l, err := netlink.LinkByName(ends.podLink.Name)
		if err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index, Protocol: 0x0008}
		whole := udpPacket(t, podIP, netip.MustParseAddr("203.0.113.9"))
		copy(whole, fixedMAC(nodeIP))
		version := slices.Clone(whole)
		version[14] = 0x55
		for _, p := range [][]byte{version, whole[:14+12]} {
			if err := unix.Sendto(fd, p, 0, to); err != nil {
				return err
			}
		}
		return nil
	})
	// A whole packet after them shows that they were handled.
	ends.lose(t, netip.MustParseAddr("203.0.113.9"), 1)
	if l := dropped(t, e, 1).Lost; l.Malformed != 2 || l.Unparsed+l.Counters != 0 {
		t.Errorf("lost %+v, want 2 malformed and no others", l)
	}
}

// TestMissedRuns: a packet that a tc program did not run for is uncounted; a drop
// that the tracepoint's did not run for may be of any namespace.
func TestMissedRuns(t *testing.T) {
	e := newRouter(t).watched(t, Config{})
	poll(t, e)
	e.counters.missed, e.drops.missed = 2, 3
	if l := e.Traffic().Lost; l.Counters != 2 || l.Missed != 3 || len(l.Detail) != 2 {
		t.Errorf("lost %+v, want 2 packets and 3 drops uncounted", l)
	}
	// The kernel has the number.
	if l := poll(t, e).Lost; l.Counters != 0 {
		t.Errorf("lost %+v, want nothing", l)
	}
}

// TestDropLosses overflows the ring buffer and the rate.
func TestDropLosses(t *testing.T) {
	tests := map[string]struct {
		cfg   Config
		kinds int
	}{
		"ring": {Config{eventRate: 1 << 30, ringBytes: uint32(os.Getpagesize())}, 200},
		"rate": {Config{eventRate: 3}, 200},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ends := newRouter(t)
			e := ends.watched(t, tt.cfg)
			for i := range tt.kinds {
				ends.lose(t, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), 1)
			}
			tr := dropped(t, e, uint64(tt.kinds))
			if tr.Lost.Events <= 100 || tr.Lost.Counters != 0 || len(tr.Lost.Detail) == 0 {
				t.Errorf("lost %+v", tr.Lost)
			}
			if len(tr.Samples) > maxSamples {
				t.Errorf("%d samples", len(tr.Samples))
			}
		})
	}
}

// TestScanBesideDrops has one pod scan where no route leads until its quota of kinds
// is used up. Its other drops are counted by ranges, then together, and another pod's
// one by one. When those are idle that were, the quota is there again.
func TestScanBesideDrops(t *testing.T) {
	const scanned, few = 2 * maxDrops, 20
	ends, conn := newPair(t)
	e := ends.watched(t, Config{})
	if err := e.SetLocal([]Local{{Addr: podIP}, {Addr: secondPod}, {Addr: nodeIP, Node: true}}); err != nil {
		t.Fatal(err)
	}
	// Two addresses of each /24.
	scan := func() {
		t.Helper()
		for i := range scanned {
			ends.lose(t, netip.AddrFrom4([4]byte{198, byte(18 + i>>15), byte(i >> 1), byte(i & 1)}), 1)
		}
	}
	loseFew := func() {
		t.Helper()
		for i := range byte(few) {
			loseFrom(t, conn, netip.AddrFrom4([4]byte{203, 0, 113, i}))
		}
	}
	check := func(tr model.Traffic) {
		t.Helper()
		kinds := map[int]int{}
		var packets uint64
		other := 0
		for _, d := range tr.Drops {
			if d.Src == secondPod {
				other++
				if d.Range.IsValid() || d.Packets != 1 {
					t.Errorf("beside the scan: %+v", d)
				}
				continue
			}
			packets += d.Packets
			if d.Dst.IsValid() == d.Range.IsValid() {
				t.Errorf("one far end wanted: %+v", d)
			}
			kinds[d.Range.Bits()]++
		}
		// A range that is not valid has -1 bits.
		if other != few || packets != scanned || kinds[-1] == 0 || kinds[24] == 0 || kinds[0] != 1 || len(kinds) != 3 {
			t.Errorf("%d drops of the other pod, want %d; %d packets of the scan, want %d; kinds by bits %v", other, few, packets, scanned, kinds)
		}
		if tr.Lost.Counters > 0 {
			t.Errorf("lost %q", tr.Lost.Detail)
		}
		for _, s := range tr.Samples {
			if !s.Src.IsValid() || !s.Dst.IsValid() {
				t.Errorf("sample %+v", s)
			}
		}
	}
	scan()
	loseFew()
	check(dropped(t, e, scanned+few))
	if err := e.MakeRoom(time.Now().Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	scan()
	loseFew()
	check(dropped(t, e, scanned+few))
}

func TestSymbols(t *testing.T) {
	const table = `0000000000000000 A fixed
ffffffff81000100 t second.isra.0
ffffffff81000000 T first
ffffffff81000050 d data
ffffffff81000200 T third	[module]
`
	s := newSymbols()
	s.path = filepath.Join(t.TempDir(), "kallsyms")
	if err := os.WriteFile(s.path, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[uint64]string{
		0xffffffff81000000: "first",
		0xffffffff81000060: "first",
		0xffffffff810001ff: "second",
		0xffffffff81000200: "third",
		0x10:               "0x10",
	} {
		s.want(address)
		if err := s.resolve(); err != nil {
			t.Fatal(err)
		}
		if got := s.name(address); got != want {
			t.Errorf("%#x: %s, want %s", address, got, want)
		}
	}
	if !s.readable {
		t.Error("taken for hidden")
	}
	for function, want := range map[string][2]uint64{"first": {0xffffffff81000000, 0x100}, "second": {}} {
		if start, size, err := s.extent(function); err != nil || start != want[0] || size != want[1] {
			t.Errorf("%s: %d bytes at %#x, %v, want %#x", function, size, start, err, want)
		}
	}
	hidden := newSymbols()
	hidden.path = filepath.Join(t.TempDir(), "kallsyms")
	hidden.want(1)
	err := os.WriteFile(hidden.path, []byte(strings.Repeat("0000000000000000 T any\n", 3)), 0o600)
	if err := errors.Join(err, hidden.resolve()); err != nil {
		t.Fatal(err)
	}
	if hidden.readable {
		t.Error("not taken for hidden")
	}
}

// TestShapes compares Go's shapes with C's, which asserts its own.
func TestShapes(t *testing.T) {
	for name, got := range map[string][2]int{
		"address": {addrSize, 24}, "hop counter": {hopSize, 128}, "hop key": {hopKeySize, 8},
		"peer": {peerSize, 88}, "share": {int(unsafe.Sizeof(bpf.TCPeerShare{})), 96}, "quota": {quotaSize, 24}, "MACs": {macSize, 24}, "link": {linkSize, 8}, "event": {eventSize, 272},
		"kind": {int(unsafe.Sizeof(bpf.DropDropKey{})), 80},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d bytes, want %d", name, got[0], got[1])
		}
	}
}

// eventSize is that of what the drop program sends.
const eventSize = int(unsafe.Sizeof(bpf.DropDropEvent{}))

func FuzzDecodeEvent(f *testing.F) {
	event := make([]byte, eventSize)
	event[8] = 10
	f.Add(event)
	f.Add(event[:eventSize-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, s, ok := decodeEvent(b)
		if ok && (len(b) < eventSize || len(s.Head) > int(bpf.TCLimitHEAD_MAX) || !s.Src.IsValid()) {
			t.Errorf("%d bytes decoded to %+v", len(b), s)
		}
	})
}

func FuzzDecodeMaps(f *testing.F) {
	f.Add(make([]byte, 1000))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hop
		list := view[bpf.TCHopCounter](b)
		for i := range list {
			h.add(&list[i])
		}
		if len(list) != len(b)/hopSize || len(h.macs) > len(list)*int(bpf.TCLimitHOP_MACS) {
			t.Errorf("%d hop counters, %d pairs from %d bytes", len(list), len(h.macs), len(b))
		}
		var sum peerCounts
		for _, q := range view[bpf.TCPeer](b) {
			sum = sum.plus(q.Count)
			if !addrFrom(q.Remote).IsValid() {
				t.Errorf("address of %+v", q.Remote)
			}
			if c := peerCount(q.Count[0]); c.Other > c.Packets {
				t.Errorf("other %d of %d", c.Other, c.Packets)
			}
		}
		for _, o := range view[bpf.TCHopKey](b) {
			_ = direction(o.Way)
		}
	})
}

func FuzzParseSymbol(f *testing.F) {
	f.Add("ffffffff81000100 t second.isra.0\t[module]")
	f.Add(" ")
	f.Fuzz(func(t *testing.T, line string) {
		if start, name, ok := parseSymbol(line); ok && (start == 0 || name == "") {
			t.Errorf("%q: %#x %q", line, start, name)
		}
	})
}

func FuzzRemoteBits(f *testing.F) {
	f.Add([]byte{10, 9, 3, 7}, 24, []byte{10, 9, 3, 200})
	f.Add(make([]byte, 16), 48, make([]byte, 16))
	f.Fuzz(func(t *testing.T, a []byte, bits int, b []byte) {
		from, ok := netip.AddrFromSlice(a)
		in, ok2 := netip.AddrFromSlice(b)
		if !ok || !ok2 || from.Is4In6() || in.Is4In6() {
			return
		}
		p, err := from.Prefix(bits)
		if err != nil {
			return
		}
		var r remoteBits
		r.add(p)
		// As the kernel looks it up.
		i := binary.NativeEndian.Uint16(b)
		if in.Is6() {
			i ^= binary.NativeEndian.Uint16(b[2:])
		}
		if p.Contains(in) && r[i/64]>>(i%64)&1 == 0 {
			t.Errorf("%s is in %s, and would not be looked up", in, p)
		}
	})
}

// TestDropsTranslated has a rule drop packets once they have the node's address, and replies before they have the pod's.
func TestDropsTranslated(t *testing.T) {
	ends := newRouter(t)
	far := netip.MustParseAddr("203.0.113.9")
	inside(t, ends.node, func() error {
		_, dst, _ := net.ParseCIDR(far.String() + "/32")
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: ends.nodeLink.Index, Dst: dst, Gw: podIP.AsSlice()}); err != nil {
			return err
		}
		nft := exec.Command("nft", "-f", "-")
		nft.Stdin = strings.NewReader(fmt.Sprintf(`table ip t {
			chain nat { type nat hook postrouting priority 100; ip daddr %v masquerade; }
			chain last { type filter hook postrouting priority 150; ip saddr %v ip daddr %v udp dport 9 drop; }
			chain first { type filter hook prerouting priority -150; ip saddr %v drop; }
		}`, far, nodeIP, far, far))
		out, err := nft.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	e := ends.watched(t, Config{})
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ends.podConn.WriteToUDPAddrPort([]byte("asked"), netip.AddrPortFrom(far, 10)); err != nil {
		t.Fatal(err)
	}
	inside(t, ends.pod, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		reply := craft(t, &layers.IPv4{Version: 4, TTL: 9, Protocol: layers.IPProtocolUDP, SrcIP: far.AsSlice(), DstIP: nodeIP.AsSlice()},
			&layers.UDP{SrcPort: 10, DstPort: 7000})
		return unix.Sendto(fd, reply, 0, &unix.SockaddrInet4{Addr: nodeIP.As4()})
	})
	if said := strings.Contains(sourceStatus(e, model.SourceDrops).Detail, "translated"); said != !e.drops.translated {
		t.Errorf("drops: %+v", sourceStatus(e, model.SourceDrops))
	} else if said {
		return
	}
	ends.lose(t, far, 5)
	tr := dropped(t, e, 6)
	for _, want := range []struct {
		src, dst, from, to netip.Addr
		packets            uint64
	}{{podIP, far, nodeIP, far, 5}, {far, podIP, far, nodeIP, 1}} {
		i := slices.IndexFunc(tr.Drops, func(d model.Drop) bool { return d.Src == want.src && d.Dst == want.dst })
		j := slices.IndexFunc(tr.Samples, func(s model.Sample) bool { return s.Src == want.src && s.Dst == want.dst })
		if i < 0 || j < 0 || tr.Drops[i].Packets != want.packets {
			t.Fatalf("want %+v: drops %+v", want, tr.Drops)
		}
		if from, to := tr.Samples[j].Ends(); from != want.from || to != want.to {
			t.Errorf("want %+v: the sample is from %v to %v", want, from, to)
		}
	}
}
