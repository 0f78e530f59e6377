package session_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/session"
)

// rounds is how often the probe comes and goes (a tenth as often in the short form), each time once in good order
// and once by SIGKILL.
const rounds = 50

// rate and most bound the flow: packets a second, and packets in all.
const (
	rate = 500
	most = 60 * rate
)

// TestUndisturbed sends a flow from a pod through a node while the probe is
// attached, detached and killed over and over, and wants every packet at the
// other end, with the payload, the TTL and the MACs that it has without.
func TestUndisturbed(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	got, giveUp := n.capture(t)
	sent, stop := n.send(t)

	// The first packet that arrives passes with no probe, and is the measure;
	// what was sent before the links carried any is not.
	first, rounds := <-got, rounds
	if testing.Short() {
		rounds /= 10
	}
	for i := range rounds {
		n.attachAndLeave(t)
		n.attachAndKill(t)
		if left := n.attached(t); left > 0 {
			t.Fatalf("round %d: %d programs are still attached after SIGKILL", i, left)
		}
	}
	stop()
	total := <-sent
	giveUp()
	want := first.seq() + 1
	for want < total {
		frame, ok := <-got
		if !ok {
			t.Fatalf("capture ended at packet %d of %d", want, total)
		}
		if seq := frame.seq(); seq != want {
			t.Fatalf("packet %d came where %d was due: lost, doubled or out of order", seq, want)
		}
		if !bytes.Equal(frame.unchanging(), first.unchanging()) {
			t.Fatalf("packet %d differs\n got %x\nwant %x", want, frame.unchanging(), first.unchanging())
		}
		want++
	}
	t.Logf("%d packets, %d times attached and detached, %d times killed: none lost, none changed", total, rounds, rounds)
}

// node is a namespace that routes between a pod and an uplink.
type node struct {
	ns, pod, peer *netns.NS
	podAddr       netip.Addr
	peerAddr      netip.Addr
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{ns: newNetns(t), pod: newNetns(t), peer: newNetns(t),
		podAddr: netip.MustParseAddr("100.64.9.2"), peerAddr: netip.MustParseAddr("198.18.0.2")}
	h := handle(t, n.ns)
	n.join(t, h, n.pod, "podlink", "eth0", "100.64.9.1/24", "100.64.9.2/24")
	n.join(t, h, n.peer, "uplink", "far", "198.18.0.1/24", "198.18.0.2/24")
	check(t, h.RouteAdd(&netlink.Route{Gw: n.peerAddr.AsSlice()}))
	check(t, handle(t, n.pod).RouteAdd(&netlink.Route{Gw: net.IPv4(100, 64, 9, 1)}))
	check(t, n.ns.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }))
	return n
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newNetns makes a namespace that lives as long as the test.
func newNetns(t *testing.T) *netns.NS {
	t.Helper()
	var ns *netns.NS
	home, err := netns.Current()
	check(t, err)
	defer home.Close()
	check(t, home.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = netns.Current()
		return err
	}))
	t.Cleanup(func() { ns.Close() })
	return ns
}

func handle(t *testing.T, ns *netns.NS) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandleAt(netlinkNS(ns))
	check(t, err)
	t.Cleanup(h.Close)
	return h
}

// join ties the node to another namespace with a veth whose ends know each
// other's MAC for good, so that no packet waits for ARP.
func (n *node) join(t *testing.T, h *netlink.Handle, far *netns.NS, near, farName, nearAddr, farAddr string) {
	t.Helper()
	check(t, h.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: farName, PeerNamespace: netlink.NsFd(far.FD()),
	}))
	introduce(t, h, far, near, farName, nearAddr, farAddr)
}

// introduce gives both ends of a pair their addresses, and each the other's MAC.
func introduce(t *testing.T, h *netlink.Handle, far *netns.NS, near, farName, nearAddr, farAddr string) {
	t.Helper()
	fh := handle(t, far)
	a, err := h.LinkByName(near)
	check(t, err)
	b, err := fh.LinkByName(farName)
	check(t, err)
	for _, end := range []struct {
		h           *netlink.Handle
		link, other netlink.Link
		addr, peer  string
	}{{h, a, b, nearAddr, farAddr}, {fh, b, a, farAddr, nearAddr}} {
		ip, err := netlink.ParseAddr(end.addr)
		check(t, err)
		check(t, end.h.AddrAdd(end.link, ip))
		check(t, end.h.LinkSetUp(end.link))
		check(t, end.h.NeighSet(&netlink.Neigh{LinkIndex: end.link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: netip.MustParsePrefix(end.peer).Addr().AsSlice(), HardwareAddr: end.other.Attrs().HardwareAddr}))
	}
}

const port = 4711

// send starts the flow. It returns a channel that gives the number of packets
// sent once stop was called or the bound is reached.
func (n *node) send(t *testing.T) (<-chan uint32, func()) {
	t.Helper()
	var conn net.Conn
	check(t, n.pod.Do(func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(n.peerAddr, port).String())
		return err
	}))
	done, sent := make(chan struct{}), make(chan uint32, 1)
	go func() {
		defer conn.Close()
		tick := time.NewTicker(time.Second / rate)
		defer tick.Stop()
		payload := []byte("....nothing may touch this payload on its way through the node")
		for seq := uint32(0); ; seq++ {
			binary.BigEndian.PutUint32(payload, seq)
			if _, err := conn.Write(payload); err != nil || seq == most {
				sent <- seq
				return
			}
			select {
			case <-tick.C:
			case <-done:
				sent <- seq + 1
				return
			}
		}
	}()
	return sent, func() { close(done) }
}

// frame is an Ethernet frame with IPv4 and UDP.
type frame []byte

const payloadAt = 14 + 20 + 8

func (f frame) seq() uint32 { return binary.BigEndian.Uint32(f[payloadAt:]) }

// unchanging is all of the frame that is the same for each packet of the flow:
// not the IP identification and checksum, the UDP checksum, the number.
func (f frame) unchanging() []byte {
	g := bytes.Clone(f)
	clear(g[18:20])
	clear(g[24:26])
	clear(g[40:46])
	return g
}

// capture takes the flow's frames off the far end. giveUp bounds the wait for
// those that are still to come.
func (n *node) capture(t *testing.T) (frames <-chan frame, giveUp func()) {
	t.Helper()
	var fd int
	check(t, n.peer.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_IP))); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	}))
	file := os.NewFile(uintptr(fd), "packet socket")
	t.Cleanup(func() { file.Close() })
	out := make(chan frame, most+1)
	go func() {
		defer close(out)
		buf := make([]byte, 2048)
		for {
			size, err := file.Read(buf)
			if err != nil {
				return
			}
			if size > payloadAt+4 && binary.BigEndian.Uint16(buf[36:]) == port {
				out <- bytes.Clone(buf[:size])
			}
		}
	}()
	return out, func() { check(t, file.SetReadDeadline(time.Now().Add(10*time.Second))) }
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (n *node) attachAndLeave(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := session.Observe(ctx, session.Options{Options: collect.Options{NS: n.ns, HostRoot: "/nonexistent"}, For: time.Hour,
		Progress: func(model.Window, time.Time) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("observe: %v, want it to end with its context", err)
	}
}

// TestSeenWhileLeaving has the verdict read slowly: meanwhile everything is detached.
func TestSeenWhileLeaving(t *testing.T) {
	n := newNode(t)
	seen := 0
	s, err := session.Observe(t.Context(), session.Options{Options: collect.Options{NS: n.ns, HostRoot: "/nonexistent"}, For: time.Second, Seen: func(s *model.Snapshot) {
		seen++
		if s.Status(model.SourceTC) != model.OK {
			t.Errorf("the snapshot is not whole: %+v", s.Sources)
		}
		for n.attached(t) > 0 {
			runtime.Gosched()
		}
	}})
	if err != nil || s == nil || seen != 1 {
		t.Errorf("seen %d times, %v", seen, err)
	}
}

func (n *node) attachAndKill(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childOf+"="+n.ns.Path())
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "attached\n" {
		t.Errorf("child said %q, %v", line, err)
	}
	check(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("child ended well, want it killed")
	}
	if t.Failed() {
		t.FailNow()
	}
}

// attached is how many tcx programs the node's links hold.
func (n *node) attached(t *testing.T) int {
	t.Helper()
	links, err := handle(t, n.ns).LinkList()
	check(t, err)
	count := 0
	check(t, n.ns.Do(func() error {
		for _, l := range links {
			c, err := tcxPrograms(l.Attrs().Index)
			if err != nil {
				return fmt.Errorf("query %s: %w", l.Attrs().Name, err)
			}
			count += c
		}
		return nil
	}))
	return count
}
