package node

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// Told reports whether anything was read of the cloud: files, or what Azure may tell. What is missing of it is not there.
func (v *Index) Told() bool {
	status := v.Status(model.SourceCloud)
	return status == model.OK || status == model.Partial
}

// SecurityPacket is a packet as the cloud's network gets it. The zero protocol is any.
type SecurityPacket struct {
	Src, Dst         netip.Addr
	Proto            uint8
	SrcPort, DstPort uint16
}

// Ruling is what security groups make of a packet: Rule of Group denies it on its way out of NIC, or into it. Effective is that
// Azure says which rules apply there.
type Ruling struct {
	Rule      *model.SecurityRule
	Group     *model.SecurityGroup
	NIC       *model.NIC
	Effective bool
	Outbound  bool
}

// decision is what is known of a rule's or group's say.
type decision int

const (
	undecided decision = iota
	no
	yes
)

// Ruled is the rule that denies a packet between two machines of the cloud, if one surely does; nil where none does. allowed is that
// surely none does.
func (v *Index) Ruled(p SecurityPacket) (denied *Ruling, allowed bool) {
	allowed = true
	for _, outbound := range []bool{true, false} {
		groups, nic, effective, known := v.groupsAt(model.Either(outbound, p.Src, p.Dst))
		if !outbound && !known && model.Public(p.Dst) {
			known = true // beyond the cloud's network
		}
		for _, g := range groups {
			switch rule, d := v.decide(g, p, outbound); {
			case d == yes && rule.Deny:
				return &Ruling{rule, g, nic, effective, outbound}, false
			case d != yes:
				known = false
			}
		}
		allowed = allowed && known
	}
	return nil, allowed
}

// Permitted reports whether surely no security group denies what goes from some addresses to others.
func (v *Index) Permitted(from AddrSet, to []netip.Addr) bool {
	for _, src := range Sorted(from) {
		for _, dst := range to {
			packets := []SecurityPacket{{Src: src, Dst: dst}}
			if st := v.FlowStates[Pair{Local: src, Remote: dst}]; st != nil && len(st.Silent) > 0 {
				packets = model.Map(st.Silent, LeavesAs)
			}
			for _, p := range packets {
				if _, allowed := v.Ruled(p); !allowed {
					return false
				}
			}
		}
	}
	return v.Told() && len(from) > 0
}

// LeavesAs is a flow's first packet as it leaves the node.
func LeavesAs(f *model.Flow) SecurityPacket {
	return SecurityPacket{Src: f.Reply.Dst, Dst: f.Reply.Src, Proto: f.Proto, SrcPort: f.Reply.DstPort, DstPort: f.Reply.SrcPort}
}

// groupsAt are the security groups that apply to the NIC by which an address is reached. Without known there may be others.
func (v *Index) groupsAt(a netip.Addr) (groups []*model.SecurityGroup, nic *model.NIC, effective, known bool) {
	cloud, machine := &v.Cluster.Azure, v.machineOf(a)
	if nic = model.First(cloud.NICs, func(n *model.NIC) bool { return n.Has(a) }); nic == nil && machine != nil {
		nic = model.First(cloud.NICs, func(n *model.NIC) bool {
			return slices.ContainsFunc(n.Addresses, func(x netip.Addr) bool { return slices.Contains(machine.Addresses, x) })
		})
	}
	for e := range model.Each(cloud.Rules) {
		if nic != nil && model.SameResource(e.NIC, nic.ID) || e.NIC == "" && machine != nil && machine == v.Self() {
			return slices.Collect(model.Each(e.Groups)), nic, true, true
		}
	}
	var ids []string
	subnet := model.First(cloud.Subnets, func(s *model.Subnet) bool { return model.InAny(s.Prefixes, a) })
	if subnet == nil && machine != nil {
		subnet, _ = subnetOf(v, machine)
	}
	if nic != nil {
		ids = append(ids, nic.SecurityGroup)
	}
	if subnet != nil {
		ids = append(ids, subnet.SecurityGroup)
	}
	known = nic != nil && subnet != nil
	for _, id := range ids {
		g := model.First(cloud.Groups, func(g *model.SecurityGroup) bool { return model.SameResource(g.ID, id) })
		if g != nil {
			groups = append(groups, g)
		}
		known = known && (g != nil || id == "")
	}
	return groups, nic, false, known
}

// machineOf is the node that has an address, or whose pod has it; nil where it is not known.
func (v *Index) machineOf(a netip.Addr) *model.ClusterNode {
	if v.Own[a] != nil || len(v.Owners[a]) > 0 {
		return v.Self()
	}
	if n := model.First(v.Cluster.Nodes, func(n *model.ClusterNode) bool { return slices.Contains(n.Addresses, a) }); n != nil {
		return n
	}
	if cidr := v.Remote(a); cidr.IsValid() {
		return v.NodeOf(cidr)
	}
	return nil
}

// decide is the rule of a group that decides about a packet: the first that matches. It is undecided where one before may match.
func (v *Index) decide(g *model.SecurityGroup, p SecurityPacket, outbound bool) (*model.SecurityRule, decision) {
	for r := range model.Each(g.Rules) {
		if r.Outbound != outbound {
			continue
		}
		switch v.ruleMatches(r, p) {
		case yes:
			return r, yes
		case undecided:
			return nil, undecided
		}
	}
	return nil, undecided
}

func (v *Index) ruleMatches(r *model.SecurityRule, p SecurityPacket) decision {
	from, to := v.endMatches(&r.From, p.Src), v.endMatches(&r.To, p.Dst)
	if from == no || to == no {
		return no
	}
	out := min(from, to)
	ported := len(r.From.Ports)+len(r.To.Ports) > 0
	switch {
	case p.Proto == 0:
		return model.Either(r.Protocol == 0 && !ported, out, undecided)
	case r.Protocol != 0 && r.Protocol != p.Proto:
		return no
	case ported && (p.Proto != model.TCP && p.Proto != model.UDP || !inPorts(r.From.Ports, p.SrcPort) || !inPorts(r.To.Ports, p.DstPort)):
		return no
	}
	return out
}

func inPorts(list []model.PortRange, port uint16) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(r model.PortRange) bool { return r.Has(port) })
}

func (v *Index) endMatches(e *model.SecurityEnd, a netip.Addr) decision {
	if model.InAny(e.Prefixes, a) {
		return yes
	}
	out := no
	for _, name := range e.Names {
		switch v.tagged(name, a) {
		case yes:
			return yes
		case undecided:
			out = undecided
		}
	}
	return out
}

// azurePlatform is from where Azure's load balancer asks machines for their health.
var azurePlatform = netip.AddrFrom4([4]byte{168, 63, 129, 16})

// tagged reports whether a service tag has an address, as far as that follows from what was read: VirtualNetwork also has what
// user-defined routes lead to.
func (v *Index) tagged(name string, a netip.Addr) decision {
	a4 := a.Unmap()
	within := model.InAny(v.OnLink, a4) || v.OfSubnet(a4) || v.ByUDR(a4)
	switch name {
	case "AzureLoadBalancer":
		return model.Either(a4 == azurePlatform, yes, no)
	case "VirtualNetwork", "Internet":
		inside := name == "VirtualNetwork"
		switch {
		case within:
			return model.Either(inside, yes, no)
		case model.Public(a4):
			return model.Either(inside, no, yes)
		}
	}
	return undecided
}

// OfSubnet reports whether an address is of a subnet that was read.
func (v *Index) OfSubnet(a netip.Addr) bool {
	return slices.ContainsFunc(v.Cluster.Azure.Subnets, func(s model.Subnet) bool { return model.InAny(s.Prefixes, a) })
}

// ByUDR reports whether a user-defined route leads to an address.
func (v *Index) ByUDR(a netip.Addr) bool {
	return slices.ContainsFunc(v.Cluster.Azure.Tables, func(t model.RouteTable) bool {
		return slices.ContainsFunc(t.Routes, func(r model.UDR) bool {
			return slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return p.Bits() > 0 && p.Contains(a) })
		})
	})
}

// FreePriority is the number of a rule that would come before another one of its group and direction, 0 where all are taken.
func FreePriority(g *model.SecurityGroup, before *model.SecurityRule) int {
	const first, last = 100, 4096 // those that Azure allows
	for n := min(before.Priority-1, last); n >= first; n-- {
		if !slices.ContainsFunc(g.Rules, func(r model.SecurityRule) bool { return r.Outbound == before.Outbound && r.Priority == n }) {
			return n
		}
	}
	return 0
}
