package scenario

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
)

// Cluster is what a cluster of kind has in place of the network that a file
// describes or leaves open.
type Cluster struct {
	// Subnet is the network of the nodes, and Gateway the router on it.
	Subnet  netip.Prefix
	Gateway netip.Addr
	// PodCIDR is the range from which nodes have theirs.
	PodCIDR netip.Prefix
	// Nodes are by the scenario's names, Pods by "node/pod".
	Nodes map[string]ClusterNode
	Pods  map[string]ClusterPod
}

// ClusterNode is one of its nodes.
type ClusterNode struct {
	// NIC is the name of the network card that has the address IP.
	NIC     string
	MAC     model.MAC
	IP      netip.Addr
	PodCIDR netip.Prefix
}

// ClusterPod is one of its pods, Link the host side of its link.
type ClusterPod struct {
	Link string
	MAC  model.MAC
	IP   netip.Addr
}

// stand is a cluster of kind for the scenario before there is one: its addresses are
// those of the file.
func (s *Scenario) stand() *Cluster {
	c := &Cluster{Subnet: s.Topology.Subnet, Gateway: s.Topology.Gateway, PodCIDR: s.Topology.PodCIDR, Nodes: map[string]ClusterNode{}, Pods: map[string]ClusterPod{}}
	for i, n := range s.Topology.Nodes {
		p := n.PodCIDR
		if !p.IsValid() && c.PodCIDR.Addr().Is4() {
			p = netip.PrefixFrom(nth4(c.PodCIDR, uint32(i)<<8), 24)
		}
		c.Nodes[n.Name] = ClusterNode{NIC: n.NIC, MAC: n.MAC, IP: n.IP, PodCIDR: p}
	}
	return c
}

// ParseOnKind reads a scenario as one of a cluster of kind: all nodes have the
// plugin kindnet on an Ethernet switch. Without a cluster the addresses are the
// file's own. The error is an Errors; it also has what no cluster of kind can have,
// and what would not stay broken there.
func ParseOnKind(file string, data []byte, c *Cluster) (*Scenario, error) {
	s, err := Parse(file, data)
	if err != nil {
		return nil, err
	}
	if c == nil {
		c = s.stand()
	}
	return parse(file, data, func(d *decoder, r *rawScenario) {
		k := &onKind{decoder: d, file: s, cluster: c}
		k.refuse(r)
		k.place(r)
	})
}

// onKind changes what a file says to what is so on a cluster of kind.
type onKind struct {
	*decoder
	// file is the scenario as the file has it.
	file    *Scenario
	cluster *Cluster
}

// The programs of a cluster of kind that keep what they made as it is.
const (
	restoredRoute = "kindnetd recreates the route within ten seconds"
	restoredRules = "kindnetd recreates the rules within a minute"
	proxysOwn     = "kube-proxy removes what others add to its chains"
	noCloud       = "the fault is one of a cloud's network, and a cluster of kind has none"
)

// kindServices are the addresses of services that kind gives a cluster.
var kindServices = netip.MustParsePrefix("10.96.0.0/16")

// keptOnKind are the faults that no cluster of kind can have, or keeps, and why.
var keptOnKind = map[FaultType]string{
	DeleteUDR: noCloud, WrongUDR: noCloud, ReturningUDR: noCloud, NICForwardingOff: noCloud, NSGDrop: noCloud,
	NoReturn: noCloud, NoOutbound: noCloud, NICAddressGone: noCloud, SilentFabric: noCloud, FabricMTU: noCloud,
	DeleteNodeRoute: restoredRoute, WrongNodeRoute: restoredRoute, MasqueradeAll: restoredRules,
	Service: proxysOwn, ServiceUntranslated: proxysOwn, ServiceByMaps: proxysOwn, ServiceEndpointless: proxysOwn, ServiceRetired: proxysOwn,
	DeafServer:    "connection tracking is on there, and tells more than the scenario expects",
	PodResolver:   "pods have that of their cluster",
	Networkd:      "nodes are containers, whose links nothing else manages",
	ConntrackFull: "it would isolate the node from its cluster",
}

// nobodys are ranges that no host has (RFC 5737, RFC 2544).
var nobodys = []netip.Prefix{
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
}

// refuse reports what the file wants and no cluster of kind has.
func (k *onKind) refuse(r *rawScenario) {
	no := func(at *yaml.Node, why string) {
		if at != nil {
			k.errorf(at, "not on kind: %s", why)
		}
	}
	t := &r.Topology
	for _, a := range append([]value[netip.Addr]{t.Edge}, t.Outside...) {
		if a.at != nil && !slices.ContainsFunc(nobodys, func(p netip.Prefix) bool { return p.Contains(a.v) }) {
			no(a.at, fmt.Sprintf("this machine gets a route to %s, which somebody may have: take one of %s", a.v, nobodys[0]))
		}
	}
	if t.Stack.v != IPv4 {
		no(t.Stack.at, "labs on kind have IPv4 alone")
	}
	no(t.PodSubnet.at, "pods have addresses of their node's range")
	no(r.Routes.at, noCloud)
	for _, f := range r.Files.Routes {
		no(f.at, "there is no cloud to ask for its routes")
	}
	no(r.Files.Spare.at, "the cluster has the nodes that it has")
	for _, c := range r.Churn {
		no(c.at, "pods stay as they are")
	}
	for _, w := range r.Watch.v {
		no(w.Clock.at, "all nodes have one clock")
	}
	if r.Expect.Plugin.set() && r.Expect.Plugin.v != string(Kindnet) {
		no(r.Expect.Plugin.at, "the verdict is about "+r.Expect.Plugin.v+", and the plugin there is kindnet")
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		for _, f := range []*yaml.Node{n.Card.at, n.SecondNIC.at, n.Dockershim.at, n.IPMasq.at, n.Hairpin.at, n.Bridge.at, n.BridgeMAC.at, n.Router.at,
			n.NonMasquerade.at, n.Residue.at, n.Datapath.at, n.Policy.at, n.IPForwarding.at} {
			no(f, "a node is there as kind makes it")
		}
		for _, p := range n.OldPods {
			no(p.at, "there was no plugin before")
		}
	}
	for _, f := range r.Faults {
		if why := keptOnKind[f.Type.v]; why != "" {
			no(f.at, fmt.Sprintf("fault %s: %s", f.Type.v, why))
		}
		if f.Type.v == MissingMasquerade && !f.Exclude.set() {
			no(f.at, fmt.Sprintf("fault %s: %s; with exclude it stays", f.Type.v, restoredRules))
		}
		for _, n := range k.file.Topology.Nodes {
			if f.Type.v == BlackholeRoute && n.PodCIDR == f.Prefix.v {
				no(f.at, fmt.Sprintf("fault %s: kindnetd removes other routes to a node's range within ten seconds", f.Type.v))
			}
		}
	}
}

// place puts the scenario on the cluster.
func (k *onKind) place(r *rawScenario) {
	t, c := &r.Topology, k.cluster
	r.Seed = value[int]{}
	at := t.at
	t.VNet, t.Subnet, t.Gateway = value[netip.Prefix]{c.Subnet, at}, value[netip.Prefix]{c.Subnet, at}, value[netip.Addr]{c.Gateway, at}
	t.PodCIDR = value[netip.Prefix]{c.PodCIDR, at}
	t.Plugin, t.Switched = value[Plugin]{Kindnet, at}, value[bool]{true, at}
	t.FabricMAC = value[model.MAC]{}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		own, at := c.Nodes[n.Name.v], n.at
		n.Plugin, n.NIC = value[Plugin]{Kindnet, at}, value[string]{own.NIC, at}
		n.IP, n.NICMAC, n.PodCIDR = value[netip.Addr]{own.IP, at}, value[model.MAC]{own.MAC, at}, value[netip.Prefix]{own.PodCIDR, at}
		for j := range n.Pods {
			p := &n.Pods[j]
			p.IP, p.MAC, p.Link = value[netip.Addr]{}, value[model.MAC]{}, value[string]{}
			if own, ok := c.Pods[n.Name.v+"/"+p.Name.v]; ok {
				at := p.at
				p.IP, p.MAC, p.Link = value[netip.Addr]{own.IP, at}, value[model.MAC]{own.MAC, at}, value[string]{own.Link, at}
			}
		}
	}
	names := k.renames()
	for _, ref := range references(r) {
		if a, err := netip.ParseAddr(ref.v); err == nil {
			ref.v = names.address(a).String()
		} else if p, err := netip.ParsePrefix(ref.v); err == nil {
			ref.v = names.prefix(p).String()
		}
	}
	names.words(r)
	for i := range r.Faults {
		for _, p := range []*value[netip.Prefix]{&r.Faults[i].Prefix, &r.Faults[i].Exclude} {
			if p.set() {
				k.rename(p, names)
			}
		}
	}
}

// rename changes the range of a fault.
func (k *onKind) rename(p *value[netip.Prefix], names *renames) {
	was := &k.file.Topology
	switch now := names.prefix(p.v); {
	case now != p.v || p.v.Bits() == 0: // everybody is the same
		p.v = now
	case kindServices.Overlaps(p.v):
		k.errorf(p.at, "not on kind: %s is an address of the cluster's own services", p.v)
	case !p.v.IsSingleIP() && names.prefixes[p.v] != p.v && (p.v.Overlaps(was.VNet) || p.v.Overlaps(was.PodCIDR)):
		k.errorf(p.at, "not on kind: prefix %s is a part of the file's network, or holds it", p.v)
	}
}

// renames lead from what the file means to what the cluster has.
type renames struct {
	addresses map[netip.Addr]netip.Addr
	prefixes  map[netip.Prefix]netip.Prefix
	// ranges are the prefixes, in which addresses that nobody has keep their place.
	// The longest are first.
	ranges []netip.Prefix
}

func (k *onKind) renames() *renames {
	was, c := &k.file.Topology, k.cluster
	r := &renames{addresses: map[netip.Addr]netip.Addr{was.Gateway: c.Gateway}, prefixes: map[netip.Prefix]netip.Prefix{}}
	within := func(from, to netip.Prefix) {
		if from.IsValid() && to.IsValid() {
			r.prefixes[from] = to
			r.ranges = append(r.ranges, from)
		}
	}
	for i := range was.Nodes {
		n := &was.Nodes[i]
		now := c.Nodes[n.Name]
		r.addresses[n.IP] = now.IP
		within(n.PodCIDR, now.PodCIDR)
		if n.PodGateway().IsValid() {
			r.addresses[n.PodGateway()] = now.PodCIDR.Masked().Addr().Next()
		}
		for p := range n.AllPods() {
			r.addresses[p.IP] = c.Pods[n.Name+"/"+p.Name].IP
		}
	}
	within(was.PodCIDR, c.PodCIDR)
	within(was.Subnet, c.Subnet)
	within(was.VNet, c.Subnet)
	return r
}

// address is what an address is called on the cluster.
func (r *renames) address(a netip.Addr) netip.Addr {
	if now := r.addresses[a]; now.IsValid() || !a.Is4() {
		return cmp.Or(now, a)
	}
	for _, p := range r.ranges {
		if to := r.prefixes[p]; p.Contains(a) {
			return nth4(to.Masked(), index4(p.Masked(), a)&(1<<(32-to.Bits())-1))
		}
	}
	return a
}

// prefix is what a range is called there.
func (r *renames) prefix(p netip.Prefix) netip.Prefix {
	if now := r.prefixes[p]; now.IsValid() {
		return now
	}
	if p.IsSingleIP() {
		return netip.PrefixFrom(r.address(p.Addr()), p.Bits())
	}
	return p
}

// words has what is expected of texts speak of the cluster's addresses.
func (r *renames) words(raw *rawScenario) {
	change := func(s *value[string]) {
		s.v = addressPattern.ReplaceAllStringFunc(s.v, func(word string) string {
			if a, err := netip.ParseAddr(word); err == nil {
				return r.address(a).String()
			}
			return word
		})
	}
	for _, findings := range [][]rawFinding{raw.Expect.Findings, raw.Expect.Alone.v.Findings} {
		for i := range findings {
			f := &findings[i]
			change(&f.Title)
			change(&f.Fix)
			for j := range f.Evidence {
				change(&f.Evidence[j])
			}
		}
	}
}

var addressPattern = regexp.MustCompile(`\d+(\.\d+){3}`)

// references are all texts of a file that may refer to somebody by an address.
func references(r *rawScenario) []*value[string] {
	var out []*value[string]
	all := func(lists ...[]value[string]) {
		for _, list := range lists {
			for i := range list {
				out = append(out, &list[i])
			}
		}
	}
	for i := range r.Traffic.v {
		all(r.Traffic.v[i].From, r.Traffic.v[i].To)
	}
	for i := range r.Faults {
		out = append(out, &r.Faults[i].Via)
	}
	for _, findings := range [][]rawFinding{r.Expect.Findings, r.Expect.Alone.v.Findings} {
		for i := range findings {
			all(findings[i].Pods, findings[i].Peers)
		}
	}
	return out
}
