package collect

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// A large node, as of the cost target.
const (
	benchPods  = 250
	benchRules = 2000
	benchFlows = 20000
)

// bigNode builds a node with bridged pods behind it, rules for each and a
// connection table.
func bigNode(t testing.TB, pods, rules, flows int) *nstest.NS {
	t.Helper()
	node := nstest.Named(t, "node")
	fabric := nstest.Named(t, "fabric")
	names := make([]string, pods)
	var add, del strings.Builder
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", strings.TrimSuffix(node.Name, "node"), i)
		fmt.Fprintf(&add, "netns add %s\n", names[i])
		fmt.Fprintf(&del, "netns del %s\n", names[i])
	}
	node.Feed(add.String(), "ip", "-batch", "-")
	t.Cleanup(func() { node.Feed(del.String(), "ip", "-batch", "-") })

	node.Run(
		"ip link set lo up",
		"ip link add br0 type bridge", "ip addr add 10.240.0.4/16 dev br0", "ip link set br0 up",
		"ip link add up0 type veth peer name f0 netns "+fabric.Name, "ip link set up0 master br0", "ip link set up0 up",
		"ip route add default via 10.240.0.1 dev br0",
	)
	fabric.Run("ip link set f0 up", "ip link add edge type bridge", "ip link set edge up", "ip route add default dev edge")
	var links strings.Builder
	for i, name := range names {
		fmt.Fprintf(&links, "link add p%d type veth peer name eth0 netns %s\nlink set p%d master br0\nlink set p%d up\n", i, name, i, i)
	}
	node.Feed(links.String(), "ip", "-batch", "-")
	for i, name := range names {
		if err := configure(name, podAddress(i)); err != nil {
			t.Fatal(err)
		}
	}
	var frames strings.Builder
	frames.WriteString("*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\n")
	for i := range rules / 2 {
		ip := podAddress(i)
		fmt.Fprintf(&frames, "-A PREROUTING -p ARP --arp-op Request --arp-ip-dst %s -j arpreply --arpreply-mac 02:00:00:00:%02x:%02x\n", ip, i/256, i%256)
		fmt.Fprintf(&frames, "-A PREROUTING -p IPv4 -i up0 --ip-dst %s -j dnat --to-dst 02:00:00:00:%02x:%02x --dnat-target ACCEPT\n", ip, i/256, i%256)
	}
	node.Feed(frames.String(), "ebtables-nft-restore")
	connect(t, node, pods, flows)
	return node
}

func podAddress(i int) net.IP { return net.IPv4(10, 240, byte(1+i/200), byte(i%200+4)).To4() }

// configure gives the pod in a named namespace its address and default route.
func configure(name string, ip net.IP) error {
	ns, err := netns.Named(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := h.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(16, 32)}}); err != nil {
		return err
	}
	if err := h.LinkSetUp(l); err != nil {
		return err
	}
	return h.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.IPv4(10, 240, 0, 1)})
}

// connect adds connections of the pods to the table.
func connect(t testing.TB, node *nstest.NS, pods, flows int) {
	t.Helper()
	h, err := netlink.NewHandleAt(vnetns.NsHandle(node.FD()), unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for i := range flows {
		pod, peer := podAddress(i%pods), net.IPv4(10, 241, byte(i/250/250), byte(i/250%250+1)).To4()
		f := &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET,
			Forward:    netlink.IPTuple{SrcIP: pod, DstIP: peer, SrcPort: uint16(1024 + i%60000), DstPort: 443, Protocol: unix.IPPROTO_TCP},
			Reverse:    netlink.IPTuple{SrcIP: peer, DstIP: pod, SrcPort: 443, DstPort: uint16(1024 + i%60000), Protocol: unix.IPPROTO_TCP},
			TimeOut:    3600,
			ProtoInfo:  &netlink.ProtoInfoTCP{State: nlStateEstablished},
		}
		if err := h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
			t.Fatalf("create connection %d: %v", i, err)
		}
	}
}

const nlStateEstablished = 3

func BenchmarkState(b *testing.B) {
	node := bigNode(b, benchPods, benchRules, benchFlows)
	c, err := Open(Options{NS: node.NS, HostRoot: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var s *model.Snapshot
	for b.Loop() {
		if s, err = c.State(context.Background(), Losses{}); err != nil {
			b.Fatal(err)
		}
	}
	if len(s.Pods) != benchPods || len(s.FrameRules) != benchRules || len(s.Flows) < benchFlows {
		b.Fatalf("read %d pods, %d rules, %d connections", len(s.Pods), len(s.FrameRules), len(s.Flows))
	}
}

func BenchmarkQuick(b *testing.B) {
	node := bigNode(b, benchPods, 0, 0)
	c, err := Open(Options{NS: node.NS, HostRoot: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for b.Loop() {
		if _, _, err := c.Quick(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
