package collect

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/pods"
	"github.com/lasthop/lasthop/probe/model"
)

// TestUplinks takes each way in which an uplink is told.
func TestUplinks(t *testing.T) {
	const toNode = 0
	gateway := netip.MustParseAddr("192.0.2.1")
	fabric := model.MAC{2, 0xfa}
	def := func(index int) model.Route {
		return model.Route{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway, IfIndex: index, Type: "unicast"}
	}
	link := func(index int, name, kind string, master, peer, nsid int) model.Link {
		return model.Link{Index: index, Name: name, Kind: kind, Master: master, Peer: peer, PeerNetNSID: nsid, Up: true, MAC: model.MAC{2, byte(index)}}
	}
	addressed := func(l model.Link, a string) model.Link {
		l.Addresses = []netip.Prefix{netip.MustParsePrefix(a)}
		return l
	}
	in := func(table int, r model.Route) model.Route {
		r.Table = table
		return r
	}
	far := func(index, peer int) model.Link { return link(index, "far", "veth", 0, peer, toNode) }
	// A bridge with three veth ports: 11 leads to the network, the others
	// to pods.
	bridge := []model.Link{
		link(10, "pool", "bridge", 0, 0, -1), link(11, "w0", "veth", 10, 2, 1),
		link(12, "p0", "veth", 10, 2, 2), link(13, "p1", "veth", 10, 2, 3),
	}
	pod := func(peer int) *pods.Namespace {
		return &pods.Namespace{Links: []model.Link{far(2, peer)}, Routes: []model.Route{def(2)}, Entered: true}
	}
	network := &pods.Namespace{Links: []model.Link{far(2, 11), link(3, "more", "veth", 0, 7, 9)}, Entered: true}
	around := map[int]*pods.Namespace{1: network, 2: pod(12), 3: pod(13)}
	// A network of one link looks like a pod.
	plain := &pods.Namespace{Links: []model.Link{far(2, 11)}, Entered: true}
	holder := &pods.Namespace{Links: []model.Link{far(2, 11)}, Entered: true}
	holder.Links[0].Addresses = []netip.Prefix{netip.PrefixFrom(gateway, 24)}
	for _, tt := range []struct {
		name string
		view view
		want []string
	}{
		{"no default route", view{links: bridge, far: around}, nil},
		{"a NIC", view{links: []model.Link{link(2, "nic", "", 0, 0, -1)}, routes: []model.Route{def(2)}}, []string{"nic"}},
		{"a veth, as on kind", view{links: []model.Link{link(2, "nic", "veth", 0, 8, 0)}, routes: []model.Route{def(2)}}, []string{"nic"}},
		{
			"a VPN that takes all, by two halves",
			view{
				links: []model.Link{link(2, "nic", "", 0, 0, -1), link(3, "vpn", "tun", 0, 0, -1)},
				routes: []model.Route{
					def(2), {Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/1"), IfIndex: 3, Type: "unicast"},
					{Table: 254, Dst: netip.MustParsePrefix("128.0.0.0/1"), IfIndex: 3, Type: "unicast"},
				},
			},
			[]string{"nic", "vpn"},
		},
		{
			"two paths",
			view{
				links:  []model.Link{link(2, "nic0", "", 0, 0, -1), link(3, "nic1", "", 0, 0, -1)},
				routes: []model.Route{{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), IfIndex: 2, Type: "unicast", NextHops: []model.Route{{IfIndex: 3}}}},
			},
			[]string{"nic0", "nic1"},
		},
		{
			"a default route of another table",
			view{links: []model.Link{link(2, "nic", "", 0, 0, -1)}, routes: []model.Route{{Table: 100, Dst: netip.MustParsePrefix("0.0.0.0/0"), IfIndex: 2, Type: "unicast"}}},
			nil,
		},
		{
			"a second NIC, by a table of its own; a plugin's own router",
			view{
				links: []model.Link{
					link(2, "nic0", "", 0, 0, -1), addressed(link(3, "nic1", "veth", 0, 8, 0), "192.0.2.9/24"),
					addressed(link(4, "router", "veth", 0, 5, -1), "192.0.2.9/24"), addressed(link(6, "pod", "veth", 0, 2, 1), "192.0.2.1/32"),
				},
				routes: []model.Route{def(2), in(100, def(3)), in(101, def(4)), in(102, def(6))},
			},
			[]string{"nic0", "nic1"},
		},
		{
			"a second NIC without a default route, in a network of its own",
			view{links: []model.Link{link(2, "nic0", "", 0, 0, -1), addressed(link(3, "nic1", "", 0, 0, -1), "198.51.100.9/24")}, routes: []model.Route{def(2)}},
			[]string{"nic0", "nic1"},
		},
		{
			"a second NIC as a container has it, and a pod with a network",
			view{
				links: []model.Link{
					addressed(link(2, "nic0", "veth", 0, 8, 0), "192.0.2.9/24"), addressed(link(11, "nic1", "veth", 0, 2, 1), "198.51.100.9/24"),
					addressed(link(12, "p0", "veth", 0, 2, 2), "10.7.0.1/24"),
				},
				routes: []model.Route{def(2)}, far: around,
			},
			[]string{"nic0", "nic1"},
		},
		{
			"a second NIC with a route to a gateway that no network holds",
			view{
				links:  []model.Link{link(2, "nic0", "", 0, 0, -1), addressed(link(3, "nic1", "bond", 0, 0, -1), "198.51.100.9/32"), link(4, "nic2", "", 0, 0, -1)},
				routes: []model.Route{def(2), {Table: 254, Dst: netip.MustParsePrefix("10.8.0.0/16"), Gateway: netip.MustParseAddr("198.51.100.1"), IfIndex: 3, Type: "unicast"}},
			},
			[]string{"nic0", "nic1"},
		},
		{
			"links with networks that lead to nobody off the node",
			view{
				links: append([]model.Link{
					link(2, "nic0", "", 0, 0, -1), addressed(model.Link{Index: 1, Name: "lo", PeerNetNSID: -1}, "10.9.0.1/24"),
					addressed(link(3, "d0", "dummy", 0, 0, -1), "10.9.1.1/24"), addressed(link(4, "ovn0", "openvswitch", 0, 0, -1), "10.9.2.1/24"),
					addressed(link(5, "r0", "veth", 0, 6, -1), "10.9.3.1/24"), addressed(link(7, "slave", "", 9, 0, -1), "10.9.4.1/24"),
					addressed(link(8, "shim", "macvlan", 0, 0, -1), "192.0.2.8/24"), addressed(bridge[0], "10.9.5.1/24"),
				}, bridge[1:]...),
				routes: []model.Route{def(2)}, far: around,
			},
			[]string{"nic0"},
		},
		{
			"a second NIC in a bridge that is in a network",
			view{
				links:  append([]model.Link{link(2, "nic0", "", 0, 0, -1), link(3, "nic1", "", 10, 0, -1), addressed(bridge[0], "198.51.100.9/24")}, bridge[1:]...),
				routes: []model.Route{def(2)}, far: around,
			},
			[]string{"nic0", "nic1"},
		},
		{
			"a VLAN with the default route, over a NIC with an address",
			view{
				links:  []model.Link{addressed(link(2, "nic0", "", 0, 0, -1), "198.51.100.9/24"), addressed(link(3, "nic0.7", "vlan", 0, 0, -1), "192.0.2.9/24")},
				routes: []model.Route{def(3)},
			},
			[]string{"nic0.7"},
		},
		{
			"no default route, but one to other nodes",
			view{
				links: []model.Link{addressed(link(2, "nic", "veth", 0, 8, 0), "192.0.2.9/24"), addressed(link(6, "pod", "veth", 0, 2, 1), "10.0.0.1/32")},
				routes: []model.Route{
					{Table: 254, Dst: netip.MustParsePrefix("192.0.2.0/24"), IfIndex: 2, Type: "unicast"},
					{Table: 254, Dst: netip.MustParsePrefix("10.0.0.5/32"), IfIndex: 6, Type: "unicast"},
					{Table: 254, Dst: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("192.0.2.10"), IfIndex: 2, Type: "unicast"},
				},
			},
			[]string{"nic"},
		},
		{
			"a bridge with a NIC",
			view{links: append([]model.Link{link(2, "nic", "", 10, 0, -1)}, bridge...), routes: []model.Route{def(10)}, far: around},
			[]string{"nic"},
		},
		{
			"a bridge with a tunnel and a tap",
			view{
				links:  append([]model.Link{link(2, "t0", "vxlan", 10, 0, -1), link(3, "vm0", "tun", 10, 0, -1)}, bridge...),
				routes: []model.Route{def(10)}, far: around,
			},
			[]string{"w0"},
		},
		{
			"a bridge that learnt the gateway",
			view{
				links: bridge, routes: []model.Route{def(10)},
				neighbors: []model.Neighbor{{Addr: gateway, MAC: fabric, IfIndex: 10}},
				fdb:       []model.FDBEntry{{MAC: fabric, IfIndex: 11, Bridge: 10}, {MAC: fabric, IfIndex: 12, Bridge: 10, Local: true}},
			},
			[]string{"w0"},
		},
		{"a bridge with one port that leads to no pod", view{links: bridge, routes: []model.Route{def(10)}, far: around}, []string{"w0"}},
		{
			"a bridge whose rules name the port",
			view{
				links: bridge, routes: []model.Route{def(10)},
				frames: []model.FrameRule{{Table: "nat", Chain: "POSTROUTING", Target: model.TargetSNAT, Out: model.IfMatch{Name: "w0"}}},
			},
			[]string{"w0"},
		},
		{
			"a bridge with the gateway behind a port, which does not answer",
			view{links: bridge, routes: []model.Route{def(10)}, far: map[int]*pods.Namespace{1: holder, 2: pod(12), 3: pod(13)}},
			[]string{"w0"},
		},
		{
			"a bridge with one port behind which nobody has a default route",
			view{links: bridge, routes: []model.Route{def(10)}, far: map[int]*pods.Namespace{1: plain, 2: pod(12), 3: pod(13)}},
			[]string{"w0"},
		},
		{
			"a bridge with two of them",
			view{links: bridge, routes: []model.Route{def(10)}, far: map[int]*pods.Namespace{1: plain, 3: pod(13)}},
			nil,
		},
		{"as given", view{links: bridge, routes: []model.Route{def(10)}, far: around, given: []string{"p1"}}, []string{"p1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.view.uplinks(); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}

	vpn := link(23, "vpn", "tun", 0, 0, -1)
	vpn.MAC = model.MAC{}
	v := view{
		links: append([]model.Link{
			vpn, link(24, "vm", "tun", 0, 0, -1), link(20, "tun0", "vxlan", 0, 0, -1), link(21, "r0", "veth", 0, 22, -1), link(22, "r1", "veth", 0, 21, -1), link(1, "lo", "", 0, 0, -1),
		}, bridge...),
		routes: []model.Route{def(10)}, far: around,
	}
	list := v.assign(v.uplinks())
	roles := map[string]model.Role{}
	for _, l := range v.links {
		roles[l.Name] = l.Role
	}
	want := map[string]model.Role{
		"vpn": model.RoleTunnel, "vm": model.RoleOther, "tun0": model.RoleTunnel, "r0": model.RoleRouter, "r1": model.RoleRouter, "lo": model.RoleOther,
		"pool": model.RoleBridge, "w0": model.RoleUplink, "p0": model.RolePodLink, "p1": model.RolePodLink,
	}
	if !reflect.DeepEqual(roles, want) {
		t.Errorf("roles %v, want %v", roles, want)
	}
	if len(list) != 2 || list[0].Link != "p0" || list[1].LinkIndex != 13 {
		t.Errorf("pods: %+v", list)
	}
}
