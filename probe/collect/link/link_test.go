package link

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/collect/sysctl"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

func FuzzLink(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		l, _, afSpec, err := decodeLink(m)
		if err == nil {
			_, _ = sysctl.Decode(l.Name, afSpec)
		}
	})
}

func FuzzVLANs(f *testing.F) {
	info := func(flags, vlan byte) []byte {
		return dump.Append(nil, nl.IFLA_BRIDGE_VLAN_INFO, []byte{flags, 0, vlan, 0})
	}
	spec := slices.Concat(info(nl.BRIDGE_VLAN_INFO_PVID, 1), info(nl.BRIDGE_VLAN_INFO_RANGE_BEGIN, 5), info(nl.BRIDGE_VLAN_INFO_RANGE_END, 9))
	m := dump.Append(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_AF_SPEC, spec)
	f.Add(m)
	f.Add(m[:len(m)-3])
	f.Fuzz(func(t *testing.T, m []byte) {
		if v, err := decodeVLANs(m); err == nil && len(m) < unix.SizeofIfInfomsg {
			t.Errorf("%+v from %d bytes without an error", v, len(m))
		}
	})
}

// TestBridge wants the settings of bridges and ports as bridge(8) sets them.
func TestBridge(t *testing.T) {
	node := nstest.New(t)
	node.Run(
		"ip link add br7 type bridge", "ip link add br8 type bridge stp_state 1 mcast_snooping 0",
		"ip link add v1 type veth peer name v1p", "ip link add v2 type veth peer name v2p", "ip link add v3 type veth peer name v3p",
		"ip link set v1 master br7", "ip link set v2 master br7", "ip link set v3 master br8",
		"ip link set br7 up", "ip link set v1 up", "ip link set v1p up", "ip link set v2 up", "ip link set v2p up",
		"bridge link set dev v1 isolated on", "bridge link set dev v2 learning off flood off bcast_flood off mcast_flood off",
		"ip link set br8 up", "ip link set v3 up", "ip link set v3p up",
	)
	table := readEnabled(t, node)
	for _, want := range []model.Link{
		{Name: "br7", Bridge: &model.Bridge{Snooping: true}},
		{Name: "br8", Bridge: &model.Bridge{STP: true}},
		{Name: "v1", Port: &model.BridgePort{State: model.PortForwarding, Isolated: true, Learning: true, Flood: true, BroadcastFlood: true}},
		{Name: "v2", Port: &model.BridgePort{State: model.PortForwarding, MulticastOff: true}},
		{Name: "v3", Port: &model.BridgePort{State: model.PortListening, Settling: true, Learning: true, Flood: true, BroadcastFlood: true}},
		{Name: "v1p"},
	} {
		l := find(t, table.Links, want.Name)
		got := model.Link{Name: l.Name, Port: l.Port, Bridge: l.Bridge, VLANs: l.VLANs}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: port %+v, bridge %+v, VLANs %+v", l.Name, l.Port, l.Bridge, l.VLANs)
		}
	}
}

// readEnabled reads a node's links once no bridge's port is disabled: a port is enabled some
// time after its peer is up, and the kernel tells of it.
func readEnabled(t *testing.T, node *nstest.NS) Table {
	t.Helper()
	changes, err := nl.SubscribeAt(vnetns.NsHandle(node.FD()), vnetns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	c, err := dump.Open(node.NS, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		table, err := Read(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(table.Links, func(l model.Link) bool { return l.Port != nil && l.Port.State == model.PortDisabled }) {
			return table
		}
		if _, _, err := changes.Receive(); err != nil {
			t.Fatal(err)
		}
	}
}

// byFamily answers dumps by the family that they ask for.
type byFamily map[byte][][]byte

func (b byFamily) Each(_ uint16, request []byte, reply uint16, f func(m []byte) error) error {
	if reply != unix.RTM_NEWLINK {
		return nil
	}
	for _, m := range b[request[0]] {
		if err := f(m); err != nil {
			return err
		}
	}
	return nil
}

// TestVLANs wants the VLANs of a bridge that filters and of its port, and none of
// a bridge that does not filter.
func TestVLANs(t *testing.T) {
	message := func(index byte, attrs ...[]byte) []byte {
		m := append(make([]byte, 4), append([]byte{index}, make([]byte, 11)...)...)
		return append(m, slices.Concat(attrs...)...)
	}
	bridge := func(filters byte) []byte {
		data := dump.Append(nil, nl.IFLA_BR_VLAN_FILTERING, []byte{filters})
		return dump.Append(nil, unix.IFLA_LINKINFO, slices.Concat(
			dump.Append(nil, unix.IFLA_INFO_KIND, []byte("bridge\x00")), dump.Append(nil, unix.IFLA_INFO_DATA, data)))
	}
	master := func(index byte) []byte { return dump.Append(nil, unix.IFLA_MASTER, []byte{index, 0, 0, 0}) }
	vlans := func(infos ...[]byte) []byte { return dump.Append(nil, unix.IFLA_AF_SPEC, slices.Concat(infos...)) }
	info := func(flags, vlan byte) []byte {
		return dump.Append(nil, nl.IFLA_BRIDGE_VLAN_INFO, []byte{flags, 0, vlan, 0})
	}
	kernel := byFamily{
		unix.AF_UNSPEC: {message(3, bridge(1)), message(4, master(3)), message(5, bridge(0)), message(6, master(5))},
		unix.AF_BRIDGE: {
			message(3, vlans(info(nl.BRIDGE_VLAN_INFO_PVID|nl.BRIDGE_VLAN_INFO_UNTAGGED, 1))),
			message(4, vlans(info(nl.BRIDGE_VLAN_INFO_PVID|nl.BRIDGE_VLAN_INFO_UNTAGGED, 7),
				info(nl.BRIDGE_VLAN_INFO_RANGE_BEGIN, 20), info(nl.BRIDGE_VLAN_INFO_RANGE_END, 30))),
			message(5, vlans(info(nl.BRIDGE_VLAN_INFO_PVID, 1))), message(6),
		},
	}
	table, err := Read(t.Context(), kernel)
	if err != nil {
		t.Fatal(err)
	}
	want := []*model.VLANs{
		{PVID: 1, Ranges: []model.VLANRange{{First: 1, Last: 1}}},
		{PVID: 7, Ranges: []model.VLANRange{{First: 7, Last: 7}, {First: 20, Last: 30}}},
		nil, nil,
	}
	for i, l := range table.Links {
		if !reflect.DeepEqual(l.VLANs, want[i]) {
			t.Errorf("link %d: VLANs %+v, want %+v", l.Index, l.VLANs, want[i])
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		if a, err := decodeAddress(m); err == nil && a.prefix.Addr().IsValid() && !a.prefix.IsValid() {
			t.Errorf("invalid prefix %v without an error", a.prefix)
		}
	})
}

// interrupted is the kernel's answer to dumps while links come and go: the same
// messages each time, marked as inconsistent.
type interrupted map[uint16][][]byte

func (i interrupted) Each(_ uint16, _ []byte, reply uint16, f func(m []byte) error) error {
	for _, m := range i[reply] {
		if err := f(m); err != nil {
			return err
		}
	}
	return dump.ErrInterrupted
}

// TestInterrupted wants the links of an interrupted dump sorted and with their
// addresses, and the gap reported.
func TestInterrupted(t *testing.T) {
	message := func(index byte, name string) []byte {
		return dump.Append(append(make([]byte, 4), append([]byte{index}, make([]byte, 11)...)...), unix.IFLA_IFNAME, []byte(name))
	}
	kernel := interrupted{
		unix.RTM_NEWLINK: {message(9, "nine"), message(2, "two")},
		unix.RTM_NEWADDR: {dump.Append([]byte{unix.AF_INET, 24, 0, 0, 2, 0, 0, 0}, unix.IFA_LOCAL, []byte{10, 1, 2, 3})},
	}
	table, err := Read(t.Context(), kernel)
	if !errors.Is(err, dump.ErrInterrupted) {
		t.Errorf("error %v", err)
	}
	if len(table.Links) != 2 || table.Links[0].Name != "two" || table.Links[1].Name != "nine" ||
		!slices.Equal(table.Links[0].Addresses, []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24")}) {
		t.Errorf("links: %+v", table.Links)
	}
}

func find(t *testing.T, links []model.Link, name string) model.Link {
	t.Helper()
	i := slices.IndexFunc(links, func(l model.Link) bool { return l.Name == name })
	if i < 0 {
		t.Fatalf("no link %s", name)
	}
	return links[i]
}

func TestRead(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	node.Run(
		"ip link add br7 type bridge", "ip link set br7 address 02:00:00:00:00:07 mtu 1400 up promisc on",
		"ip link add a.1 type veth peer name eth9 netns "+pod.Path(), "ip link set a.1 master br7 up",
		"ip link set a.1 type bridge_slave hairpin on",
		"ip link add pair0 type veth peer name pair1", "ip link set pair0 up",
		"ip addr add 10.1.2.3/24 dev br7", "ip addr add fd00::3/64 dev br7 nodad",
		"ip addr add 10.9.0.1 peer 10.9.0.2/30 dev pair0",
		"sysctl -qw net/ipv4/conf/a.1/proxy_arp=1 net/ipv4/conf/a.1/rp_filter=2 net/ipv4/conf/a.1/arp_ignore=3",
		"sysctl -qw net/ipv4/conf/a.1/route_localnet=1 net/ipv4/conf/a.1/accept_local=1 net/ipv4/conf/a.1/proxy_arp_pvlan=1",
	)
	pod.Run("ip link set eth9 address 02:00:00:00:00:09 up", "ip addr add 10.1.2.9/24 dev eth9")
	c, err := dump.Open(node.NS, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	table, err := Read(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	br, a, b, end := find(t, table.Links, "br7"), find(t, table.Links, "a.1"), find(t, table.Links, "pair0"), find(t, table.Links, "pair1")
	if br.Kind != "bridge" || br.MAC.String() != "02:00:00:00:00:07" || br.MTU != 1400 || !br.Up || !br.Promisc || br.PeerNetNSID != Here || br.Peer != 0 {
		t.Errorf("bridge: %+v", br)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.1.2.3/24"), netip.MustParsePrefix("fd00::3/64")}
	if len(br.Addresses) < 2 || !reflect.DeepEqual(br.Addresses[:2], want) {
		t.Errorf("addresses of the bridge: %v", br.Addresses)
	}
	if a.Kind != "veth" || a.Master != br.Index || !a.Hairpin || !a.Carrier || a.PeerNetNSID < 0 || a.Peer == 0 {
		t.Errorf("port: %+v", a)
	}
	if b.Peer != end.Index || end.Peer != b.Index || b.PeerNetNSID != Here || b.Hairpin || b.Carrier {
		t.Errorf("pair within the node: %+v %+v", b, end)
	}
	if len(b.Addresses) == 0 || b.Addresses[0] != netip.MustParsePrefix("10.9.0.1/32") {
		t.Errorf("address with a peer: %v", b.Addresses)
	}
	checkSettings(t, node, table.Sysctls)

	// The same namespace, read from outside.
	far, err := ReadAt(context.Background(), c, a.PeerNetNSID)
	if err != nil {
		t.Fatal(err)
	}
	eth := find(t, far.Links, "eth9")
	if eth.MAC.String() != "02:00:00:00:00:09" || eth.Peer != a.Index || eth.Index != a.Peer ||
		!slices.Contains(eth.Addresses, netip.MustParsePrefix("10.1.2.9/24")) {
		t.Errorf("from outside: %+v", eth)
	}
}

// checkSettings compares each setting with what sysctl(8) prints.
func checkSettings(t *testing.T, ns *nstest.NS, got []model.Sysctl) {
	t.Helper()
	seen := 0
	for _, s := range got {
		if !strings.Contains(s.Name, ".a/1.") {
			continue
		}
		seen++
		if want := strings.TrimSpace(ns.Output("sysctl -n " + s.Name)); s.Value != want {
			t.Errorf("%s = %s, want %s", s.Name, s.Value, want)
		}
	}
	const perLink = 11
	if seen != perLink {
		t.Errorf("%d settings of the link, want %d: %v", seen, perLink, got)
	}
}

func TestWatch(t *testing.T) {
	ns := nstest.New(t)
	w, err := Watch(ns.NS)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func() {
			select {
			case changes <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	for i, change := range []string{
		"ip link set lo up", "ip addr add 10.1.1.1/32 dev lo", "ip route add blackhole 10.2.0.0/16",
		"ip link add x type veth peer name y", "ip link del x",
	} {
		ns.Run(change)
		select {
		case <-changes:
		case <-t.Context().Done():
			t.Fatalf("no notification of change %d", i)
		}
	}
	cancel()
	<-done
}
