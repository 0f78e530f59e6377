package diagnose

import (
	"slices"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// undecided puts a rule whose match is not known in front of the agent's.
func (n *testNode) undecided(target, match string) *testNode {
	n.PacketRules = slices.Insert(n.PacketRules, 1, model.PacketRule{Backend: model.NFT, Family: "ip", Table: "nat",
		Chain: "IP-MASQ-AGENT", Target: target, Unknown: []string{match}, Text: match + " -j " + target,
		Counter: model.Counter{Packets: 40, Delta: 40}})
	return n
}

// begun adds connection attempts of the window that nobody replied to, from the pod's own address.
func (n *testNode) begun(local, remote string, at time.Time) *testNode {
	n.peer(local, remote, model.PeerCount{Packets: 40, Requests: 40}, none)
	n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: at, State: "SYN_SENT",
		Original: model.Tuple{Src: addr(local), Dst: addr(remote), SrcPort: 40000, DstPort: 443},
		Reply:    model.Tuple{Src: addr(remote), Dst: addr(local), SrcPort: 443, DstPort: 40000}})
	return n
}

// TestUndecided: a rule that may have matched did, where the packets show it, and what was seen outranks what the
// tables predict.
func TestUndecided(t *testing.T) {
	const set = "-m set --match-set trusted dst"
	later := start.Add(2 * time.Second)
	situations(t, []situation{
		{"an ipset exclusion that is too wide", func() *testNode {
			n := kubenet().undecided("RETURN", set)
			n.answered("10.50.0.4", "10.50.0.5")
			return n.begun(pod5, out, later).begun(pod5, out2, later)
		}, []string{"critical MissingMasquerade"}, "this rule excludes them from translation", "conntrack -L"},
		{"connections that began before the rule", func() *testNode {
			n := kubenet().undecided("RETURN", set)
			n.answered("10.50.0.4", "10.50.0.5")
			return n.begun(pod5, out, time.Time{}).begun(pod5, out2, time.Time{})
		}, []string{"critical MissingMasquerade"}, "older", "match-set"},
		{"a mark that another's rule set, in kindnet's chain", func() *testNode {
			n := routed()
			n.Node.Plugin = "kindnet"
			n.chain(model.NFT, "ip", "nat", "POSTROUTING", "POSTROUTING", "ACCEPT", 0)
			n.natRules(model.PacketRule{Chain: "POSTROUTING", Mark: model.MarkMatch{Value: 0x80000, Mask: 0x80000, Set: true}, Target: "ACCEPT",
				Text: "-m mark --mark 0x80000/0x80000 -j ACCEPT", Counter: model.Counter{Packets: 40, Delta: 40}},
				model.PacketRule{Chain: "POSTROUTING", Unknown: []string{"-m connmark --mark 0x7"}, Target: "RETURN", Text: "-m connmark --mark 0x7 -j RETURN",
					Counter: model.Counter{Packets: 9, Delta: 9}},
				model.PacketRule{Chain: "POSTROUTING", Target: "MASQUERADE", Text: "-j MASQUERADE", Counter: model.Counter{Packets: 3, Delta: 3}})
			n.Pods[0].Addresses[0], n.Routes[2].Dst = prefix("192.168.55.20/32"), prefix("192.168.55.20/32")
			n.Chains[len(n.Chains)-1].Priority = 100
			n.answered("10.50.0.4", "10.50.0.5")
			return n.begun("192.168.55.20", out, later).begun("192.168.55.20", out2, later)
		}, []string{"critical MissingMasquerade"}, "-m connmark --mark 0x7", ""},
		{"Calico's pools, one of which is the internet", func() *testNode {
			n := newNode("ens5", "10.20.0.4", "10.20.0.0/24", "10.20.0.1")
			n.Node.Plugin = "calico"
			n.pod("10.244.9.65", "0a:58:00:00:00:65", 0)
			n.route(model.Route{Dst: prefix("10.244.9.65/32"), IfIndex: 10})
			n.chain(model.NFT, "ip", "nat", "POSTROUTING", "POSTROUTING", "ACCEPT", 0)
			n.Chains[0].Priority = 100
			n.natRules(model.PacketRule{Chain: "POSTROUTING", Target: "MASQUERADE", Comment: "cali:flqWnvo8yq4ULQLa",
				Unknown: []string{"-m set --match-set cali40masq-ipam-pools src", "-m set ! --match-set cali40all-ipam-pools dst"},
				Text:    "-m set --match-set cali40masq-ipam-pools src -m set ! --match-set cali40all-ipam-pools dst -j MASQUERADE"})
			n.answered("10.20.0.4", "10.20.0.5")
			return n.live().begun("10.244.9.65", out, later).begun("10.244.9.65", out2, later)
		}, []string{"critical MissingMasquerade"}, "cali40all-ipam-pools", ""},
		{"the same, all answered", func() *testNode {
			n := kubenet().undecided("RETURN", set)
			n.answered(pod5, out)
			n.answered(pod5, "10.50.0.5")
			return n
		}, nil, "", ""},
		{"no rule translates: a company's target answers, the internet does not", func() *testNode {
			n := kubenet()
			n.Node.Plugin, n.PacketRules = "kindnet", nil
			n.answered(pod5, "192.168.7.1")
			return n.begun(pod5, out, later).begun(pod5, out2, later)
		}, []string{"critical MissingMasquerade"}, "", ""},
		{"an exclusion: one public target of it answers, another is down", func() *testNode {
			n := kubenet()
			n.exclude("203.0.113.0/24")
			n.answered(pod5, "203.0.113.10")
			return n.begun(pod5, out, later)
		}, []string{"warning NoReply"}, "", ""},
		{"by another uplink's route the private targets answer", func() *testNode {
			n := kubenet()
			n.Links = append(n.Links, model.Link{Index: 4, Name: "ens6", MAC: mac("00:0d:3a:00:00:02"), Up: true, Carrier: true, Role: model.RoleUplink})
			n.Node.Plugin, n.PacketRules = "bridge", nil
			n.route(model.Route{Dst: prefix("198.18.0.0/15"), Gateway: addr("10.60.0.1"), IfIndex: 4})
			n.answered(pod5, "198.18.4.4")
			n.Traffic.Peers[0].IfIndex, n.Traffic.Peers[0].Link = 4, "ens6"
			return n.begun(pod5, out, later).begun(pod5, out2, later)
		}, []string{"critical MissingMasquerade"}, "", ""},
		{"an undecided exclusion, and a private target of it is down", func() *testNode {
			n := kubenet().undecided("RETURN", set)
			n.answered("10.50.0.4", "10.50.0.5")
			return n.begun(pod5, "192.168.7.1", later)
		}, []string{"warning NoReply"}, "", "conntrack"},
		{"an undecided exclusion, and an agent's gap of a few packets", func() *testNode {
			n := kubenet().undecided("RETURN", set)
			n.answered("10.50.0.4", out2)
			n.begun(pod5, out, later)
			n.Traffic.Peers[1].Out = model.PeerCount{Packets: 3, Requests: 3}
			return n
		}, []string{"warning NoReply"}, "", ""},
	})
}
