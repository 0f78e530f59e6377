package traffic

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// TestMain runs the tests, then looks for descriptors that they left open.
func TestMain(m *testing.M) {
	if os.Getenv(janitorEnv) != "" {
		if Janitor() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(victimEnv) != "" {
		victim()
	}
	before := descriptors()
	code := m.Run()
	// Namespaces and memory maps are released by finalizers too.
	runtime.GC()
	if after := descriptors(); code == 0 && after > before+1 {
		fmt.Fprintf(os.Stderr, "descriptors leaked: %d before, %d after\n", before, after)
		code = 1
	}
	os.Exit(code)
}

// descriptors counts those of BPF objects and namespaces; the runtime opens
// others as it likes.
func descriptors() int {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, d := range dir {
		to, _ := os.Readlink("/proc/self/fd/" + d.Name())
		if bytes.HasPrefix([]byte(to), []byte("net:")) || bytes.Contains([]byte(to), []byte("bpf")) {
			n++
		}
	}
	return n
}

// newNS makes a network namespace with its loopback up. It is gone when the
// test is.
func newNS(t testing.TB) *netns.NS {
	t.Helper()
	type result struct {
		ns  *netns.NS
		err error
	}
	made := make(chan result)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{err: err}
			return
		}
		ns, err := netns.Current()
		made <- result{ns, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatalf("make namespace: %v", r.err)
	}
	t.Cleanup(func() { r.ns.Close() })
	inside(t, r.ns, func() error { return up("lo") })
	return r.ns
}

func inside(t testing.TB, ns *netns.NS, f func() error) {
	t.Helper()
	if err := ns.Do(f); err != nil {
		t.Fatal(err)
	}
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// veth makes a pair of links, one in each namespace, with addresses, up.
func veth(t testing.TB, a *netns.NS, aName, aAddr string, b *netns.NS, bName, bAddr string) (Link, Link) {
	t.Helper()
	inside(t, a, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: aName},
			PeerName:      bName,
			PeerNamespace: netlink.NsFd(b.FD()),
		})
	})
	return config(t, a, aName, aAddr), config(t, b, bName, bAddr)
}

func config(t testing.TB, ns *netns.NS, name, addr string) Link {
	t.Helper()
	out := Link{Name: name}
	inside(t, ns, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		out.Index = l.Attrs().Index
		if addr != "" {
			a, err := netlink.ParseAddr(addr)
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, a); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(l)
	})
	return out
}

func open(t testing.TB, cfg Config) *Engine {
	t.Helper()
	e, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e
}

// bench is an engine whose programs are run on crafted packets.
type bench struct {
	*Engine
	t testing.TB
}

// pod and others are the addresses of the crafted packets.
var (
	pod    = netip.MustParseAddr("10.1.2.5")
	pod2   = netip.MustParseAddr("10.1.2.6")
	pod6   = netip.MustParseAddr("fd00:1::5")
	node   = netip.MustParseAddr("192.168.7.4")
	remote = netip.MustParseAddr("10.9.3.7")
	other  = netip.MustParseAddr("172.20.0.9")
	other6 = netip.MustParseAddr("2001:db8::9")

	macA = net.HardwareAddr{2, 0, 0, 0, 0, 0xa}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 0xb}
)

// newBench counts pod, pod2, pod6 and node on the loopback, which crafted
// packets come by.
func newBench(t testing.TB, l Link, more ...Local) bench {
	t.Helper()
	b := bench{open(t, Config{NS: newNS(t), MaxAddrs: 64, MaxLinks: 8, Debug: true}), t}
	l.Index = loopback
	if l.Name == "" {
		l.Name = "lo"
	}
	if err := b.setLink(l); err != nil {
		t.Fatal(err)
	}
	err := b.SetLocal(append([]Local{{Addr: pod}, {Addr: pod2}, {Addr: pod6}, {Addr: node, Node: true}}, more...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b bench) program(d model.Direction) *ebpf.Program {
	if d == model.Ingress {
		return b.coll.Programs[bpf.TCProgLasthopIngress]
	}
	return b.coll.Programs[bpf.TCProgLasthopEgress]
}

// run gives one packet to a program, and sees that it comes out untouched,
// with the verdict "next".
func (b bench) run(d model.Direction, packet []byte) {
	b.t.Helper()
	const next = -1
	ret, out, err := b.program(d).Test(packet)
	if err != nil {
		b.t.Fatalf("run program on %d bytes: %v", len(packet), err)
	}
	if int32(ret) != next {
		b.t.Errorf("program returned %d, want %d", int32(ret), next)
	}
	if !bytes.Equal(out, packet) {
		b.t.Errorf("program changed the packet:\n%x\n%x", packet, out)
	}
}

func (b bench) traffic() model.Traffic {
	b.t.Helper()
	if err := b.Poll(time.Unix(1000, 0)); err != nil {
		b.t.Fatal(err)
	}
	return b.Traffic()
}

// craft serializes layers, with lengths and checksums made right.
func craft(t testing.TB, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	for i, l := range ls {
		// Checksums of the transport are over the network's addresses.
		type overNetwork interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}
		if o, ok := l.(overNetwork); ok {
			for j := i - 1; j >= 0; j-- {
				if n, ok := ls[j].(gopacket.NetworkLayer); ok {
					if err := o.SetNetworkLayerForChecksum(n); err != nil {
						t.Fatal(err)
					}
					break
				}
			}
		}
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, ls...); err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(buf.Bytes())
}

func eth(t layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: macA, DstMAC: macB, EthernetType: t}
}

func ip4(src, dst netip.Addr, p layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: p, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func ip6(src, dst netip.Addr, p layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 63, NextHeader: p, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func udp() *layers.UDP { return &layers.UDP{SrcPort: 4000, DstPort: 53} }

// packet is an Ethernet frame with what is behind the IP header.
func packet(t testing.TB, src, dst netip.Addr, p layers.IPProtocol, ls ...gopacket.SerializableLayer) []byte {
	t.Helper()
	if src.Is4() {
		return craft(t, append([]gopacket.SerializableLayer{eth(layers.EthernetTypeIPv4), ip4(src, dst, p)}, ls...)...)
	}
	return craft(t, append([]gopacket.SerializableLayer{eth(layers.EthernetTypeIPv6), ip6(src, dst, p)}, ls...)...)
}

func udpPacket(t testing.TB, src, dst netip.Addr) []byte {
	t.Helper()
	return packet(t, src, dst, layers.IPProtocolUDP, udp(), gopacket.Payload("hello"))
}

func tcpPacket(t testing.TB, src, dst netip.Addr, tcp layers.TCP) []byte {
	t.Helper()
	tcp.SrcPort, tcp.DstPort = 4000, 80
	return packet(t, src, dst, layers.IPProtocolTCP, &tcp)
}

// lostOf says what was lost, but for drops that may be anybody's on this machine.
func lostOf(tr model.Traffic) []model.Uncounted {
	return slices.DeleteFunc(slices.Clone(tr.Lost.Detail), func(u model.Uncounted) bool {
		return u.Why == "drops on this machine during another one's count"
	})
}

// hopOf is the count of one address or range at the loopback; zero when there
// is none.
func hopOf(tr model.Traffic, who string, d model.Direction, s model.Side) model.HopCount {
	for _, h := range tr.Hops {
		name := h.Prefix.String()
		if h.Addr.IsValid() {
			name = h.Addr.String()
		}
		if name == who && h.Direction == d && h.Side == s {
			return h
		}
	}
	return model.HopCount{}
}

func peerOf(tr model.Traffic, local, remote netip.Addr) model.Peer {
	for _, p := range tr.Peers {
		if p.Local == local && p.Remote == remote {
			return p
		}
	}
	return model.Peer{}
}

func epoch(seconds int) time.Time { return time.Unix(int64(seconds), 0) }
