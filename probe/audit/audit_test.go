package audit_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// node3 is a kubenet node with three pods.
func node3() *model.Snapshot {
	n := kubenet()
	for _, a := range []string{"10.244.0.2", "10.244.0.3", "10.244.0.4"} {
		addPod(n, addr(a))
	}
	return n
}

func filterRule(n *model.Snapshot, chain string, r model.PacketRule) *model.PacketRule {
	r.Backend, r.Family, r.Table, r.Chain, r.Number = model.NFT, "ip", "filter", chain, len(n.PacketRules)+1
	n.PacketRules = append(n.PacketRules, r)
	return &n.PacketRules[len(n.PacketRules)-1]
}

func to(s string) model.AddrMatch { return model.AddrMatch{Prefix: prefix(s)} }

// TestFaults gives one node one fault after the other. Each is told by its own kind of finding, with the pairs that it cuts
// off, or by none.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(*model.Snapshot)
		// want are "confidence Code", fix is a part of a fix, cut, denied and unsure are how many pairs there are.
		want                []string
		fix                 string
		cut, denied, unsure int
	}{
		{"healthy", func(*model.Snapshot) {}, nil, "", 0, 0, 0},
		{"a rule drops what is for a pod", func(n *model.Snapshot) {
			filterRule(n, "FORWARD", model.PacketRule{Dst: to("10.244.0.3/32"), Target: "DROP", Text: "-d 10.244.0.3/32 -j DROP"})
		}, []string{"proven PolicyDrop"}, "-D FORWARD -d 10.244.0.3/32 -j DROP", 5, 0, 0},
		{"the policy of FORWARD is DROP", func(n *model.Snapshot) { n.Chains[2].Policy = "DROP" },
			[]string{"proven PolicyDrop"}, "-P FORWARD ACCEPT", 9, 0, 0},
		{"Calico denies", func(n *model.Snapshot) {
			filterRule(n, "FORWARD", model.PacketRule{Target: "cali-FORWARD"})
			filterRule(n, "cali-FORWARD", model.PacketRule{Dst: to("10.244.0.3/32"), Target: "DROP", Comment: "cali:abc"})
		}, nil, "", 0, 5, 0},
		{"a match that is not decoded may decide", func(n *model.Snapshot) {
			filterRule(n, "FORWARD", model.PacketRule{Dst: to("10.244.0.3/32"), Target: "DROP", Unknown: []string{"-m string"}})
		}, nil, "", 0, 0, 5},
		{"rules were not read", func(n *model.Snapshot) {
			n.PacketRules, n.Chains = nil, nil
			for s := range model.Each(n.Sources) {
				if s.Name == model.SourceNAT {
					s.Status = model.Missing
				}
			}
		}, nil, "", 0, 0, 12},
		{"a blackhole", func(n *model.Snapshot) {
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.244.129.0/24"), Type: "blackhole"})
		}, []string{"proven BlackholeRoute"}, "ip route del blackhole 10.244.129.0/24", 3, 0, 0},
		{"no default route", func(n *model.Snapshot) { n.Routes = n.Routes[1:] },
			[]string{"proven MissingDefaultRoute"}, "ip route add default", 3, 0, 0},
		{"the next hop does not answer", func(n *model.Snapshot) { n.Neighbors[0].MAC, n.Neighbors[0].State = model.MAC{}, "FAILED" },
			[]string{"likely UnansweredARP"}, "", 3, 0, 0},
		{"nothing masquerades", func(n *model.Snapshot) { n.PacketRules = n.PacketRules[:1] },
			[]string{"likely MissingMasquerade"}, "MASQUERADE", 3, 0, 0},
		{"the cloud masquerades", func(n *model.Snapshot) { n.Node.Plugin, n.PacketRules = "ptp", n.PacketRules[:1] }, nil, "", 0, 0, 0},
		{"a foreign source", func(n *model.Snapshot) {
			n.PacketRules[1].Target, n.PacketRules[1].To = "SNAT", netip.AddrPortFrom(addr("10.240.77.77"), 0)
		}, []string{"likely ForeignSNAT"}, "", 3, 0, 0},
		{"a service leads to nobody", func(n *model.Snapshot) {
			natRule(n, model.PacketRule{Chain: "KUBE-SERVICES", Dst: to("10.0.0.10/32"), Target: "DNAT",
				To: netip.MustParseAddrPort("10.244.0.77:80")})
		}, []string{"likely DeadBackend"}, "", 1, 0, 0},
		{"forwarding is off", func(n *model.Snapshot) {
			n.Sysctls = append(n.Sysctls, model.Sysctl{Name: "net.ipv4.conf.cbr0.forwarding", Value: "0"})
		}, []string{"likely ForwardingDisabled"}, "sysctl", 3, 0, 0},
		{"a pod's link is down", func(n *model.Snapshot) { n.Links[3].Up = false }, []string{"proven PodLinkDown"}, "ip link set", 6, 0, 0},
		{"a program may redirect", func(n *model.Snapshot) {
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.244.129.0/24"), Type: "blackhole"})
			n.Programs = []model.Program{{Link: "veth10", IfIndex: 10, Netns: 1, Kind: model.ProgramTC, ID: 7, Direction: model.Ingress}}
		}, []string{"likely BlackholeRoute"}, "", 3, 0, 6},
		{"a program of an unknown owner", func(n *model.Snapshot) {
			n.Programs = []model.Program{{Link: "veth10", IfIndex: 10, Netns: 1, Kind: model.ProgramXDP, ID: 7, Direction: model.Ingress}}
		}, nil, "", 0, 0, 6},
		{"a program of the plugin's", func(n *model.Snapshot) {
			n.Programs = []model.Program{{Link: "veth10", IfIndex: 10, Netns: 1, Kind: model.ProgramTC, ID: 7, Name: "cali_from_host", Direction: model.Ingress}}
		}, nil, "", 0, 0, 0},
		{"one pod's rule that masquerades lacks", func(n *model.Snapshot) { masqueradeEach(n, "10.244.0.2", "10.244.0.4") },
			[]string{"likely MissingMasquerade"}, "MASQUERADE", 1, 0, 0},
		{"each pod's rule masquerades", func(n *model.Snapshot) { masqueradeEach(n, "10.244.0.2", "10.244.0.3", "10.244.0.4") }, nil, "", 0, 0, 0},
		{"no rule masquerades, and the plugin is configured to", func(n *model.Snapshot) {
			masqueradeEach(n)
			n.Node.Masquerades = true
		}, []string{"likely MissingMasquerade"}, "MASQUERADE", 3, 0, 0},
		{"no rule masquerades, and the subnet has no way out", func(n *model.Snapshot) {
			masqueradeEach(n)
			n.Node.Masquerades = true
			n.Sources = append(n.Sources, model.Source{Name: model.SourceCloud, Status: model.OK})
			n.Cluster.Azure.NICs = []model.NIC{{ID: "/x/networkInterfaces/nic", Addresses: []netip.Addr{addr("10.240.0.4")}}}
			n.Cluster.Azure.Subnets = []model.Subnet{{ID: "/x/subnets/nodes", Prefixes: []netip.Prefix{prefix("10.240.0.0/16")}, Private: true}}
		}, []string{"likely MissingOutbound"}, "nat-gateway", 3, 0, 0},
		{"the table of a pod's own rule is empty", func(n *model.Snapshot) { ownTables(n, 102) },
			[]string{"likely MissingTableRoute"}, "to table 101", 2, 0, 0},
		{"the tables of all pods' own rules have routes", func(n *model.Snapshot) { ownTables(n, 101, 102) }, nil, "", 0, 0, 0},
		{"a rule for all pods leads to a table that discards", func(n *model.Snapshot) {
			n.Rules = append([]model.RoutingRule{{Family: 4, Priority: 900, From: prefix("10.244.0.0/17"), Table: 200, Action: "lookup"}}, n.Rules...)
			n.Routes = append(n.Routes, model.Route{Table: 200, Dst: prefix("0.0.0.0/0"), Type: "unreachable"})
		}, []string{"proven BlackholeRoute"}, "table 200", 6, 0, 0},
		{"a rule discards what one pod sends", func(n *model.Snapshot) {
			n.Rules = append([]model.RoutingRule{{Family: 4, Priority: 100, From: prefix("10.244.0.2/32"), Action: "prohibit"}}, n.Rules...)
		}, []string{"proven BlackholeRoute"}, "10.244.0.2/32", 1, 0, 0},
		{"a tunnel knows a node for each next hop", func(n *model.Snapshot) { tunnel(n, 20, 21) }, nil, "", 0, 0, 0},
		{"a tunnel knows no node for one next hop", func(n *model.Snapshot) { tunnel(n, 20) }, []string{"likely StaleFDB"}, "restart the agent of the network plugin", 3, 0, 0},
		{"a tunnel that programs tell the nodes", func(n *model.Snapshot) { tunnel(n) }, nil, "", 0, 0, 0},
		{"a service without endpoints", func(n *model.Snapshot) {
			filterRule(n, "FORWARD", model.PacketRule{Target: "KUBE-SERVICES"})
			filterRule(n, "KUBE-SERVICES", model.PacketRule{Dst: to("10.0.0.20/32"), Proto: 6, DstPorts: []model.PortRange{{First: 80, Last: 80}},
				Target: "REJECT", Comment: "shop/cart:http has no endpoints", Text: "-d 10.0.0.20/32 -p tcp --dport 80 -j REJECT"})
		}, []string{"proven DeadBackend"}, "shop/cart:http", 1, 0, 0},
		{"pods have no default route, as where they are isolated", func(n *model.Snapshot) {
			for p := range model.Each(n.Pods) {
				p.Routes = p.Routes[1:]
			}
		}, nil, "", 0, 0, 3},
		{"all that leaves is masqueraded", func(n *model.Snapshot) { n.PacketRules[1].Dst = model.AddrMatch{} },
			[]string{"likely UnexpectedMasquerade"}, "POSTROUTING", 3, 0, 0},
		{"only TCP is masqueraded", func(n *model.Snapshot) { n.PacketRules[1].Proto = model.TCP },
			[]string{"likely MissingMasquerade"}, "MASQUERADE", 3, 0, 0},
		{"a service leads to a pod, and bridged replies are translated back", func(n *model.Snapshot) { service(n, true) }, nil, "", 0, 0, 0},
		{"a service leads to a pod, and bridged replies are not", func(n *model.Snapshot) {
			service(n, true)
			n.Sysctls[1].Value = "0"
		}, []string{"proven BridgeNetfilterOff"}, "bridge-nf-call-iptables=1", 1, 0, 0},
		{"a pod reaches itself by a service, and nothing masquerades it", func(n *model.Snapshot) { service(n, false) },
			[]string{"proven HairpinDrop"}, "MASQUERADE", 1, 0, 0},
		{"a pod reaches itself by a service, and its port sends nothing back", func(n *model.Snapshot) {
			service(n, true)
			n.Links[2].Hairpin = false
		}, []string{"proven HairpinDrop"}, "hairpin on", 1, 0, 0},
		{"a promiscuous bridge gives the node what its port does not send back", func(n *model.Snapshot) {
			service(n, true)
			n.Links[1].Promisc, n.Links[2].Hairpin = true, false
		}, nil, "", 0, 0, 0},
		{"a smaller uplink", func(n *model.Snapshot) { narrow(n) }, nil, "", 0, 0, 0},
		{"a smaller uplink, and a rule drops the errors that tell it", func(n *model.Snapshot) {
			narrow(n)
			filterRule(n, "OUTPUT", model.PacketRule{Target: "DROP", Proto: model.ICMP, Unknown: []string{"icmp --icmp-type 3/4"}})
		}, []string{"likely PathMTU"}, "1280", 3, 0, 3},
		{"a smaller uplink, and a rule drops other errors", func(n *model.Snapshot) {
			narrow(n)
			filterRule(n, "OUTPUT", model.PacketRule{Target: "DROP", Proto: model.ICMP, Unknown: []string{"[@th,0,8 0x08]"}})
		}, nil, "", 0, 0, 3},
		{"a smaller uplink, and segments that fit it", func(n *model.Snapshot) {
			narrow(n)
			filterRule(n, "OUTPUT", model.PacketRule{Target: "DROP", Proto: model.ICMP})
			filterRule(n, "FORWARD", model.PacketRule{Target: "TCPMSS", Proto: model.TCP})
		}, nil, "", 0, 0, 3},
		{"requests to a pod are not tracked, and what is invalid is dropped", func(n *model.Snapshot) {
			filterRule(n, "PREROUTING", model.PacketRule{Dst: to("10.244.0.3/32"), Target: "NOTRACK"})
			n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: "PREROUTING", Hook: "PREROUTING", Priority: -300})
			filterRule(n, "FORWARD", model.PacketRule{Target: "DROP", Unknown: []string{"conntrack --ctstate INVALID"}, Text: "-m conntrack --ctstate INVALID -j DROP"})
		}, []string{"proven InvalidDrop"}, "-D PREROUTING", 2, 0, 0},
		{"a route leads another node's pods to the pods' own bridge", func(n *model.Snapshot) {
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.244.129.0/24"), IfIndex: 3, Link: "cbr0", Type: "unicast", Protocol: "static"})
		}, []string{"likely UnansweredARP"}, "10.244.129.2", 3, 0, 0},
		{"a route leads one other node's pods to the uplink itself", func(n *model.Snapshot) {
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.244.129.0/24"), IfIndex: 2, Link: "eth0", Type: "unicast"},
				model.Route{Table: 254, Dst: prefix("10.244.130.0/24"), Gateway: addr("10.240.0.6"), IfIndex: 2, Link: "eth0", Type: "unicast"})
		}, []string{"likely UnansweredARP"}, "10.244.129.2", 3, 0, 0},
		{"a rule drops what is for a range outside", func(n *model.Snapshot) {
			filterRule(n, "FORWARD", model.PacketRule{Dst: to("198.18.0.0/15"), Target: "DROP", Text: "-d 198.18.0.0/15 -j DROP"})
		}, []string{"proven PolicyDrop"}, "-d 198.18.0.0/15", 1, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node3()
			tt.make(n)
			r := audit.Run(n, nil)
			var got []string
			var said strings.Builder
			for _, f := range r.Findings {
				got = append(got, fmt.Sprint(f.Confidence, " ", f.Code))
				fmt.Fprintln(&said, f.Title, f.Why, f.Fix, f.Next)
				if f.Packets != 0 || f.Verify == "" {
					t.Errorf("%s counted %d packets; verify %q", f.Code, f.Packets, f.Verify)
				}
			}
			a := r.Audit
			if !slices.Equal(got, tt.want) || !strings.Contains(said.String(), tt.fix) ||
				len(a.Cut) != tt.cut || len(a.Denied) != tt.denied || len(a.Unsure) != tt.unsure {
				t.Errorf("%q, %d cut, %d denied, %d unsure; want %q with %q, %d, %d, %d\n%s", got, len(a.Cut), len(a.Denied), len(a.Unsure),
					tt.want, tt.fix, tt.cut, tt.denied, tt.unsure, said.String())
			}
			for _, p := range a.Cut {
				if !slices.ContainsFunc(r.Findings, func(f model.Finding) bool { return f.Code == p.Finding }) || p.Decision == "" {
					t.Errorf("%s to %s dies of %q at %q", p.Pod, p.To, p.Finding, p.Decision)
				}
			}
			for _, p := range append(a.Denied, a.Unsure...) {
				if !strings.Contains(p.Decision, " ") || p.Finding != "" {
					t.Errorf("%s to %s: %q, %q", p.Pod, p.To, p.Finding, p.Decision)
				}
			}
		})
	}
}

// service has kube-proxy's rules for a service with one pod. marks: they masquerade what the pod asks itself.
func service(n *model.Snapshot, marks bool) {
	n.PacketRules[0].Dst, n.PacketRules[0].Proto = to("10.0.0.20/32"), model.TCP
	n.PacketRules[0].DstPorts = []model.PortRange{{First: 80, Last: 80}}
	if marks {
		natRule(n, model.PacketRule{Chain: "KUBE-SERVICES", Src: to("10.244.0.2/32"), Target: "MARK", SetMark: model.MarkWrite{Value: 0x4000, Mask: 0x4000}})
	}
	natRule(n, model.PacketRule{Chain: "KUBE-SERVICES", Proto: model.TCP, Target: "DNAT", To: netip.MustParseAddrPort("10.244.0.2:8080")})
	natRule(n, model.PacketRule{Chain: "POSTROUTING", Mark: model.MarkMatch{Set: true, Value: 0x4000, Mask: 0x4000}, Target: "MASQUERADE"})
}

// narrow has an uplink of 1280 bytes.
func narrow(n *model.Snapshot) {
	for l := range model.Each(n.Links) {
		l.MTU = model.Either(l.Role == model.RoleUplink, 1280, 1500)
	}
	n.Chains = append(n.Chains, model.Chain{Backend: model.NFT, Family: "ip", Table: "filter", Name: "OUTPUT", Hook: "OUTPUT", Policy: "ACCEPT"})
}

// tunnel is a VXLAN to the pods of two nodes, with entries for some of their MACs.
func tunnel(n *model.Snapshot, known ...int) {
	n.Links = append(n.Links, model.Link{Index: 4, Name: "flannel.1", Kind: "vxlan", MAC: mac(4), Up: true, Carrier: true, Role: model.RoleTunnel})
	for i, a := range []string{"10.244.129.0", "10.244.130.0"} {
		n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix(a + "/24"), Gateway: addr(a), IfIndex: 4, Link: "flannel.1", Type: "unicast"})
		n.Neighbors = append(n.Neighbors, model.Neighbor{Addr: addr(a), MAC: mac(20 + i), IfIndex: 4, Link: "flannel.1", State: "PERMANENT"})
	}
	for _, m := range known {
		n.FDB = append(n.FDB, model.FDBEntry{MAC: mac(m), IfIndex: 4, Static: true, End: addr("10.240.0.7")})
	}
}

// masqueradeEach has the CNI plugin bridge, with a rule for each of some pods in place of the one for all.
func masqueradeEach(n *model.Snapshot, pods ...string) {
	n.Node.Plugin, n.PacketRules = "bridge", n.PacketRules[:1]
	for _, pod := range pods {
		natRule(n, model.PacketRule{Chain: "POSTROUTING", Src: to(pod + "/32"), Target: "CNI-" + pod, Text: "-s " + pod + " -j CNI-" + pod})
		natRule(n, model.PacketRule{Chain: "CNI-" + pod, Dst: model.AddrMatch{Prefix: prefix("10.192.0.0/10")}, Target: "ACCEPT"})
		natRule(n, model.PacketRule{Chain: "CNI-" + pod, Target: "MASQUERADE", Text: "-j MASQUERADE"})
	}
}

// ownTables gives two pods routing rules to tables of their own, of which some have routes. Nothing masquerades.
func ownTables(n *model.Snapshot, filled ...int) {
	n.Node.Plugin, n.PacketRules = "ptp", n.PacketRules[:1]
	for i, pod := range []string{"10.244.0.2/32", "10.244.0.3/32"} {
		n.Rules = append([]model.RoutingRule{{Family: 4, Priority: 1536, From: prefix(pod), Table: 101 + i, Action: "lookup"}}, n.Rules...)
	}
	for _, table := range filled {
		n.Routes = append(n.Routes, model.Route{Table: table, Dst: prefix("0.0.0.0/0"), Gateway: addr("10.240.0.1"), IfIndex: 2, Link: "eth0", Type: "unicast"})
	}
}

// TestBeside: of a window is told what had no packets, unless a packet survived the same, or the verdict has it.
func TestBeside(t *testing.T) {
	flow := func(pod, to string, replied bool) func(*model.Snapshot) {
		return func(n *model.Snapshot) {
			n.Flows = append(n.Flows, model.Flow{Proto: 6, Start: n.Window.Start.Add(time.Second), Replied: replied,
				Original: model.Tuple{Src: addr(pod), Dst: addr(to), SrcPort: 4000, DstPort: 80},
				Reply:    model.Tuple{Src: addr(to), Dst: addr(pod), SrcPort: 80, DstPort: 4000}})
		}
	}
	pods := []string{"10.244.0.2", "10.244.0.3", "10.244.0.4"}
	for _, tt := range []struct {
		name string
		make []func(*model.Snapshot)
		// known: the verdict has the finding.
		known bool
		pods  []string
	}{
		{"no traffic", nil, false, pods},
		{"traffic elsewhere", []func(*model.Snapshot){flow(pods[0], "192.0.2.7", true), flow(pods[1], pods[2], true)}, false, pods},
		{"one pod asks", []func(*model.Snapshot){flow(pods[1], "10.244.129.9", false)}, false, []string{pods[0], pods[2]}},
		{"one pod gets a reply", []func(*model.Snapshot){flow(pods[1], "10.244.129.9", true)}, false, nil},
		{"all ask", []func(*model.Snapshot){flow(pods[0], "10.244.129.9", false), flow(pods[1], "10.244.129.9", false),
			flow(pods[2], "10.244.129.9", false)}, false, nil},
		{"the verdict has it", nil, true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := node3()
			n.Window.End = n.Window.Start.Add(time.Minute)
			n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.244.129.0/24"), Type: "blackhole"})
			for _, change := range tt.make {
				change(n)
			}
			var verdict []model.Finding
			if tt.known {
				verdict = audit.Run(n, nil).Findings
			}
			got := audit.Beside(node.New(n), verdict, nil)
			var of []string
			for _, f := range got {
				if f.Code != "BlackholeRoute" || !f.ByTables || f.Packets != 0 {
					t.Errorf("%+v", f)
				}
				for _, a := range f.Pods {
					of = append(of, a.String())
				}
			}
			if !slices.Equal(of, tt.pods) {
				t.Errorf("pods %v, want %v", of, tt.pods)
			}
		})
	}
	n := node3()
	filterRule(n, "FORWARD", model.PacketRule{Dst: to("192.0.2.0/24"), Target: "DROP", Text: "-d 192.0.2.0/24 -j DROP"})
	if got := audit.Beside(node.New(n), nil, nil); len(got) != 1 || got[0].Severity != model.Info {
		t.Errorf("a rule that may be meant: %+v", got)
	}
}

// TestCountsIgnored: what was counted in a window changes nothing.
func TestCountsIgnored(t *testing.T) {
	n := node3()
	n.Window.End = n.Window.Start.Add(time.Minute)
	n.Traffic.Drops = []model.Drop{{Src: addr("10.244.0.2"), Dst: addr("10.244.0.3"), Reason: "NETFILTER_DROP", Location: "nf_hook_slow",
		Packets: 900}}
	n.Traffic.Hops = []model.HopCount{{Addr: addr("10.244.0.2"), IfIndex: 10, Direction: model.Ingress, Side: model.AsSource, Packets: 900}}
	if r := audit.Run(n, nil); len(r.Findings) > 0 || len(r.Audit.Cut) > 0 || r.Audit.Pairs != 12 {
		t.Errorf("%+v, %+v", r.Findings, r.Audit)
	}
	if len(n.Traffic.Drops) == 0 {
		t.Error("the snapshot was changed")
	}
}

// TestPods: of one pod, only its own pairs are followed.
func TestPods(t *testing.T) {
	n := node3()
	r := audit.Run(n, []netip.Addr{addr("10.244.0.3")})
	if r.Audit.Pairs != 4 {
		t.Errorf("%d pairs", r.Audit.Pairs)
	}
}

// TestSince: what was dead before is left out, although the pods have other addresses now; what came back is said.
func TestSince(t *testing.T) {
	before, now := node3(), kubenet()
	for _, a := range []string{"10.244.0.12", "10.244.0.13", "10.244.0.14"} {
		addPod(now, addr(a))
	}
	blackhole := model.Route{Table: 254, Dst: prefix("10.244.129.0/24"), Type: "blackhole"}
	other := model.Route{Table: 254, Dst: prefix("10.244.130.0/24"), Type: "unreachable"}
	gone := model.Route{Table: 254, Dst: prefix("10.244.131.0/24"), Type: "blackhole"}
	before.Window.End = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	before.Routes = append(before.Routes, blackhole, gone)
	now.Routes = append(now.Routes, blackhole, other)
	r := audit.Run(now, nil).Since(audit.Run(before, nil))
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Title, "10.244.130.0/24") {
		t.Errorf("%+v", r.Findings)
	}
	if a := r.Audit; len(a.Cut) != 3 || len(a.Mended) != 3 || a.Cut[0].Name != "10.244.130.0/24" || a.Mended[0].Name != "10.244.131.0/24" ||
		!a.Since.Equal(before.Window.End) {
		t.Errorf("%+v", a)
	}
	if same := audit.Run(before, nil).Since(audit.Run(before, nil)); len(same.Findings)+len(same.Audit.Cut)+len(same.Audit.Mended) > 0 {
		t.Errorf("%+v, %+v", same.Findings, same.Audit)
	}
}
