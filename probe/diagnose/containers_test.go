package diagnose

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/collect/cluster"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/plugin"
)

const container = "10.88.0.2"

// withContainer is a kubenet node with a container on a bridge whose range is written before the pods', as Docker's rules and
// Podman's say it; as a pod without them.
func withContainer(engine string) *testNode {
	n := kubenet().live()
	n.Links = slices.Insert(n.Links, 1, model.Link{Index: 4, Name: "br-0a1b", Kind: "bridge", MAC: mac("0a:00:00:00:00:04"), Up: true,
		Carrier: true, Role: model.RoleBridge, Addresses: []netip.Prefix{prefix("10.88.0.1/24")}})
	n.route(model.Route{Dst: prefix("10.88.0.0/24"), IfIndex: 4, Type: "unicast"})
	n.pod(container, "02:42:ac:11:00:02", 4)
	n.Pods[2].Addresses[0] = prefix(container + "/24")
	switch engine {
	case "Docker":
		n.natRules(model.PacketRule{Chain: "POSTROUTING", Src: to("10.88.0.0/24"), Out: model.IfMatch{Name: "br-0a1b", Not: true},
			Target: "MASQUERADE", Text: "-s 10.88.0.0/24 ! -o br-0a1b -j MASQUERADE"},
			model.PacketRule{Chain: "DOCKER", In: model.IfMatch{Name: "br-0a1b"}, Target: "RETURN"})
	case "Podman":
		n.PacketRules = append(n.PacketRules, model.PacketRule{Backend: model.NFT, Family: "inet", Table: "netavark", Chain: "POSTROUTING",
			Native: true, Src: to("10.88.0.0/24"), Target: "nv_0a1b_10_88_0_0_nm24", Text: "ip saddr 10.88.0.0/24 jump nv_0a1b_10_88_0_0_nm24"})
		n.natRules(model.PacketRule{Chain: "POSTROUTING", Src: to("10.88.0.0/24"), Target: "MASQUERADE"})
	}
	model.SetEngines(&n.Snapshot)
	return n
}

// TestContainers: what Docker and Podman run beside the pods is told from these by their rules.
func TestContainers(t *testing.T) {
	for _, engine := range []string{"Docker", "Podman", ""} {
		t.Run(engine, func(t *testing.T) {
			n := withContainer(engine)
			if n.Pods[0].Engine != "" || n.Pods[2].Engine != engine {
				t.Errorf("engines %q and %q", n.Pods[0].Engine, n.Pods[2].Engine)
			}
			v := node.New(&n.Snapshot)
			if got, want := v.Remote(addr("172.20.2.7")), prefix("172.20.2.0/24"); engine != "" && got != want {
				t.Errorf("another node's range is %s", got)
			}
			if engine != "" && (v.Remote(addr("10.88.1.9")).IsValid() || slices.Contains(v.OwnCIDRs(), prefix("10.88.0.0/24"))) {
				t.Error("the containers' range is the cluster's")
			}
			if !v.Vacant(addr("10.88.0.9")) {
				t.Error("no address of the bridge is vacant")
			}
		})
	}
	n := withContainer("Docker")
	n.Links = slices.DeleteFunc(n.Links, func(l model.Link) bool { return l.Name == "br-pods" || l.Master == 3 })
	n.Pods = n.Pods[2:]
	if got := cluster.Ranges(&n.Snapshot); len(got) > 0 {
		t.Errorf("the cluster's ranges are %v", got)
	}
	if r := plugin.Recognise(&n.Snapshot, plugin.Config{}); r.Plugin != plugin.Unknown {
		t.Errorf("plugin %s by %q", r.Plugin, r.By)
	}
	// Docker may run Kubernetes' pods as well.
	n = withContainer("Docker")
	n.Pods[2].Name, n.Pods[2].Engine = "cart", ""
	if model.SetEngines(&n.Snapshot); n.Pods[2].Engine != "" {
		t.Error("a pod is a container")
	}
}

// bridgeless is a node whose bridge of that name is gone: the ones on it remember its MAC for their gateway.
func bridgeless(n *testNode, name, gateway string) func() *testNode {
	return func() *testNode {
		b := *model.First(n.Links, func(l *model.Link) bool { return l.Name == name })
		n.Routes = slices.DeleteFunc(n.Routes, func(r model.Route) bool { return r.IfIndex == b.Index })
		for i := range n.Pods {
			if l := n.link(n.Pods[i].LinkIndex); l.Master == b.Index {
				l.Master = 0
				a := n.Pods[i].Addresses[0].Addr().String()
				n.inner(i, a+"/24", "default via "+gateway)
				n.gateway(&n.Pods[i], gateway, b.MAC.String(), "REACHABLE")
				n.dropOn(l.Name, "OTHERHOST", "ip_rcv_core", a, far, 6).DstMAC = b.MAC
			}
		}
		n.Links = slices.DeleteFunc(n.Links, func(l model.Link) bool { return l.Name == name })
		n.Node.Bridge = "cni0"
		model.SetEngines(&n.Snapshot)
		return n
	}
}

// TestBridgeGone: what is on it has no bridge any more. Who routes pods has none either.
func TestBridgeGone(t *testing.T) {
	routed := func() *testNode {
		n := kubenet().live()
		n.unroute("172.20.1.0/24")
		for i := range n.Pods {
			l := n.link(n.Pods[i].LinkIndex)
			l.Master, l.Addresses = 0, []netip.Prefix{prefix("172.20.1.1/32")}
			n.inner(i, n.Pods[i].Addresses[0].Addr().String()+"/24", "noprefix", "172.20.1.1", "default via 172.20.1.1")
			n.route(model.Route{Dst: model.Host(n.Pods[i].Addresses[0].Addr()), IfIndex: l.Index, Type: "unicast"})
		}
		n.Links = slices.DeleteFunc(n.Links, func(l model.Link) bool { return l.Name == "br-pods" })
		return n
	}
	lost := func() *testNode { // one of them
		n := routed()
		n.unroute(pod5 + "/32")
		n.link(n.Pods[0].LinkIndex).Addresses = nil
		return n
	}
	situations(t, []situation{
		{"the pods'", bridgeless(kubenet().live(), "br-pods", "172.20.1.1"), []string{"critical PodLinkOffBridge"},
			"ip link add name cni0 address 0a:00:00:00:00:03 type bridge; ip addr add 172.20.1.1/24 dev cni0", "route"},
		{"Docker's", bridgeless(withContainer("Docker"), "br-0a1b", "10.88.0.1"), []string{"critical PodLinkOffBridge"},
			"the bridge br-0a1b of " + container + " is gone", "ip "},
		{"Podman's", bridgeless(withContainer("Podman"), "br-0a1b", "10.88.0.1"), []string{"critical PodLinkOffBridge"},
			"podman network reload --all", "ip "},
		{"healthy: pods are routed", routed, nil, "", ""},
		{"one of them is no more", lost, []string{"critical MissingPodRoute"}, "ip route replace", "type bridge"},
	})
}

// TestContainersMasquerade: all that a container sends beyond the node needs the node's address, to pods too.
func TestContainersMasquerade(t *testing.T) {
	remedies(t, []remedy{
		{"Docker's rule is gone", func() *testNode { return unmasked("Docker") }, "MissingMasquerade",
			[]string{"systemctl restart docker"}, "iptables"},
		{"Podman's rule is gone", func() *testNode { return unmasked("Podman") }, "MissingMasquerade",
			[]string{"podman network reload --all"}, "iptables"},
		{"Docker's rule leads to a container that is gone", func() *testNode {
			n := withContainer("Docker")
			n.natRules(model.PacketRule{Chain: "DOCKER", Proto: tcp, Target: "DNAT", To: netip.MustParseAddrPort("10.88.0.9:80"),
				Text: "-p tcp -j DNAT --to-destination 10.88.0.9:80"})
			n.deadTo("10.88.0.9")
			return n
		}, "DeadBackend", []string{"systemctl restart docker"}, "endpointslices"},
	})
	// Docker keeps its networks apart.
	remedies(t, []remedy{{"isolation", func() *testNode { return isolated(container) }, "PolicyDrop",
		[]string{"# Docker keeps its networks apart: if these containers need each other, docker network connect"}, "DOCKER-USER"},
		{"isolation of a pod", func() *testNode { return isolated(pod5) }, "PolicyDrop", []string{"iptables -I DOCKER-USER -s 172.20.1.0/24"}, "connect"}})
	n := withContainer("Docker")
	n.translated(container, far, far, "10.50.0.4", true)
	verdicts(t, n, nil)
}

func unmasked(engine string) *testNode {
	n := withContainer(engine)
	n.PacketRules = slices.DeleteFunc(n.PacketRules, func(r model.PacketRule) bool { return r.Src == to("10.88.0.0/24") && r.Table == "nat" })
	n.PacketRules = n.PacketRules[4:]
	n.silent(container, far)
	return n
}

// deadTo adds flows to a service that a rule translates to an address that nobody has.
func (n *testNode) deadTo(backend string) {
	for i := range 5 {
		n.Flows = append(n.Flows, model.Flow{Proto: tcp, Start: start,
			Original: model.Tuple{Src: addr(far), Dst: addr("10.50.0.4"), SrcPort: uint16(40000 + i), DstPort: 8080},
			Reply:    model.Tuple{Src: addr(backend), Dst: addr(far), SrcPort: 80, DstPort: uint16(40000 + i)}})
	}
}

// isolated is a node where Docker's isolation of networks drops what comes for one.
func isolated(of string) *testNode {
	n := withContainer("Docker")
	n.chain(model.NFT, "ip", "filter", "FORWARD", "FORWARD", "ACCEPT", 0)
	n.chain(model.NFT, "ip", "filter", "DOCKER-ISOLATION-STAGE-2", "", "", 0)
	n.filter(model.NFT, "FORWARD", 9, model.PacketRule{Target: "DOCKER-ISOLATION-STAGE-2"})
	n.filter(model.NFT, "DOCKER-ISOLATION-STAGE-2", 9, model.PacketRule{Target: "DROP", Text: "-j DROP"})
	n.refuse("nft_do_chain", far, of, 9)
	return n
}
