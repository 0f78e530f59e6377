package lab

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

func alive(FlowStats) bool { return false }

func isPod(e scenario.Endpoint) bool { return strings.Contains(e.Place, "/") }

func node(e scenario.Endpoint) string {
	n, _, _ := strings.Cut(e.Place, "/")
	return n
}

// crosses: from one node to another.
func crosses(s FlowStats) bool {
	return node(s.From) != node(s.To) && s.From.Place != outsideName && s.To.Place != outsideName
}

func touches(s FlowStats, place string) bool { return s.From.Place == place || s.To.Place == place }

// withPod: crosses, with a pod of the node at one end.
func withPod(s FlowStats, name string) bool {
	return crosses(s) && (isPod(s.From) && node(s.From) == name || isPod(s.To) && node(s.To) == name)
}

func TestScenarios(t *testing.T) {
	tests := map[string]func(FlowStats) bool{
		"healthy-kubenet":      alive,
		"healthy-azure-bridge": alive,
		// Nothing with a pod's address crosses the fabric.
		"missing-udr": func(s FlowStats) bool { return crosses(s) && (isPod(s.From) || isPod(s.To)) },
		// Neither requests to that node's pods nor answers to them.
		"missing-udr-one": func(s FlowStats) bool { return withPod(s, "aks-3") },
		// What arrives at the NIC for the pod, request or answer; but
		// answers from outside arrive for the node.
		"stale-mac-rewrite": func(s FlowStats) bool { return crosses(s) && touches(s, "aks-1/cart") },
		// Within the node, both ways: the answer must find the pod too.
		"stale-arpreply": func(s FlowStats) bool {
			return touches(s, "aks-1/cart") && node(s.From) == node(s.To) && isPod(s.From)
		},
		"missing-masquerade": func(s FlowStats) bool {
			return s.To.Place == outsideName && isPod(s.From) && node(s.From) == "aks-1"
		},
	}
	for name, dead := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := up(t, load(t, name), name)
			trial(t, l, 4, 1, dead)
			if name == "missing-udr" || name == "missing-udr-one" || name == "missing-masquerade" || strings.HasPrefix(name, "healthy") {
				for _, n := range l.Nodes() {
					dropsNothing(t, l, n.Name)
				}
			}
		})
	}
}

// dropsNothing checks the node's own counters of what it lost.
func dropsNothing(t *testing.T, l *Lab, node string) {
	t.Helper()
	sp, err := l.open(node)
	if err != nil {
		t.Fatal(err)
	}
	defer sp.close()
	// The counters that are losses; OTHERHOST is none, a bridge floods.
	losses := map[string]bool{
		"Ip.InHdrErrors": true, "Ip.InAddrErrors": true, "Ip.InUnknownProtos": true, "Ip.InDiscards": true,
		"Ip.OutDiscards": true, "Ip.OutNoRoutes": true, "Ip.FragFails": true, "Udp.NoPorts": true,
		"IpExt.InNoRoutes": true, "TcpExt.IPReversePathFilter": true,
	}
	for _, file := range []string{"snmp", "netstat"} {
		var data []byte
		err := sp.ns.Do(func() (err error) {
			data, err = os.ReadFile("/proc/thread-self/net/" + file)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(data), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			keys, vals := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for k := 1; k < len(keys); k++ {
				name := strings.TrimSuffix(keys[0], ":") + "." + keys[k]
				if losses[name] && vals[k] != "0" {
					t.Errorf("%s: %s %s", node, name, vals[k])
				}
				delete(losses, name)
			}
		}
	}
	if len(losses) > 0 {
		t.Errorf("%s: does not count %v", node, losses)
	}
}

// TestOtherShape: nothing of a lab depends on the names and addresses that it
// has by default, and two faults strike only what they strike.
func TestOtherShape(t *testing.T) {
	t.Parallel()
	s := parse(t, `
name: shape
topology:
  vnet: 172.20.0.0/14
  subnet: 172.21.16.0/20
  gateway: 172.21.16.1
  podCIDR: 192.168.64.0/18
  fabricMAC: "fe:12:00:00:00:01"
  edge: 198.51.100.1
  outside: [198.51.100.7, 198.51.100.8]
  nic: ens33
  nodes:
    - name: left
      nicMAC: "7c:1e:52:aa:00:01"
      ip: 172.21.20.9
      podCIDR: 192.168.66.0/23
      bridge: kbr
      bridgeMAC: "6e:00:00:00:00:01"
      pods:
        - {name: a, link: tap.a, ip: 192.168.67.200, mac: "a6:00:00:00:00:01"}
        - b
    - {name: right, nic: enP1s0, podCIDR: 192.168.80.0/26, pods: 2}
    - {name: far, pods: [c]}
    - name: cni
      plugin: azure-bridge
      nicMAC: "fa:16:3e:00:00:01"
      bridge: br-az
      pods: [{name: d, mac: "02:00:00:00:10:00", link: p0}, e, f]
    - {name: cil, plugin: cilium, router: 172.21.19.77, pods: [g, h]}
traffic:
  - from: [left/a, left/b, far/c, cni/d, cni/e, cil/g]
    to: [left/b, right/pod-2, far/c, cni/d, cni/f, cil/h, 198.51.100.8]
    proto: [tcp, udp]
    rate: 3
  - {from: [left, right, cil], to: [far, cni, cni/d, cil/g], proto: icmp}
  - {from: outside, to: left}
faults:
  - {type: delete-udr, node: right}
  - {type: stale-arpreply, pod: cni/d}
`)
	l := up(t, s, "shape")
	trial(t, l, 3, 1, func(s FlowStats) bool {
		return withPod(s, "right") || touches(s, "cni/d") && isPod(s.From) && node(s.From) == node(s.To)
	})
	for ref, want := range map[string]string{"left/a": "192.168.67.200", "far/c": "192.168.64.2", "left": "172.21.20.9", "outside": "198.51.100.7", "1.2.3.4": "1.2.3.4"} {
		if got, err := s.Topology.Resolve(ref); err != nil || got.Addr.String() != want {
			t.Errorf("resolve %s: %v, %v", ref, got.Addr, err)
		}
	}
	if _, err := s.Topology.Resolve("left/none"); err == nil {
		t.Error("resolved a pod that is not there")
	}
	nodes := l.Nodes()
	if len(nodes) != 5 || nodes[0] != (Node{Name: "left", Netns: netnsPrefix + l.ID() + "-left", Plugin: "kubenet", Observed: true}) || nodes[4].Observed {
		t.Errorf("nodes %+v", nodes)
	}
}

// TestFaults does and undoes each fault while the lab is up.
func TestFaults(t *testing.T) {
	const text = `
name: faults
topology:
  %s
  nodes: [{name: one, pods: [a, b]}, {name: two, pods: [x]}]
traffic:
  - {from: [one/a, one/b, two/x], to: [one/a, one/b, two/x, outside], proto: [tcp, udp, icmp], rate: 10}
  - {from: [one, two], to: [one/a, two/x], proto: [udp], rate: 10}
`
	pod := scenario.Fault{Node: "one", Pod: "one/a", MAC: model.MAC{0xa2, 0x96, 1, 2, 3, 4}}
	on := func(typ scenario.FaultType) scenario.Fault { f := pod; f.Type = typ; return f }
	all := func(s FlowStats) bool { return touches(s, "one/a") }
	fromOutsideNode := func(s FlowStats) bool { return touches(s, "one/a") && node(s.From) != node(s.To) }
	kubenet, other := netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("10.244.1.0/24")
	across := func(s FlowStats) bool {
		return s.From.Place == "two/x" && node(s.To) == "one" || s.To.Place == "two/x" && node(s.From) == "one"
	}
	none := func(FlowStats) bool { return false }
	sameNodePods := func(s FlowStats) bool { return isPod(s.From) && isPod(s.To) && node(s.From) == node(s.To) }
	tests := map[string][]faultTrial{
		"plugin: kubenet": {
			{scenario.Fault{Type: scenario.DeleteUDR}, func(s FlowStats) bool { return withPod(s, "one") || withPod(s, "two") }},
			{scenario.Fault{Type: scenario.DeleteUDR, Prefix: kubenet}, func(s FlowStats) bool { return withPod(s, "one") }},
			{scenario.Fault{Type: scenario.WrongUDR, Prefix: kubenet, Via: netip.MustParseAddr("10.240.0.5")}, func(s FlowStats) bool { return withPod(s, "one") }},
			{scenario.Fault{Type: scenario.WrongUDR, Prefix: kubenet, Via: netip.MustParseAddr("10.240.0.99")}, func(s FlowStats) bool { return withPod(s, "one") }},
			{scenario.Fault{Type: scenario.NICForwardingOff, Node: "one"}, func(s FlowStats) bool { return withPod(s, "one") }},
			{scenario.Fault{Type: scenario.NSGDrop, Node: "one"}, func(s FlowStats) bool { return withPod(s, "one") }},
			{scenario.Fault{Type: scenario.NSGDrop, Node: "one", Prefix: netip.MustParsePrefix("10.244.1.2/32")}, func(s FlowStats) bool {
				return withPod(s, "one") && touches(s, "two/x") && isPod(s.From) && isPod(s.To)
			}},
			{scenario.Fault{Type: scenario.NoReturn, Node: "one"}, func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" }},
			{scenario.Fault{Type: scenario.NoOutbound, Node: "one"}, func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" }},
			{scenario.Fault{Type: scenario.MissingMasquerade, Node: "one"}, func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" }},
			{scenario.Fault{Type: scenario.MissingMasquerade, Node: "one", Prefix: netip.MustParsePrefix("203.0.0.0/8").Masked()}, func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" }},
			{scenario.Fault{Type: scenario.ForwardingOff, Node: "one"}, func(s FlowStats) bool { return withPod(s, "one") || s.To.Place == outsideName && node(s.From) == "one" }},
			{on(scenario.WrongNeighbor), func(s FlowStats) bool { return all(s) && !sameNodePods(s) }},
			{on(scenario.StaleARPReply), func(s FlowStats) bool { return all(s) && sameNodePods(s) }},
			{on(scenario.DropForward), func(s FlowStats) bool { return all(s) && s.From.Place != "one" }},
			{on(scenario.PodLinkDown), all},
			{on(scenario.PodInterfaceDown), all},
			{on(scenario.WrongGateway), func(s FlowStats) bool { return all(s) && !sameNodePods(s) }},
			{on(scenario.BridgeDrop), all},
			{scenario.Fault{Type: scenario.BlackholeRoute, Node: "one", Prefix: other}, across},
			{scenario.Fault{Type: scenario.AsymmetricRoute, Node: "one", Prefix: other}, across},
			// Nobody sends there, and nobody sends what is large.
			{scenario.Fault{Type: scenario.ReturningUDR, Node: "one", Prefix: netip.MustParsePrefix("10.99.0.0/16")}, none},
			{scenario.Fault{Type: scenario.SmallMTU, Node: "one"}, none},
		},
		"plugin: azure-bridge": {
			{scenario.Fault{Type: scenario.NSGDrop, Node: "one"}, func(s FlowStats) bool { return withPod(s, "one") }},
			{on(scenario.StaleDNAT), func(s FlowStats) bool { return fromOutsideNode(s) && s.To.Place != outsideName }},
			{on(scenario.StaleARPReply), func(s FlowStats) bool { return all(s) && sameNodePods(s) }},
			// The bridge asks the node's routes and neighbours about what is
			// masqueraded, and about nothing else.
			{on(scenario.WrongNeighbor), func(s FlowStats) bool {
				return s.From.Place == "one" && s.To.Place == "one/a" || s.From.Place == "one/a" && s.To.Place == outsideName
			}},
			{scenario.Fault{Type: scenario.ForwardingOff, Node: "one"}, func(s FlowStats) bool { return node(s.From) == "one" && s.To.Place == outsideName }},
			{on(scenario.PodLinkDown), all},
		},
		// Its gateway is nobody's address: the host's links answer for it.
		"plugin: azure-overlay": {
			{on(scenario.LinkMAC), all},
			{on(scenario.SilentGateway), all},
			{on(scenario.WrongGateway), all},
		},
		"plugin: cilium": {
			{on(scenario.DeletePodRoute), all},
			{on(scenario.LinkMAC), all},
			{on(scenario.WrongGateway), all},
			{on(scenario.SilentGateway), all},
			{on(scenario.PodInterfaceDown), all},
			{on(scenario.WrongNeighbor), all},
			{on(scenario.DropForward), func(s FlowStats) bool { return all(s) && s.From.Place != "one" }},
			{scenario.Fault{Type: scenario.ForwardingOff, Node: "one"}, func(s FlowStats) bool {
				return isPod(s.From) && node(s.From) == "one" || isPod(s.To) && node(s.To) == "one" && s.From.Place != "one"
			}},
			{on(scenario.PodLinkDown), all},
		},
	}
	plain := func(bridged bool) []faultTrial {
		out := []faultTrial{
			// What comes from there has the other node's address.
			{scenario.Fault{Type: scenario.DeleteNodeRoute, Node: "one", Prefix: other}, func(s FlowStats) bool {
				return s.To.Place == "two/x" && node(s.From) == "one"
			}},
			{scenario.Fault{Type: scenario.WrongNodeRoute, Node: "one", Prefix: other, Via: netip.MustParseAddr("10.240.0.99")}, func(s FlowStats) bool {
				return s.To.Place == "two/x" && node(s.From) == "one"
			}},
			{scenario.Fault{Type: scenario.DeleteDefaultRoute, Node: "one"}, func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" }},
			{scenario.Fault{Type: scenario.MissingMasquerade, Node: "one"}, func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" && isPod(s.From) }},
			{on(scenario.PodLinkDown), all},
			{scenario.Fault{Type: scenario.SelfService, Node: "one", Pod: "one/a", Prefix: netip.MustParsePrefix("10.99.0.1/32")}, none},
		}
		if !bridged {
			out = append(out, faultTrial{on(scenario.DeletePodRoute), all}, faultTrial{on(scenario.LinkMAC), all})
		}
		return out
	}
	tests["plugin: bridge"], tests["plugin: ptp"] = plain(true), plain(false)
	tests["plugin: kubenet"] = append(tests["plugin: kubenet"],
		// What comes twice is thrown away.
		faultTrial{scenario.Fault{Type: scenario.DedupFlushed, Node: "one"}, none})
	// What strikes IPv6 leaves IPv4 alone.
	six := func(strikes func(FlowStats) bool) func(FlowStats) bool {
		return func(s FlowStats) bool { return s.To.Addr.Is6() && strikes(s) }
	}
	onIPv6 := func(typ scenario.FaultType, podToo bool) scenario.Fault {
		f := scenario.Fault{Type: typ, Node: "one", Family: 6}
		if podToo {
			f.Pod, f.MAC = pod.Pod, pod.MAC
		}
		return f
	}
	tests["plugin: kubenet, stack: dual"] = []faultTrial{
		{scenario.Fault{Type: scenario.DeleteUDR, Prefix: netip.MustParsePrefix("fd00:10:244::/64")}, six(func(s FlowStats) bool { return withPod(s, "one") })},
		{onIPv6(scenario.MissingMasquerade, false), six(func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" && isPod(s.From) })},
		{onIPv6(scenario.ForwardingOff, false), six(func(s FlowStats) bool { return withPod(s, "one") || s.To.Place == outsideName && node(s.From) == "one" })},
	}
	tests["plugin: azure-overlay, stack: dual"] = []faultTrial{
		{onIPv6(scenario.DeletePodRoute, true), six(all)},
		{onIPv6(scenario.WrongNeighbor, true), six(all)},
		{onIPv6(scenario.DropForward, true), six(func(s FlowStats) bool { return all(s) && s.From.Place != "one" })},
		{scenario.Fault{Type: scenario.BlackholeRoute, Node: "one", Prefix: netip.MustParsePrefix("fd00:10:244:1::/64")}, six(across)},
	}
	tests["plugin: ptp, stack: dual"] = []faultTrial{
		{onIPv6(scenario.DeleteDefaultRoute, false), six(func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" })},
		{scenario.Fault{Type: scenario.DeleteNodeRoute, Node: "one", Prefix: netip.MustParsePrefix("fd00:10:244:1::/64")}, six(func(s FlowStats) bool {
			return s.To.Place == "two/x" && node(s.From) == "one"
		})},
		{onIPv6(scenario.MissingMasquerade, false), six(func(s FlowStats) bool { return s.To.Place == outsideName && node(s.From) == "one" && isPod(s.From) })},
		{on(scenario.PodLinkDown), all},
	}
	for plugin, tests := range tests {
		name := strings.NewReplacer("plugin: ", "", ", stack: ", "-").Replace(plugin)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := up(t, parse(t, fmt.Sprintf(text, strings.ReplaceAll(plugin, ", ", "\n  "))), "faults-"+name)
			trials(t, l, tests)
		})
	}
}
