// Package scenario is the description of a small cluster, of the traffic in
// it, of what is broken on purpose, and of what lasthop must say about it. It
// is read from YAML and speaks of nodes and pods only, never of how they are
// made: the same file runs in network namespaces and on kind.
//
// Parse fills every default, so that what runs a scenario decides nothing. A
// file needs no more than the names of nodes; all that it can say is:
//
//	name: two-faults           # default: the file's name
//	title: One line
//	description: A paragraph
//	topology:
//	  vnet: 10.240.0.0/16      # the virtual network
//	  subnet: 10.240.0.0/16    # default: all of it
//	  gateway: 10.240.0.1      # default: the subnet's first address
//	  fabricMAC: "12:34:56:78:9a:bc"
//	  edge: 203.0.113.1        # where the internet reaches the network
//	  outside: [203.0.113.10]  # what answers there
//	  podCIDR: 10.244.0.0/16   # nodes take a /24 each, where the plugin has it so
//	  podSubnet: 10.241.0.0/16 # azure-podsubnet's only
//	  stack: dual              # IPv6 beside IPv4, or ipv6: alone; each node has a /64 of podCIDR6
//	  vnet6: fd10:240::/48
//	  podCIDR6: fd00:10:244::/56
//	  plugin: kubenet          # see Plugin; a node's own goes first
//	  nic: eth0                # likewise
//	  switched: true           # an Ethernet switch; default: where all nodes are bridge or ptp
//	  nodes:
//	    - name: a
//	      plugin: kubenet
//	      nic: eth0
//	      nicMAC: "00:0d:3a:00:00:01"
//	      card: bond                # or vlan: the NIC is over another link; the kernel must know such links
//	      ipForwarding: true        # default: where pods are reached by routes
//	      ip: 10.240.0.4
//	      podCIDR: 10.244.0.0/24
//	      bridge: cbr0              # or azure0
//	      bridgeMAC: "0a:58:0a:f4:00:01"
//	      nonMasquerade: [10.0.0.0/8]
//	      secondNIC: true           # what is for kubenet's pods comes in by another card
//	      dockershim: true          # kubenet's older rules; one nonMasquerade range
//	      policy: azure-npm         # what keeps network policies; see Policy
//	      ipMasq: false             # bridge, ptp: ip-masq-agent in place of the plugin's own rules
//	      hairpin: false            # bridge: ports do not send frames back
//	      pods: [web, {name: db, ip: 10.244.0.9, mac: "…", link: veth0}]
//	    - name: b
//	      plugin: cilium
//	      router: 169.254.23.0
//	      datapath: tc              # Cilium's programs; see Datapath
//	      residue: azure-vnet       # the bridge and rules of the plugin before
//	      oldPods:                  # and its pods: gone, or still running
//	        - gone
//	        - {name: still, running: true}
//	      pods: 3                   # pod-1 to pod-3
//	routes:                    # default: one for each podCIDR
//	  - {prefix: 10.244.0.0/24, via: a}
//	traffic:                   # default: some of each kind, in both directions
//	  - {from: [a/web, a/db], to: [b/pod-1, b, outside, 10.1.2.3], proto: [tcp, udp, icmp], port: 8080, rate: 5, size: 1400}
//	  - {from: a/web, to: a/db, proto: udp, port: 8125, oneWay: true} # no answers
//	  - {from: a/web, to: b/pod-1, ports: 4}    # from as many source ports in turn; TCP is reset at the end
//	  - {from: a/web, to: b/pod-1, keep: true}  # one TCP connection, idle after its one request but for keep-alives
//	  - {from: a/web, to: b/pod-1, slow: true}  # answered after most of a second
//	  - {from: a/web, to: b/pod-1, denied: true} # on purpose, and elsewhere: no answer may come
//	duration: 15m              # of the traffic
//	timeout: 5s                # of a request
//	faults:                    # see FaultType and its Doc
//	  - {type: delete-udr, node: a}
//	  - {type: stale-dnat, pod: b/pod-1, mac: "a2:96:88:20:cb:c6"}
//	  - {type: delete-pod-route, pod: b/pod-1, family: 6}
//	  - {type: service, pod: b/pod-1, prefix: 10.0.0.10/32, when: flowing} # once the traffic flows; before: until then
//	observe: a                 # default: the first node, or the first of watch
//	watch: [a, {node: b, clock: -3m, cut: true}] # at the same time; a clock that differs, a recording that is cut off
//	churn: [b/x, b/y]          # pods without traffic that are deleted and made anew meanwhile
//	files:                     # what lasthop is given beside the node
//	  nodes: true              # as kubectl prints them
//	  pods: true               # likewise
//	  routes: [tables, subnet] # as az prints them; see FileKind
//	  raw: true                # in the resource manager's form
//	  spare: 380               # nodes that only the files know
//	active: true               # lasthop may send probes of its own
//	seed: 2                    # other addresses, names and order of all that the file leaves open; default: 0
//	expect:
//	  exit: 1                  # default: 1 with findings, else 0
//	  plugin: kubenet          # what is recognised; default: not looked at
//	  policy: calico           # likewise; "none" wants that nothing is
//	  residue: azure-vnet      # likewise
//	  findings: [{code: MissingUDR, pods: [a/web], peers: [10.244.0.0/24, outside], evidence: [words], title: words of it, fix: words of the first}] # family: 6
//	      # also confidence: proven, and of several that are watched nodes: [a, b]
//	  absent: [StaleARPReply]
//	  alone: {exit: 1, findings: [NoReply], absent: [PolicyDrop]} # of the observed node where several are watched; default: as of all
package scenario

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Scenario is one parsed file. All references in it are resolved.
type Scenario struct {
	Name string
	// File is the name that it was read under.
	File        string
	Title       string
	Description string
	Topology    Topology
	// Routes are the user-defined routes of the subnet's one route table.
	Routes  []Route
	Traffic []Flow
	Faults  []Fault
	// Observe is the node that lasthop watches, Watch are all that are watched at
	// the same time: often that one.
	Observe string
	Watch   []Watched
	// Churn are pods of one node, without traffic, that are deleted and made anew
	// while the traffic runs.
	Churn []string
	// Files are what lasthop is given besides.
	Files Files
	// Active allows it probes of its own.
	Active bool
	// Expect is the verdict on all watched nodes, Alone that on the observed one
	// without the others.
	Expect, Alone Expect
	// Duration bounds the traffic, Timeout how long a request waits for
	// its answer.
	Duration time.Duration
	Timeout  time.Duration
}

// Info is what a list of scenarios shows.
type Info struct {
	Name        string
	Title       string
	Description string
	// Plugins are the network plugins of its nodes, without repetition.
	Plugins []string
}

// AzureVNet is what a Cilium node can have under it: the bridge, rules and
// neighbours of the Azure CNI plugin in bridge mode, which it replaced.
const AzureVNet = "azure-vnet"

// Topology is the virtual network and the machines in it.
type Topology struct {
	// VNet is the virtual network's range, Subnet the nodes' part of it.
	VNet    netip.Prefix
	Subnet  netip.Prefix
	Gateway netip.Addr
	// FabricMAC is the fabric's answer to every ARP request.
	FabricMAC model.MAC
	// Edge is the internet's next hop into the network, and Outside are
	// the addresses that answer beyond it.
	Edge    netip.Addr
	Outside []netip.Addr
	// PodCIDR is the range from which nodes have theirs.
	PodCIDR netip.Prefix
	// PodSubnet is the part of the virtual network that the pods of
	// azure-podsubnet nodes have; not valid where there is none.
	PodSubnet netip.Prefix
	// Switched is true where an Ethernet switch connects the nodes and a
	// router at Gateway, in place of the fabric of a cloud: the machine that has
	// an address answers for it, and the router does not know the pods.
	Switched bool
	// Overlay is the VXLAN link of each node that carries what is for other nodes' pods;
	// empty where the network does.
	Overlay string
	// IPv6 is the IPv6 half; nil where there is none.
	IPv6  *Half
	Nodes []Node
}

// Node is one machine.
type Node struct {
	Name   string
	Plugin Plugin
	// NIC is the name of its network card and MAC the card's address.
	NIC string
	MAC model.MAC
	// Card is how the network card is made, empty for a link of its own.
	Card Card
	// Second is the node's second network card; without a name where it has none.
	Second SecondNIC
	// IPForwarding is the card's setting in the fabric: whether it may
	// receive and send packets of other addresses.
	IPForwarding bool
	IP, IP6      netip.Addr
	// PodCIDR is the range of the node's pods; not valid where the plugin
	// gives them addresses of the virtual network.
	PodCIDR, PodCIDR6 netip.Prefix
	// Bridge is cbr0, azure0 or cni0; empty when the node has none. BridgeMAC
	// is set for kubenet, which pins it.
	Bridge    string
	BridgeMAC model.MAC
	// Dockershim is true for a kubenet node as it was before containerd: the
	// kubelet wrote its rules.
	Dockershim bool
	// IPMasq is true where the CNI plugin masquerades each pod by rules of
	// its own. Hairpin is the flag of its bridge's ports.
	IPMasq, Hairpin bool
	// Router is the address of a Cilium node's cilium_host.
	Router, Router6 netip.Addr
	// NonMasquerade are the destinations that pods reach with their own
	// address.
	NonMasquerade, NonMasquerade6 []netip.Prefix
	Pods                          []Pod
	// Datapath is how the programs of a Cilium node are attached, empty for
	// a node without any.
	Datapath Datapath
	// Policy is the program that keeps network policies besides the plugin.
	Policy Policy
	// Residue is AzureVNet or empty. OldPods are the pods of that plugin:
	// gone, with their rules and neighbours left, or still running.
	Residue string
	OldPods []Pod
}

// SecondNIC is a network card in a network of its own, without a default route. What
// is for the node's pods arrives by it, and what they send leaves by the first.
type SecondNIC struct {
	Name string
	MAC  model.MAC
	// IP is its address in its network, of which Gateway is the fabric's.
	IP      netip.Prefix
	Gateway netip.Prefix
}

// Pod is one pod of a node.
type Pod struct {
	Name string
	// IP6 is not valid where there is no IPv6.
	IP, IP6 netip.Addr
	MAC     model.MAC
	// Link is the name of the host side of its link; a CNI plugin chooses
	// another, and it or the kernel the MAC.
	Link string
	// Bridged pods hang on the node's bridge, the others are routed.
	Bridged bool
	// Gone pods exist no more; what was set up for them does.
	Gone bool
}

// Route is one user-defined route: the fabric sends Prefix to the network
// card that holds Via, or loses it where none does.
type Route struct {
	Prefix netip.Prefix
	Via    netip.Addr
}

// Proto is a flow's protocol.
type Proto string

// The protocols of flows.
const (
	TCP  Proto = "tcp"
	UDP  Proto = "udp"
	ICMP Proto = "icmp"
)

// OutsideName is the reference to the machines beyond the edge.
const OutsideName = "outside"

// Endpoint is one end of a flow.
type Endpoint struct {
	// Place is "node", "node/pod" or "outside"; empty where no machine has
	// the address.
	Place string
	Addr  netip.Addr
}

// String is the place, or the address where there is none.
func (e Endpoint) String() string {
	if e.Place == "" {
		return e.Addr.String()
	}
	return e.Place
}

// Flow is a request repeated at a rate, each time from a new port.
type Flow struct {
	From, To Endpoint
	Proto    Proto
	// Port is the destination's, 0 for ICMP.
	Port uint16
	// Rate is in requests per second.
	Rate float64
	// Size is what a request holds at least, in bytes.
	Size int
	// OneWay requests want no answer, as statsd's datagrams do.
	OneWay bool `json:",omitempty"`
	// Denied requests must not be answered: somebody far away drops them on
	// purpose.
	Denied bool `json:",omitempty"`
	// Slow requests are answered late, though well within the Timeout.
	Slow bool `json:",omitempty"`
	// Keep is one TCP connection that carries a single request, and keep-alives.
	Keep bool `json:",omitempty"`
	// Ports is how many source ports take turns; 0: the kernel chooses.
	Ports int `json:",omitempty"`
}

// String names the flow, as "a/web > b/db tcp/8080".
func (f Flow) String() string {
	s := fmt.Sprintf("%s > %s %s", f.From, f.To, f.Proto)
	if f.To.Addr.Is6() {
		s += "6"
	}
	if f.Port != 0 {
		s += fmt.Sprintf("/%d", f.Port)
	}
	return s
}

// Node returns the named node, nil when there is none.
func (t *Topology) Node(name string) *Node {
	i := slices.IndexFunc(t.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Nodes[i]
}

// Pod returns the node and the pod that "node/pod" names, nil when there is
// none. Pods that are gone are found too.
func (t *Topology) Pod(ref string) (*Node, *Pod) {
	name, pod, _ := strings.Cut(ref, "/")
	n := t.Node(name)
	if n == nil {
		return nil, nil
	}
	for p := range n.AllPods() {
		if p.Name == pod {
			return n, p
		}
	}
	return nil, nil
}

// AllPods are the node's pods and the old ones.
func (n *Node) AllPods() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for _, pods := range [][]Pod{n.Pods, n.OldPods} {
			for i := range pods {
				if !yield(&pods[i]) {
					return
				}
			}
		}
	}
}

// Bits is the length of the subnet's prefix, which nodes and bridged pods
// take as their on-link range.
func (t *Topology) Bits() int { return t.Subnet.Bits() }

// Place is the machine that has the address: a node, a pod that is there, the outside;
// "" when there is none.
func (t *Topology) Place(a netip.Addr) string {
	if v6 := t.V6(); v6 != nil && v6 != t && a.Is6() {
		return v6.Place(a)
	}
	if slices.Contains(t.Outside, a) {
		return OutsideName
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if n.IP == a || n.PodGateway() == a || n.Router == a && a.IsValid() && !a.IsLinkLocalUnicast() {
			return n.Name
		}
		for p := range n.AllPods() {
			if p.IP == a && !p.Gone {
				return n.Name + "/" + p.Name
			}
		}
	}
	return ""
}

// Resolve finds what a reference means: "node/pod", "node", "outside" or an
// address.
func (t *Topology) Resolve(ref string) (Endpoint, error) {
	if ref == OutsideName && len(t.Outside) > 0 {
		return Endpoint{Place: OutsideName, Addr: t.Outside[0]}, nil
	}
	if a, err := netip.ParseAddr(ref); err == nil {
		return Endpoint{Place: t.Place(a), Addr: a}, nil
	}
	if strings.Contains(ref, "/") {
		if _, p := t.Pod(ref); p != nil {
			e := Endpoint{Place: ref, Addr: p.IP}
			if p.Gone {
				e.Place = ""
			}
			return e, nil
		}
		return Endpoint{}, fmt.Errorf("resolve %q: no such pod", ref)
	}
	if n := t.Node(ref); n != nil {
		return Endpoint{Place: ref, Addr: n.IP}, nil
	}
	return Endpoint{}, fmt.Errorf("resolve %q: want node/pod, node, outside or an address", ref)
}

// PodGateway is the node's address that its pods have for their gateway: the
// bridge's of kubenet, that of every pod's link of kindnet; invalid on others.
func (n *Node) PodGateway() netip.Addr {
	if !pluginTraits[n.Plugin].gateway {
		return netip.Addr{}
	}
	return n.PodCIDR.Masked().Addr().Next()
}

// Info sums the scenario up.
func (s *Scenario) Info() Info {
	info := Info{Name: s.Name, Title: s.Title, Description: s.Description}
	for _, n := range s.Topology.Nodes {
		if !slices.Contains(info.Plugins, string(n.Plugin)) {
			info.Plugins = append(info.Plugins, string(n.Plugin))
		}
	}
	return info
}
