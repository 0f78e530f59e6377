package traffic

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/program"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// twoEnds is a node and a pod with a veth between, and sockets that talk over it.
type twoEnds struct {
	node, pod         *netns.NS
	nodeLink, podLink Link
	nodeConn, podConn *net.UDPConn
}

var (
	nodeIP = netip.MustParseAddr("10.77.0.1")
	podIP  = netip.MustParseAddr("10.77.0.2")
)

func newTwoEnds(t testing.TB) *twoEnds {
	t.Helper()
	e := &twoEnds{node: newNS(t), pod: newNS(t)}
	e.nodeLink, e.podLink = veth(t, e.node, "host0", "10.77.0.1/24", e.pod, "pod0", "10.77.0.2/24")
	e.nodeConn = listen(t, e.node, nodeIP)
	e.podConn = listen(t, e.pod, podIP)
	return e
}

func listen(t testing.TB, ns *netns.NS, a netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	inside(t, ns, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 7000)))
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// exchange sends n packets from the pod to the node, each answered, and sees
// that all arrive as they were sent.
func (e *twoEnds) exchange(t testing.TB, n int) {
	t.Helper()
	e.between(t, n, nodeIP, podIP)
}

// between is exchange with other addresses.
func (e *twoEnds) between(t testing.TB, n int, node, pod netip.Addr) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	buf := make([]byte, 100)
	for i := range n {
		ask := []byte("ask " + string(rune('a'+i%26)))
		answer := []byte("answer " + string(rune('a'+i%26)))
		hop := func(from, to *net.UDPConn, dst netip.Addr, b []byte) {
			t.Helper()
			if _, err := from.WriteToUDPAddrPort(b, netip.AddrPortFrom(dst, 7000)); err != nil {
				t.Fatal(err)
			}
			if err := to.SetReadDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			k, err := to.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			if string(buf[:k]) != string(b) {
				t.Fatalf("sent %q, received %q", b, buf[:k])
			}
		}
		hop(e.podConn, e.nodeConn, node, ask)
		hop(e.nodeConn, e.podConn, pod, answer)
	}
}

// watched opens an engine on the node that counts the pod and its link.
func (e *twoEnds) watched(t testing.TB, cfg Config) *Engine {
	t.Helper()
	cfg.NS = e.node
	eng := open(t, cfg)
	if err := eng.SetLocal([]Local{{Addr: podIP}, {Addr: nodeIP, Node: true}}); err != nil {
		t.Fatal(err)
	}
	if err := eng.SetNamespaces([]Namespace{{Inode: e.node.Inode()}, {Inode: e.pod.Inode()}}); err != nil {
		t.Fatal(err)
	}
	return eng
}

func poll(t testing.TB, e *Engine) model.Traffic {
	t.Helper()
	if err := e.Poll(time.Now()); err != nil {
		t.Fatal(err)
	}
	return e.Traffic()
}

func sourceStatus(e *Engine, name string) model.Source {
	for _, s := range e.Sources() {
		if s.Name == name {
			return s
		}
	}
	return model.Source{}
}

func TestAttach(t *testing.T) { eachMode(t, testAttach) }

func testAttach(t *testing.T, mode string) {
	ends := newTwoEnds(t)
	ends.exchange(t, 3) // and both know each other's MAC
	e := ends.watched(t, Config{Attach: mode})
	if s := sourceStatus(e, model.SourceTC); s.Status != model.Missing {
		t.Errorf("before attaching: %+v", s)
	}
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if s := sourceStatus(e, model.SourceTC); s.Status != model.OK || e.AttachMode() != mode {
		t.Errorf("after attaching, by %s: %+v", e.AttachMode(), s)
	}
	ends.exchange(t, 50)
	tr := poll(t, e)
	for _, tt := range []struct {
		a netip.Addr
		d model.Direction
		s model.Side
	}{
		{podIP, model.Ingress, model.AsSource},
		{nodeIP, model.Ingress, model.AsDestination},
		{nodeIP, model.Egress, model.AsSource},
		{podIP, model.Egress, model.AsDestination},
	} {
		h := hopOf(tr, tt.a.String(), tt.d, tt.s)
		if h.Packets != 50 || h.Link != ends.nodeLink.Name || h.IfIndex != ends.nodeLink.Index {
			t.Errorf("%s %s %s: %+v, want 50 packets", tt.a, tt.d, tt.s, h)
		}
	}
	if len(tr.Peers) != 0 {
		t.Errorf("peers between local addresses: %+v", tr.Peers)
	}
	if m := tr.MACs; len(m) != 4 || m[0].Packets != 50 || m[0].Src.IsZero() {
		t.Errorf("MACs %+v", m)
	}
}

// TestAttachFollows attaches to links that come, go, and are gone before their
// turn comes.
func TestAttachFollows(t *testing.T) { eachMode(t, testAttachFollows) }

func testAttachFollows(t *testing.T, mode string) {
	ends := newTwoEnds(t)
	e := ends.watched(t, Config{Attach: mode})
	second, _ := veth(t, ends.node, "host1", "", ends.pod, "pod1", "")
	gone := Link{Index: 9999, Name: "gone"}
	if err := e.Attach([]Link{ends.nodeLink, second, gone}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if s := sourceStatus(e, model.SourceTC); s.Status != model.OK {
		t.Errorf("with a link that had vanished: %+v", s)
	}
	attached := func(l Link, want int) {
		t.Helper()
		if n := programsOn(t, ends.node, l.Index); n != want {
			t.Errorf("%s: %d programs, want %d", l.Name, n, want)
		}
	}
	attached(ends.nodeLink, 2)
	attached(second, 2)
	// The same again changes nothing, but for flags.
	second.Uplink = true
	if err := e.Attach([]Link{second, ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	attached(ends.nodeLink, 2)
	attached(second, 2)
	inside(t, ends.node, func() error {
		l, err := netlink.LinkByName(second.Name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	// The set first has the link that is gone, then not.
	for _, set := range [][]Link{{ends.nodeLink, second}, {ends.nodeLink}} {
		if err := e.Attach(set, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if n := len(e.on); n != 1 {
			t.Errorf("%d links attached, want 1", n)
		}
	}
	if err := e.Attach(nil, time.Time{}); err != nil {
		t.Fatal(err)
	}
	attached(ends.nodeLink, 0)
	// Another link with the index of one that is gone gets programs anew.
	make := func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "again", Index: 500}, PeerName: "other"})
	}
	inside(t, ends.node, make)
	again := Link{Index: 500, Name: "again"}
	for range 2 {
		if err := e.Attach([]Link{again}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		attached(again, 2)
		inside(t, ends.node, func() error {
			l, err := netlink.LinkByIndex(500)
			if err != nil {
				return err
			}
			if err := netlink.LinkDel(l); err != nil {
				return err
			}
			return make()
		})
	}
}

// TestHandOver: Close does not wait for many links, which end all the same.
func TestHandOver(t *testing.T) {
	ends := newTwoEnds(t)
	e := ends.watched(t, Config{Janitor: newJanitor})
	if e.noTCX != nil {
		return // clsact leaves at once
	}
	links := []Link{ends.nodeLink}
	for i := range mostTCX {
		l, _ := veth(t, ends.node, fmt.Sprintf("host%d", i+1), "", ends.pod, fmt.Sprintf("pod%d", i+1), "")
		links = append(links, l)
	}
	if err := e.Attach(links, time.Time{}); err != nil || e.AttachMode() != AttachTCX {
		t.Fatal(err, e.AttachMode())
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "all links end", func() bool {
		return !slices.ContainsFunc(links, func(l Link) bool { return programsOn(t, ends.node, l.Index) > 0 })
	})
}

func TestClosed(t *testing.T) { eachMode(t, testClosed) }

func testClosed(t *testing.T, mode string) {
	ends := newTwoEnds(t)
	e := ends.watched(t, Config{Attach: mode})
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	ends.exchange(t, 2)
	poll(t, e)
	for range 2 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := programsOn(t, ends.node, ends.nodeLink.Index); n != 0 {
		t.Errorf("%d programs after close", n)
	}
	if err := e.Poll(time.Now()); err == nil {
		t.Error("a closed engine was polled")
	}
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err == nil {
		t.Error("a closed engine was attached")
	}
	if h := hopOf(e.Traffic(), podIP.String(), model.Ingress, model.AsSource); h.Packets != 2 {
		t.Errorf("after close: %+v", h)
	}
}

// programsOn counts lasthop's programs on a link, by tcx and by clsact.
func programsOn(t testing.TB, ns *netns.NS, index int) int {
	t.Helper()
	n := 0
	h, _ := filtersOn(t, ns, index)
	h.any(func(f filter) bool {
		if f.number() != 0 {
			n++
		}
		return false
	})
	inside(t, ns, func() error {
		for _, at := range tcxHooks {
			list, err := program.Attached(link.QueryOptions{Target: index, Attach: at})
			if errors.Is(err, unix.EINVAL) {
				return nil // Linux before 6.6
			}
			if err != nil {
				return err
			}
			n += len(list)
		}
		return nil
	})
	return n
}

// filtersOn lists the filters of a link, and what qdisc has them.
func filtersOn(t testing.TB, ns *netns.NS, index int) (hooked, string) {
	t.Helper()
	r := rtnlIn(t, ns)
	kinds, err := r.qdiscs()
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.hooked(index)
	if err != nil {
		t.Fatal(err)
	}
	return h, kinds[index]
}

func rtnlIn(t testing.TB, ns *netns.NS) *rtnl {
	t.Helper()
	r, err := openRTNL(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// eachMode runs a test with each way to attach that the kernel has.
func eachMode(t *testing.T, test func(t *testing.T, mode string)) {
	t.Helper()
	for _, mode := range modes(t) {
		t.Run(mode, func(t *testing.T) { test(t, mode) })
	}
}

func modes(t testing.TB) []string {
	t.Helper()
	var old *model.UnsupportedError
	err := probeTCX(newNS(t))
	if err != nil && !errors.As(err, &old) {
		t.Fatal(err)
	}
	if err != nil {
		return []string{AttachClsact}
	}
	return []string{AttachTCX, AttachClsact}
}

// TestUndisturbed attaches, detaches and attaches while packets run, and looks
// that each arrives. A clsact qdisc is there: to make one loses packets.
func TestUndisturbed(t *testing.T) { eachMode(t, testUndisturbed) }

func testUndisturbed(t *testing.T, mode string) {
	ends := newTwoEnds(t)
	clsactOf(t, ends.node, ends.nodeLink)
	e := ends.watched(t, Config{Attach: mode})
	done := make(chan error, 1)
	go func() {
		var errs []error
		for range 10 {
			errs = append(errs, e.Attach([]Link{ends.nodeLink}, time.Time{}), e.Attach(nil, time.Time{}))
		}
		done <- errors.Join(errs...)
	}()
	n := 0
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			t.Logf("%d exchanges", n)
			return
		default:
			ends.exchange(t, 10)
			n += 10
		}
	}
}

// tuntap opens a tun or tap device in a namespace.
func tuntap(t *testing.T, ns *netns.NS, name string, flags uint16) (int, Link) {
	t.Helper()
	fd := -1
	inside(t, ns, func() error {
		f, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		fd = f
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(flags)
		return unix.IoctlIfreq(f, unix.TUNSETIFF, req)
	})
	t.Cleanup(func() { unix.Close(fd) })
	return fd, config(t, ns, name, "")
}

// TestNonlinear hands in packets of which only the first bytes are linear.
func TestNonlinear(t *testing.T) {
	ns := newNS(t)
	fd, l := tuntap(t, ns, "tap0", unix.IFF_TAP|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
	e := open(t, Config{NS: ns, Debug: true})
	if err := e.SetLocal([]Local{{Addr: pod}, {Addr: pod6}}); err != nil {
		t.Fatal(err)
	}
	l.Uplink = true
	if err := e.Attach([]Link{l}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	big := func(p []byte) []byte { return append(p, make([]byte, 6000)...) }
	packets := [][]byte{
		big(tcpPacket(t, other, pod, layers.TCP{SYN: true})),
		big(tagged(tcpPacket(t, other, pod, layers.TCP{SYN: true}), 0x88a8, 0x8100)),
		big(extensions(t, 0, 60, 43, 44, 51)),
	}
	lengths := []int{14, 18, 20, 33, 34, 40, 53, 54, 60, 100, 150}
	for _, p := range packets {
		for _, linear := range lengths {
			// struct virtio_net_hdr: only hdr_len is not zero.
			h := struct {
				flags, gso                    uint8
				length, size, start, checksum uint16
			}{length: uint16(linear)}
			head := unsafe.Slice((*byte)(unsafe.Pointer(&h)), 10)
			if _, err := unix.Write(fd, append(slices.Clone(head), p...)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr := poll(t, e)
	n := uint64(len(lengths))
	if h := hopOf(tr, pod.String(), model.Ingress, model.AsDestination); h.Packets != 2*n || h.SYN != 2*n {
		t.Errorf("IPv4: packets %d, SYN %d; want %d", h.Packets, h.SYN, 2*n)
	}
	if h := hopOf(tr, pod6.String(), model.Ingress, model.AsSource); h.Packets != n || h.SYN != n {
		t.Errorf("IPv6: packets %d, SYN %d; want %d", h.Packets, h.SYN, n)
	}
	if p := peerOf(tr, pod, other); p.In.Requests != 2*n {
		t.Errorf("peer %+v, want %d asks", p.In, 2*n)
	}
	if tr.Lost.Unparsed+tr.Lost.Malformed != 0 {
		t.Errorf("%d unparsed, %d malformed", tr.Lost.Unparsed, tr.Lost.Malformed)
	}
}

// TestNoEthernet counts on a link whose packets begin with the IP header.
func TestNoEthernet(t *testing.T) {
	ns := newNS(t)
	fd, l := tuntap(t, ns, "tun0", unix.IFF_TUN|unix.IFF_NO_PI)
	e := open(t, Config{NS: ns, Debug: true})
	if err := e.SetLocal([]Local{{Addr: pod}, {Addr: pod6}}); err != nil {
		t.Fatal(err)
	}
	l.NoEthernet = true
	if err := e.Attach([]Link{l}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range [][]byte{tcpPacket(t, other, pod, layers.TCP{SYN: true}), udpPacket(t, other6, pod6)} {
		if _, err := unix.Write(fd, p[14:]); err != nil {
			t.Fatal(err)
		}
	}
	tr := poll(t, e)
	for _, a := range []netip.Addr{pod, pod6} {
		if h := hopOf(tr, a.String(), model.Ingress, model.AsDestination); h.Packets != 1 {
			t.Errorf("%s: %+v, want 1 packet", a, h)
		}
	}
	if len(tr.MACs) != 0 {
		t.Errorf("MACs %+v on a link without", tr.MACs)
	}
}

func TestFeatures(t *testing.T) {
	for _, f := range Features(newNS(t)) {
		if f.Status != model.OK {
			t.Errorf("%s: %s: %s", f.Name, f.Status, f.Detail)
		}
		if strings.TrimSpace(f.Name) == "" {
			t.Errorf("%+v has no name", f)
		}
	}
}
