package scenario

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// FileKind is a command of az whose output lasthop is given.
type FileKind string

// The kinds of files.
const (
	// RoutesFile is that of `az network route-table route list`.
	RoutesFile FileKind = "routes"
	// TablesFile is that of `az network route-table list`.
	TablesFile FileKind = "tables"
	// SubnetFile is that of `az network vnet subnet show`.
	SubnetFile FileKind = "subnet"
	// EffectiveFile is that of `az network nic show-effective-route-table`
	// for the observed node's card.
	EffectiveFile FileKind = "effective"
	// NICsFile is that of `az network nic list`.
	NICsFile FileKind = "nics"
	// GroupsFile is that of `az network nsg list`.
	GroupsFile FileKind = "groups"
	// EffectiveRulesFile is that of `az network nic list-effective-nsg` for the observed node's card.
	EffectiveRulesFile FileKind = "effective-rules"
)

// Files are what lasthop is given besides the node. They are true: what
// a fault breaks in the network is broken in them.
type Files struct {
	Nodes, Pods bool
	Routes      []FileKind
	// Raw is the form in which the resource manager itself answers.
	Raw bool
	// Spare is how many nodes the files know that are not made.
	Spare int
}

// maxSpare bounds the nodes that only the files know; AKS allows 5000.
const maxSpare = 5000

func (r *resolver) files(raw rawFiles) {
	f := &r.s.Files
	f.Nodes, f.Pods, f.Raw, f.Spare = raw.Nodes.v, raw.Pods.v, raw.Raw.v, raw.Spare.v
	for _, k := range raw.Routes {
		if slices.Contains(f.Routes, k.v) {
			r.errorf(k.at, "file %s is named twice", k.v)
		}
		f.Routes = append(f.Routes, k.v)
	}
}

// thing is a JSON object.
type thing = map[string]any

// NodesJSON is what kubectl prints of the nodes.
func (s *Scenario) NodesJSON() ([]byte, error) {
	var items []thing
	add := func(name string, ips []netip.Addr, cidrs []netip.Prefix) {
		spec := thing{}
		if cidrs[0].IsValid() {
			spec = thing{"podCIDR": cidrs[0].String(), "podCIDRs": texts(cidrs)}
		}
		var addresses []thing
		for _, ip := range texts(ips) {
			addresses = append(addresses, thing{"type": "InternalIP", "address": ip})
		}
		items = append(items, thing{
			"apiVersion": "v1", "kind": "Node", "metadata": thing{"name": name}, "spec": spec,
			"status": thing{
				"addresses":  append(addresses, thing{"type": "Hostname", "address": name}),
				"conditions": []thing{{"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}},
			},
		})
	}
	for _, n := range s.Topology.Nodes {
		add(n.Name, []netip.Addr{n.IP, n.IP6}, []netip.Prefix{n.PodCIDR, n.PodCIDR6})
	}
	for i := range s.Files.Spare {
		ip, cidr := spare(i)
		add(fmt.Sprintf("spare-%d", i), []netip.Addr{ip}, []netip.Prefix{cidr})
	}
	return json.MarshalIndent(thing{"apiVersion": "v1", "kind": "List", "items": items}, "", "    ")
}

// PodsJSON is what kubectl prints of the pods that are there.
func (s *Scenario) PodsJSON() ([]byte, error) {
	var items []thing
	for _, n := range s.Topology.Nodes {
		for _, p := range n.Pods {
			var ips []thing
			for _, ip := range texts([]netip.Addr{p.IP, p.IP6}) {
				ips = append(ips, thing{"ip": ip})
			}
			items = append(items, thing{
				"apiVersion": "v1", "kind": "Pod",
				"metadata": thing{"namespace": PodNamespace, "name": p.Name, "labels": thing{"app": p.Name}},
				"spec":     thing{"nodeName": n.Name},
				"status":   thing{"phase": "Running", "podIP": p.IP.String(), "podIPs": ips},
			})
		}
	}
	return json.MarshalIndent(thing{"apiVersion": "v1", "kind": "List", "items": items}, "", "    ")
}

// texts are those of a list that are valid.
func texts[T interface {
	fmt.Stringer
	IsValid() bool
}](list []T) []string {
	var out []string
	for _, x := range list {
		if x.IsValid() {
			out = append(out, x.String())
		}
	}
	return out
}

// spare are the address and pod range of a node that is not made, in the range
// that carriers share, which no lab uses.
func spare(i int) (netip.Addr, netip.Prefix) {
	hi, lo := byte(i>>8), byte(i)
	return netip.AddrFrom4([4]byte{100, 127, hi, lo}), netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64 + hi, lo, 0}), 24)
}

// The ids of the resources.
const (
	azureGroup = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/lab/providers/Microsoft.Network"
	tableID    = azureGroup + "/routeTables/aks-agentpool-routetable"
	subnetID   = azureGroup + "/virtualNetworks/lab-vnet/subnets/aks-subnet"
	// podSubnetID is the subnet that pods have for themselves.
	podSubnetID = azureGroup + "/virtualNetworks/lab-vnet/subnets/aks-pods"
)

// MachineID is the resource ID of a node.
func MachineID(node string) string {
	return strings.TrimSuffix(azureGroup, "Microsoft.Network") + "Microsoft.Compute/virtualMachines/" + node
}

// RoutesJSON is what az prints for one kind of file.
func (s *Scenario) RoutesJSON(k FileKind) ([]byte, error) {
	var v any
	switch k {
	case RoutesFile:
		v = s.azureRoutes()
	case TablesFile:
		table := thing{"disableBgpRoutePropagation": false, "provisioningState": "Succeeded", "routes": s.azureRoutes()}
		if s.associated() {
			table["subnets"] = []thing{{"id": subnetID, "resourceGroup": "lab"}}
		}
		v = []thing{s.resource(tableID, "aks-agentpool-routetable", table)}
	case SubnetFile:
		subnet := thing{"addressPrefix": s.Topology.Subnet.String(), "provisioningState": "Succeeded"}
		if s.associated() {
			subnet["routeTable"] = thing{"id": tableID, "resourceGroup": "lab"}
		}
		if s.faulted(NoOutbound) {
			subnet["defaultOutboundAccess"] = false
		}
		v = s.resource(subnetID, "aks-subnet", subnet)
		if p := s.Topology.PodSubnet; p.IsValid() {
			v = []any{v, s.resource(podSubnetID, "aks-pods", thing{"addressPrefix": p.String(), "provisioningState": "Succeeded"})}
		}
	case EffectiveFile:
		v = thing{"value": s.effectiveRoutes()}
	case NICsFile:
		v = s.azureNICs()
	case GroupsFile:
		v = s.azureGroups()
	case EffectiveRulesFile:
		v = thing{"value": s.effectiveRules(s.Observe)}
	}
	return json.MarshalIndent(v, "", "  ")
}

// resource is an object of Azure in the form that is wanted.
func (s *Scenario) resource(id, name string, properties thing) thing {
	out := properties
	if s.Files.Raw {
		out = thing{"properties": properties}
	}
	out["id"], out["name"] = id, name
	return out
}

// associated reports whether the subnet has the route table: a fault that
// takes all routes away has taken that.
func (s *Scenario) associated() bool { return !slices.Contains(s.Faults, Fault{Type: DeleteUDR}) }

// row is a route of the table as the faults left it.
type row struct {
	name   string
	prefix netip.Prefix
	hop    netip.Addr
}

func (s *Scenario) rows() []row {
	var out []row
	for _, r := range s.Routes {
		via, there := r.Via, true
		for _, f := range s.Faults {
			switch {
			case f.Prefix != r.Prefix:
			case f.Type == DeleteUDR:
				there = false
			case f.Type == WrongUDR:
				via = f.Via
			}
		}
		if !there {
			continue
		}
		name := "route-" + r.Prefix.String()
		for _, n := range s.Topology.Nodes {
			switch r.Prefix {
			case n.PodCIDR:
				name = n.Name
			case n.PodCIDR6:
				// As the provider names those of the second family.
				name = n.Name + "____" + strings.ReplaceAll(strings.ReplaceAll(r.Prefix.String(), ":", ""), "/", "")
			}
		}
		out = append(out, row{name, r.Prefix, via})
	}
	for i := range s.Files.Spare {
		ip, cidr := spare(i)
		out = append(out, row{fmt.Sprintf("spare-%d", i), cidr, ip})
	}
	return out
}

func (s *Scenario) azureRoutes() []thing {
	out := []thing{}
	for _, r := range s.rows() {
		out = append(out, s.resource(tableID+"/routes/"+r.name, r.name, thing{
			"addressPrefix": r.prefix.String(), "nextHopType": "VirtualAppliance", "nextHopIpAddress": r.hop.String(),
			"provisioningState": "Succeeded", "hasBgpOverride": false,
		}))
	}
	return out
}

func (s *Scenario) effectiveRoutes() []thing {
	out := []thing{
		{"addressPrefix": []string{s.Topology.VNet.String()}, "nextHopIpAddress": []string{}, "nextHopType": "VnetLocal", "source": "Default", "state": "Active"},
		{"addressPrefix": []string{"0.0.0.0/0"}, "nextHopIpAddress": []string{}, "nextHopType": "Internet", "source": "Default", "state": "Active"},
		{"addressPrefix": []string{"10.0.0.0/8"}, "nextHopIpAddress": []string{}, "nextHopType": "None", "source": "Default", "state": "Active"},
	}
	if !s.associated() {
		return out
	}
	for _, r := range s.rows() {
		out = append(out, thing{
			"addressPrefix": []string{r.prefix.String()}, "nextHopIpAddress": []string{r.hop.String()},
			"nextHopType": "VirtualAppliance", "source": "User", "state": "Active", "name": r.name,
		})
	}
	return out
}

func (s *Scenario) azureNICs() []thing {
	var out []thing
	for _, n := range s.Topology.Nodes {
		var configs []thing
		config := func(subnet string, properties thing) {
			name := fmt.Sprintf("ipconfig%d", len(configs)+1)
			properties["subnet"] = thing{"id": subnet}
			configs = append(configs, s.resource(azureGroup+"/networkInterfaces/"+n.Name+"-nic/ipConfigurations/"+name, name, properties))
		}
		for _, a := range s.nicAddresses(&n) {
			if s.Topology.PodSubnet.Contains(a.Addr()) {
				config(podSubnetID, thing{"privateIPAddress": a.Addr().String(), "privateIPAddressPrefixLength": a.Bits()})
			} else {
				config(subnetID, thing{"privateIPAddress": a.Addr().String()})
			}
		}
		nic := thing{"ipConfigurations": configs, "virtualMachine": thing{"id": MachineID(n.Name)}}
		if len(s.denied(n.Name)) > 0 {
			nic["networkSecurityGroup"] = thing{"id": groupID(n.Name)}
		}
		nic["enableIPForwarding"] = n.IPForwarding && !slices.Contains(s.Faults, Fault{Type: NICForwardingOff, Node: n.Name})
		out = append(out, s.resource(azureGroup+"/networkInterfaces/"+n.Name+"-nic", n.Name+"-nic", nic))
	}
	return out
}

// blockBits is the length of a block of addresses that a NIC has for pods.
const blockBits = 28

// nicAddresses are the addresses that a node's NIC has, and of pods with a subnet of their own the blocks of theirs.
func (s *Scenario) nicAddresses(n *Node) []netip.Prefix {
	gone := map[netip.Prefix]bool{}
	as := func(a netip.Addr) netip.Prefix {
		p := netip.PrefixFrom(a, a.BitLen())
		if s.Topology.PodSubnet.Contains(a) {
			p = netip.PrefixFrom(a, blockBits).Masked()
		}
		return p
	}
	for _, f := range s.Faults {
		if f.Type == NICAddressGone {
			_, pod := s.Topology.Pod(f.Pod)
			gone[as(pod.IP)] = true
		}
	}
	var out []netip.Prefix
	for _, a := range n.Addresses() {
		if p := as(a); !gone[p] && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// faulted reports whether a fault of a type is made.
func (s *Scenario) faulted(is FaultType) bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Type == is })
}

// groupID is the security group of a node's card.
func groupID(node string) string { return azureGroup + "/networkSecurityGroups/" + node + "-nsg" }

// denied are the rules by which a node's security group does what the faults do, with Azure's own that let everything out.
func (s *Scenario) denied(node string) []thing {
	var out []thing
	for _, f := range s.Faults {
		if f.Type != NSGDrop || f.Node != node {
			continue
		}
		to, ports, protocols := "*", "*", []string{"*"}
		if f.Prefix.IsValid() {
			to = f.Prefix.String()
		}
		if f.Port > 0 {
			ports, protocols = strconv.Itoa(int(f.Port)), []string{"Tcp", "Udp"}
		}
		for _, protocol := range protocols {
			out = append(out, thing{
				"name": fmt.Sprintf("deny-%d", 200+len(out)), "priority": 200 + len(out), "direction": "Outbound", "access": "Deny",
				"protocol": protocol, "sourceAddressPrefixes": s.podSources(node), "sourcePortRange": "*",
				"destinationAddressPrefix": to, "destinationPortRange": ports,
			})
		}
	}
	return out
}

// podSources are the ranges of a node's pods, or their addresses.
func (s *Scenario) podSources(node string) []string {
	n := s.Topology.Node(node)
	if n.PodCIDR.IsValid() {
		return []string{n.PodCIDR.String()}
	}
	var out []string
	for p := range n.AllPods() {
		out = append(out, p.IP.String())
	}
	return out
}

// allowed is Azure's own rule that comes after all others.
var allowed = thing{
	"name": "AllowOutBound", "priority": 65001, "direction": "Outbound", "access": "Allow", "protocol": "*",
	"sourceAddressPrefix": "*", "sourcePortRange": "*", "destinationAddressPrefix": "*", "destinationPortRange": "*",
}

func (s *Scenario) azureGroups() []thing {
	out := []thing{}
	for _, n := range s.Topology.Nodes {
		var rules []thing
		for _, r := range s.denied(n.Name) {
			name := r["name"].(string)
			rules = append(rules, s.resource(groupID(n.Name)+"/securityRules/"+name, name, r))
		}
		if len(rules) > 0 {
			out = append(out, s.resource(groupID(n.Name), n.Name+"-nsg", thing{
				"securityRules": rules, "defaultSecurityRules": []thing{s.resource(groupID(n.Name)+"/defaultSecurityRules/AllowOutBound", "AllowOutBound", maps.Clone(allowed))},
			}))
		}
	}
	return out
}

// effectiveRules are those of a node's card, which have no ids.
func (s *Scenario) effectiveRules(node string) []thing {
	rules := s.denied(node)
	if len(rules) == 0 {
		return []thing{}
	}
	for _, r := range rules {
		r["name"] = "securityRules/" + r["name"].(string)
	}
	own := maps.Clone(allowed)
	own["name"] = "defaultSecurityRules/AllowOutBound"
	return []thing{{
		"networkSecurityGroup":   thing{"id": groupID(node)},
		"association":            thing{"networkInterface": thing{"id": azureGroup + "/networkInterfaces/" + node + "-nic"}},
		"effectiveSecurityRules": append(rules, own),
	}}
}

// PodNamespace is where all pods are said to live.
const PodNamespace = "default"
