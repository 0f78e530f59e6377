package diagnose

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/fault/fabric"
	"github.com/lasthop/lasthop/probe/model"
)

// Ids as Azure has them; it compares them without case.
const (
	tableA  = "/subscriptions/s/resourceGroups/mc/providers/Microsoft.Network/routeTables/rt-a"
	subnetA = "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v/subnets/nodes"
)

// three is a kubenet node whose cluster is known: two other nodes.
func three() *testNode {
	n := kubenet()
	n.Node.Plugin = "kubenet"
	n.Cluster.Nodes = []model.ClusterNode{
		{Name: "n1", Addresses: []netip.Addr{addr("10.50.0.4")}, PodCIDRs: []netip.Prefix{prefix("172.20.1.0/24")}},
		{Name: "n2", Addresses: []netip.Addr{addr("10.50.0.5")}, PodCIDRs: []netip.Prefix{prefix("172.20.2.0/24")}},
		{Name: "n3", Addresses: []netip.Addr{addr("10.50.0.6"), addr("52.1.1.1")}, External: []netip.Addr{addr("52.1.1.1")}, PodCIDRs: []netip.Prefix{prefix("172.20.3.0/24")}},
	}
	return n
}

// cloud marks that files of the cloud were given.
func (n *testNode) cloud() *model.Azure {
	if !n.Has(model.SourceCloud) {
		n.Sources = append(n.Sources, model.Source{Name: model.SourceCloud, Status: model.OK})
	}
	return &n.Cluster.Azure
}

func udr(cidr, hop string) model.UDR {
	return model.UDR{Name: "to-" + hop, Prefixes: []netip.Prefix{prefix(cidr)}, Type: "VirtualAppliance", NextHops: []netip.Addr{addr(hop)}, Active: true}
}

var rightRows = []model.UDR{udr("172.20.1.0/24", "10.50.0.4"), udr("172.20.2.0/24", "10.50.0.5"), udr("172.20.3.0/24", "10.50.0.6")}

// table adds the table, whole, that is associated with the subnets.
func (n *testNode) table(rows []model.UDR, subnets ...string) *model.RouteTable {
	a := n.cloud()
	a.Tables = append(a.Tables, model.RouteTable{ID: tableA, Routes: slices.Clone(rows), Whole: true, Subnets: subnets, File: "tables.json"})
	return &a.Tables[len(a.Tables)-1]
}

func (n *testNode) subnet(table string) {
	a := n.cloud()
	a.Subnets = append(a.Subnets, model.Subnet{ID: strings.ToUpper(subnetA), Prefixes: []netip.Prefix{prefix("10.50.0.0/16")}, RouteTable: table, File: "subnet.json"})
}

func (n *testNode) card(a string, forwards bool) {
	c := n.cloud()
	c.NICs = append(c.NICs, model.NIC{ID: "/x/networkInterfaces/nic-" + a, Forwards: forwards, ForwardsKnown: true,
		Addresses: []netip.Addr{addr(a)}, Subnets: []string{subnetA}, File: "nic.json"})
}

// strangers adds packets for another node's pods that came in and went out.
func (n *testNode) strangers(cidr string, in, out, ttls uint64) {
	for _, h := range []model.HopCount{{Direction: model.Ingress, Packets: in, TTLs: ttls}, {Direction: model.Egress, Packets: out}} {
		h.Prefix, h.IfIndex, h.Link, h.Side = prefix(cidr), 2, n.Links[0].Name, model.AsDestination
		n.Traffic.Hops = append(n.Traffic.Hops, h)
	}
}

// masked adds flows that pods began and that leave with the node's address.
func (n *testNode) masked(pod, remote string, proto uint8, flows int, replied bool) {
	for i := range flows {
		n.Flows = append(n.Flows, model.Flow{Proto: proto, Start: start, Replied: replied,
			Original: model.Tuple{Src: addr(pod), Dst: addr(remote), SrcPort: uint16(i), DstPort: 443},
			Reply:    model.Tuple{Src: addr(remote), Dst: addr("10.50.0.4"), SrcPort: 443, DstPort: uint16(i)}})
	}
}

const (
	twoPods   = "172.20.1.5 172.20.1.6"
	restUDR   = twoPods + " 172.20.2.0/24 172.20.3.0/24"
	upperCase = "/SUBSCRIPTIONS/S/resourceGroups/MC/providers/Microsoft.Network/routeTables/RT-A"
)

// TestTakers: what is silent may have been taken by a program that nobody counts behind. A plugin's own is no suspect.
func TestTakers(t *testing.T) {
	on := func(p model.Program) func() *testNode {
		return func() *testNode {
			n := three().with(model.SourcePrograms)
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.6", "172.20.3.10")
			n.answered("172.20.1.5", "172.20.2.9")
			p.IfIndex, p.Link, p.Netns = n.Links[0].Index, n.Links[0].Name, n.Node.Netns
			n.Programs = []model.Program{p}
			return n
		}
	}
	const missing = " 172.20.1.5 172.20.1.6 172.20.3.0/24"
	check(t, []fixture{
		{"XDP", on(model.Program{Kind: model.ProgramXDP, Name: "ddos", Direction: model.Ingress}), []string{"MissingUDR possible" + missing}},
		{"a tc filter that redirects", on(model.Program{Kind: model.ProgramTC, Filter: "matchall", Direction: model.Egress}), []string{"MissingUDR possible" + missing}},
		{"what arrives was counted", on(model.Program{Kind: model.ProgramTC, Filter: "u32", Direction: model.Ingress}), []string{"MissingUDR likely" + missing}},
		{"Cilium's own", on(model.Program{Kind: model.ProgramTCX, Name: "cil_to_netdev", Direction: model.Egress}), []string{"MissingUDR likely" + missing}},
	})
}

func TestBeyond(t *testing.T) {
	without3 := rightRows[:2]
	wrong3 := append(slices.Clone(without3), udr("172.20.3.0/24", "10.50.0.5"))
	tests := []struct {
		name string
		node func() *testNode
		want []string
	}{
		{"files: all is right", func() *testNode {
			n := three()
			n.table(rightRows, subnetA)
			n.subnet(upperCase)
			n.card("10.50.0.4", true)
			n.answered("172.20.1.5", "172.20.2.9")
			return n
		}, nil},
		{"files: no table for the subnet", func() *testNode {
			n := three()
			n.table(rightRows)
			n.subnet("")
			return n
		}, []string{"MissingUDR proven " + restUDR}},
		{"files: the table is associated with no subnet", func() *testNode {
			n := three()
			n.table(rightRows)
			return n
		}, []string{"MissingUDR proven " + restUDR}},
		{"files: a row is missing", func() *testNode {
			n := three()
			n.table(without3)
			n.subnet(upperCase)
			return n
		}, []string{"MissingUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"files: a row is missing in the one table that is associated", func() *testNode {
			n := three()
			n.table(without3, subnetA)
			return n
		}, []string{"MissingUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"files: the row to this node is missing", func() *testNode {
			n := three()
			n.table(rightRows[1:], subnetA)
			n.subnet(tableA)
			return n
		}, []string{"MissingUDR proven " + restUDR}},
		{"files: two subnets, the other has no table", func() *testNode {
			n := three()
			n.Cluster.Nodes[2].Addresses = []netip.Addr{addr("10.51.0.6")}
			n.table(append(slices.Clone(without3), udr("172.20.3.0/24", "10.51.0.6")), subnetA)
			n.subnet(tableA)
			n.Cluster.Azure.Subnets = append(n.Cluster.Azure.Subnets, model.Subnet{ID: subnetA + "2",
				Prefixes: []netip.Prefix{prefix("10.51.0.0/16")}, File: "subnet2.json"})
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingUDR proven 172.20.1.5 172.20.3.0/24"}},
		{"files: unrelated tables beside the cluster's", func() *testNode {
			n := three()
			n.cloud().Tables = []model.RouteTable{{ID: "/x/routeTables/other", Whole: true, Subnets: []string{"/x/subnets/y"},
				Routes: []model.UDR{udr("0.0.0.0/0", "192.0.2.1")}, File: "tables.json"}}
			n.table(rightRows, subnetA)
			return n
		}, nil},
		{"files: the subnet's table was not given", func() *testNode {
			n := three()
			n.subnet(tableA)
			return n
		}, nil},
		{"files: they contradict each other", func() *testNode {
			n := three()
			n.table(without3, subnetA)
			n.subnet("")
			return n
		}, nil},
		{"files without --nodes: silence, and no row for it", func() *testNode {
			n := kubenet()
			n.table(without3, subnetA)
			n.subnet(tableA)
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingUDR proven 172.20.1.5 172.20.3.0/24"}},
		{"files without --nodes: silence, and the rows are there", func() *testNode {
			n := kubenet()
			n.table(rightRows, subnetA)
			n.subnet(tableA)
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.3.9"}},
		{"files: rows alone do not say that they apply", func() *testNode {
			n := three()
			n.table(without3).Whole = false
			return n
		}, nil},
		{"files: rows alone, and silence", func() *testNode {
			n := three()
			n.table(without3).Whole = false
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"MissingUDR proven 172.20.1.5 172.20.3.0/24"}},
		{"files: right rows of an unknown table, and silence", func() *testNode {
			n := three()
			n.table(rightRows).Whole = false
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
		{"files: one route was printed alone", func() *testNode {
			n := three()
			n.table(rightRows[:1]).Whole = false
			n.Cluster.Azure.Tables[0].Part = true
			n.subnet(tableA)
			return n
		}, nil},
		{"files against traffic: what answers has a route", func() *testNode {
			n := three()
			n.table(without3, subnetA)
			n.subnet(tableA)
			n.answered("172.20.1.5", "172.20.3.9")
			n.answered("172.20.1.5", "172.20.2.9")
			return n
		}, nil},
		{"files refute a missing route", func() *testNode {
			n := three()
			n.table(rightRows, subnetA)
			n.subnet(tableA)
			n.answered("10.50.0.4", "10.50.0.5")
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.6", "172.20.3.9")
			return n
		}, []string{"NoReply likely " + twoPods + " 172.20.2.9 172.20.3.9"}},
		{"files that were given for an overlay", func() *testNode {
			n := three()
			n.Node.Plugin = "azure-overlay"
			n.subnet("")
			n.card("10.50.0.4", false)
			return n
		}, nil},
		{"files on a node whose pods are of the subnet", func() *testNode {
			n := bridged()
			n.cloud().Subnets = []model.Subnet{{ID: subnetA, Prefixes: []netip.Prefix{prefix("10.60.0.0/16")}}}
			n.Cluster.Azure.NICs = []model.NIC{{ForwardsKnown: true, Addresses: []netip.Addr{addr("10.60.0.4"), addr("10.60.0.20"), addr("10.60.0.21")}}}
			return n
		}, nil},
		{"effective: the row is overridden", func() *testNode {
			n := three()
			rows := slices.Clone(rightRows)
			rows[2].Active = false
			n.cloud().Effective = []model.EffectiveRoutes{{Routes: rows, File: "e"}}
			return n
		}, []string{"MissingUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"effective: Azure's own rows for private ranges lead nowhere", func() *testNode {
			n := three()
			n.cloud().Effective = []model.EffectiveRoutes{{File: "e", Routes: append(slices.Clone(without3),
				model.UDR{Prefixes: []netip.Prefix{prefix("172.16.0.0/12")}, Type: "None", Active: true})}}
			return n
		}, []string{"MissingUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"effective: a wider route to a machine of its own", func() *testNode {
			n := three()
			n.cloud().Effective = []model.EffectiveRoutes{{File: "e", Routes: append(slices.Clone(without3), udr("172.20.0.0/16", "10.50.9.9"))}}
			return n
		}, nil},
		{"effective: several next hops, all the node's", func() *testNode {
			n := three()
			rows := slices.Clone(rightRows)
			rows[2].Type = "virtualapplianceecmp"
			n.cloud().Effective = []model.EffectiveRoutes{{File: "e", Routes: rows}}
			return n
		}, nil},
		{"wrong: a row leads to another node", func() *testNode {
			n := three()
			n.table(wrong3, subnetA)
			n.subnet(tableA)
			return n
		}, []string{"WrongUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"wrong: a public address is no next hop", func() *testNode {
			n := three()
			n.table(append(slices.Clone(without3), udr("172.20.3.0/24", "52.1.1.1")), subnetA)
			return n
		}, []string{"WrongUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"wrong: part of the range leads elsewhere", func() *testNode {
			n := three()
			n.table(append(slices.Clone(rightRows), udr("172.20.3.128/25", "10.50.0.99")), subnetA)
			return n
		}, []string{"WrongUDR proven " + twoPods + " 172.20.3.0/24"}},
		{"wrong: the row for this node", func() *testNode {
			n := three()
			n.table(append(slices.Clone(rightRows[1:]), udr("172.20.1.0/24", "10.50.0.77")), subnetA)
			n.subnet(tableA)
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"WrongUDR proven " + twoPods + " 172.20.1.0/24"}},
		{"wrong: of a table that may not apply", func() *testNode {
			n := three()
			n.table(wrong3).Whole = false
			return n
		}, []string{"WrongUDR possible " + twoPods + " 172.20.3.0/24"}},
		{"wrong: of a table that may not apply, and silence", func() *testNode {
			n := three()
			n.table(wrong3).Whole = false
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			return n
		}, []string{"WrongUDR proven 172.20.1.5 172.20.3.0/24"}},
		{"wrong: others' packets go round here", func() *testNode {
			n := three()
			n.strangers("172.20.3.0/24", 90, 90, 0b10101010)
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.drop("IP_INHDR", "ip_forward", "172.20.1.5", "172.20.3.9", 9)
			return n
		}, []string{"WrongUDR proven 172.20.1.5 172.20.3.0/24"}},
		{"wrong: others' packets, and nobody knows the nodes", func() *testNode {
			n := kubenet()
			n.strangers("172.20.3.0/24", 90, 90, 0b10)
			return n
		}, []string{"WrongUDR likely 172.20.3.0/24"}},
		{"a bridge floods what is for other nodes", func() *testNode {
			n := three()
			n.strangers("172.20.3.0/24", 90, 0, 0b10)
			n.strangers("172.20.2.0/24", 3, 3, 0b10)
			return n
		}, nil},
		{"own packets to other nodes' pods are no strangers", func() *testNode {
			n := three()
			n.strangers("172.20.3.0/24", 0, 90, 0b10)
			return n
		}, nil},
		{"NIC: this node's does not forward", func() *testNode {
			n := three()
			n.card("10.50.0.4", false)
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"NICForwarding proven " + twoPods + " 172.20.1.0/24"}},
		{"NIC: another node's does not forward", func() *testNode {
			n := three()
			n.card("10.50.0.6", false)
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.6", "172.20.3.9")
			return n
		}, []string{"NICForwarding proven 172.20.1.6 172.20.3.0/24"}},
		{"NIC: the file is older than what answers", func() *testNode {
			n := three()
			n.card("10.50.0.4", false)
			n.answered("172.20.1.5", "172.20.2.9")
			return n
		}, nil},
		{"limit: many nodes", func() *testNode {
			n := three()
			for i := range 370 {
				n.Cluster.Nodes = append(n.Cluster.Nodes, model.ClusterNode{Name: fmt.Sprint(i),
					PodCIDRs: []netip.Prefix{prefix(fmt.Sprintf("10.%d.%d.0/24", 100+i/200, i%200))}})
			}
			return n
		}, []string{"UDRLimit proven"}},
		{"no reply: one pod of a range that answers", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.8")
			n.silent("172.20.1.5", "172.20.2.9")
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"no reply: datagrams may want no answer", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.8")
			n.peer("172.20.1.5", "172.20.2.9", datagram, none)
			return n
		}, nil},
		{"no reply: questions to a name server want one", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.8")
			n.peer("172.20.1.5", "172.20.2.9", datagram, none)
			for range 3 {
				n.flow("172.20.1.5", "172.20.2.9", false)
			}
			return n
		}, []string{"NoReply likely 172.20.1.5 172.20.2.9"}},
		{"no reply: the peers' own requests, which a bridge sends back", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.8")
			n.peer("172.20.1.5", "172.20.2.9", syn, syn)
			n.Traffic.Hops = []model.HopCount{{Addr: addr("172.20.1.5"), IfIndex: 2, Side: model.AsDestination, Direction: model.Egress, Packets: 5}}
			return n
		}, nil},
		{"no reply: asked but for a moment", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.8")
			n.silent("172.20.1.5", "172.20.2.9")
			n.Traffic.Peers[1].LastOut = n.Traffic.Peers[1].FirstOut.Add(time.Second)
			return n
		}, nil},
		{"no reply: from outside, with the node's address", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("10.50.0.4", "203.0.113.9")
			n.masked("172.20.1.6", "203.0.113.9", 6, 5, false)
			return n
		}, []string{"NoReply likely 172.20.1.6 203.0.113.9"}},
		{"no reply: one connection from outside, tried again and again", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("10.50.0.4", "203.0.113.9")
			n.masked("172.20.1.6", "203.0.113.9", 6, 1, false)
			return n
		}, []string{"NoReply likely 172.20.1.6 203.0.113.9"}},
		{"no reply: mostly to the node itself", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("10.50.0.4", "203.0.113.9")
			n.masked("172.20.1.6", "203.0.113.9", 6, 1, false)
			n.masked("10.50.0.4", "203.0.113.9", 6, 4, false)
			return n
		}, nil},
		{"no reply: of the node itself is no pod's", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("10.50.0.4", "203.0.113.9")
			return n
		}, nil},
		{"no reply: explained by the route that is missing", func() *testNode {
			n := three()
			n.answered("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "172.20.3.9")
			n.silent("172.20.1.5", "172.20.3.10")
			return n
		}, []string{"MissingUDR likely 172.20.1.5 172.20.3.0/24"}},
		{"no reply: explained by this node's own route that is missing", func() *testNode {
			n := three()
			n.table(rightRows[1:], subnetA)
			n.subnet(tableA)
			n.silent("172.20.1.5", "172.20.2.9")
			n.silent("172.20.1.5", "10.50.0.77")
			return n
		}, []string{"MissingUDR proven 172.20.1.5 172.20.2.0/24 172.20.3.0/24"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { verdicts(t, tt.node(), tt.want) })
	}
}

// TestOwnHop: of several addresses of the node the row has that of the default route.
func TestOwnHop(t *testing.T) {
	const four, six = "172.20.1.0/24", "fd00:1::/64"
	second := func(n *testNode, addrs ...string) {
		l := model.Link{Index: 4, Name: "ens6", Up: true, Carrier: true, Role: model.RoleUplink}
		for _, a := range addrs {
			l.Addresses = append(l.Addresses, prefix(a))
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix(a).Masked(), IfIndex: 4, Type: "unicast"})
		}
		n.Links, n.Node.Uplinks = append(n.Links, l), append(n.Node.Uplinks, l.Name)
	}
	for _, tt := range []struct {
		name, cidr string
		node       func(*testNode)
		want       string
	}{
		{"one", four, func(n *testNode) {}, "10.50.0.4"},
		{"a later one of another network of the link", four, func(n *testNode) { n.link(2).Addresses = append(n.link(2).Addresses, prefix("10.99.0.4/24")) }, "10.50.0.4"},
		{"an earlier one of another network of the link", four, func(n *testNode) {
			n.link(2).Addresses = []netip.Prefix{prefix("10.99.0.4/24"), prefix("10.50.0.4/16")}
		}, "10.50.0.4"},
		{"another link", four, func(n *testNode) { second(n, "10.51.0.4/16") }, "10.50.0.4"},
		{"the route says", four, func(n *testNode) {
			n.link(2).Addresses = append(n.link(2).Addresses, prefix("10.50.0.5/16"))
			n.Routes[0].Src = addr("10.50.0.5")
		}, "10.50.0.5"},
		{"the first of the routes", four, func(n *testNode) {
			second(n, "10.51.0.4/16")
			n.Routes[0].Priority = 200
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.51.0.1"), IfIndex: 4, Type: "unicast", Priority: 100})
		}, "10.51.0.4"},
		{"the nodes file says", four, func(n *testNode) {
			n.link(2).Addresses = append(n.link(2).Addresses, prefix("10.50.0.5/16"))
			n.Cluster.Nodes = []model.ClusterNode{{Name: "worker", Addresses: []netip.Addr{addr("10.50.0.5")}, PodCIDRs: []netip.Prefix{prefix(four)}}}
		}, "10.50.0.5"},
		{"two links without a default route", four, func(n *testNode) {
			second(n, "10.51.0.4/16")
			n.Routes = n.Routes[1:]
		}, "THIS_NODE_IP"},
		{"none of that version", six, func(n *testNode) {}, "THIS_NODE_IP"},
		{"one of that version", six, func(n *testNode) {
			second(n, "fd50::4/64")
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("::/0"), Gateway: addr("fe80::1"), IfIndex: 4, Type: "unicast"})
		}, "fd50::4"},
		{"several of that version", six, func(n *testNode) {
			second(n, "fd50::4/64", "fd50::5/64")
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("::/0"), Gateway: addr("fe80::1"), IfIndex: 4, Type: "unicast"})
		}, "THIS_NODE_IP"},
	} {
		n := kubenet()
		tt.node(n)
		if got := fabric.OwnHop(newInput(&n.Snapshot).Index, prefix(tt.cidr)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestFixesNameTheResources(t *testing.T) {
	for _, tt := range []struct {
		node func(*testNode)
		want string
	}{
		{func(n *testNode) { n.table(rightRows); n.subnet("") },
			"az network vnet subnet update --resource-group NET --vnet-name V --name NODES --route-table " + tableA},
		{func(n *testNode) { n.table(rightRows[:2], subnetA) },
			"az network route-table route create --resource-group mc --route-table-name rt-a --name n3 --address-prefix 172.20.3.0/24 --next-hop-type VirtualAppliance --next-hop-ip-address 10.50.0.6"},
		{func(n *testNode) {
			n.table([]model.UDR{rightRows[0], rightRows[1], udr("172.20.3.0/24", "10.50.0.99")}, subnetA)
		},
			"az network route-table route update --resource-group mc --route-table-name rt-a --name to-10.50.0.99 --next-hop-type VirtualAppliance --next-hop-ip-address 10.50.0.6"},
		{func(n *testNode) { n.card("10.50.0.4", false) }, "az network nic update --ids /x/networkInterfaces/nic-10.50.0.4 --ip-forwarding true"},
	} {
		n := three()
		tt.node(n)
		found := agreed(t, n)
		if len(found) == 0 || found[0].Fix[0] != tt.want {
			t.Errorf("findings %+v\nwant the fix %s", found, tt.want)
		}
	}
}

// TestSilentPod: what is said of one silent pod begins with a network policy, and
// with how to find out; a route that something shows to be there is not in doubt.
func TestSilentPod(t *testing.T) {
	const (
		policy = "a network policy on the other node drops packets from these pods"
		route3 = "the network has no route to 172.20.3.0/24"
		back   = "the network has no route back to this node's pods"
	)
	for _, tt := range []struct {
		name string
		node func(*testNode)
		want []string
	}{
		{"another range answers", func(n *testNode) { n.answered("172.20.1.6", "172.20.2.9") }, []string{policy, route3}},
		{"another pod of the range answers", func(n *testNode) { n.answered("172.20.1.6", "172.20.3.8") }, []string{policy}},
		{"nobody's pods answer", func(n *testNode) { n.answered(selfAddr, "10.50.0.5") }, []string{policy, route3 + ", or none back to this node's pods"}},
		{"a probe of the forward path", func(n *testNode) { n.echo(selfAddr, "172.20.3.1", true) }, []string{policy, back}},
		{"a probe of both", func(n *testNode) { n.echo(rangeAddr, "172.20.3.9", true) }, []string{policy}},
		{"files", func(n *testNode) { n.table(rightRows, subnetA); n.subnet(tableA) }, []string{policy}},
		{"a fabric that routes pods by itself", func(n *testNode) { n.Node.Plugin = "azure-overlay" }, []string{policy}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := three()
			n.silent("172.20.1.5", "172.20.3.9")
			tt.node(n)
			found := agreed(t, n)
			if len(found) != 1 || found[0].Code != "NoReply" {
				t.Fatalf("%+v", found)
			}
			f := found[0]
			routes := slices.DeleteFunc(slices.Clone(f.Alternatives[1:]), func(s string) bool { return !strings.HasPrefix(s, "the network has no route") })
			if got := append(f.Alternatives[:1:1], routes...); !slices.Equal(got, tt.want) || f.Severity != model.Warning {
				t.Errorf("%s: %q, want %q", f.Severity, got, tt.want)
			}
			// What decides first is the node's own request.
			if f.Surer[0] != model.Active {
				t.Errorf("surer by %q", f.Surer)
			}
		})
	}
}
