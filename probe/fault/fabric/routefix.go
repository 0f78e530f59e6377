package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// rangeRow is the row that leads to another node's pods.
func rangeRow(v *node.Index, cidr netip.Prefix, t *model.RouteTable) model.Row {
	name, hop := unknownNode, node.NodeIP
	if n := v.NodeOf(cidr); n != nil {
		name, hop = n.Name, nextHop(n, cidr)
	}
	return v.Row(t, name, cidr, hop)
}

// nextHop is the node's address that a route to its pods needs.
func nextHop(n *model.ClusterNode, cidr netip.Prefix) string {
	if list := node.SameFamily(node.Internal(n), cidr.Addr()); len(list) > 0 {
		return list[0].String()
	}
	return node.NodeIP
}

// unknownNode stands for its name.
const unknownNode = "NODE"

// ownRows are the rows that lead to this node's own pods, of the IP versions of the silent ranges.
func ownRows(v *node.Index, silent []*node.RemoteRange, t *model.RouteTable) []model.Row {
	meant := model.Filter(v.Ranges.Local, func(p netip.Prefix) bool {
		return slices.ContainsFunc(silent, func(r *node.RemoteRange) bool { return r.Six() == p.Addr().Is6() })
	})
	return model.Flat(meant, func(p netip.Prefix) []model.Row { return []model.Row{v.Row(t, v.Node.Name, p, OwnHop(v, p))} })
}

// OwnHop is this node's address that a route to its pods needs: the one that the nodes file has, or else the
// one that the default route sends with. THIS_NODE_IP stands for one of several.
func OwnHop(v *node.Index, cidr netip.Prefix) string {
	if n := v.Self(); slices.ContainsFunc(v.Cluster.Nodes, func(c model.ClusterNode) bool { return c.Name == n.Name }) {
		if hop := nextHop(n, cidr); hop != node.NodeIP {
			return hop
		}
	}
	byDefault := v.DefaultRoute(cidr.Addr().Is6())
	if byDefault.Src.IsValid() {
		return byDefault.Src.String()
	}
	var all, here []netip.Addr
	for _, l := range v.Links {
		for _, a := range l.Addresses {
			if !a.Addr().IsGlobalUnicast() || !model.InAny(v.OnLink, a.Addr()) || a.Addr().Is4() != cidr.Addr().Is4() {
				continue
			}
			if all = append(all, a.Addr()); l.Index == byDefault.IfIndex {
				here = append(here, a.Addr())
			}
			if l.Index == byDefault.IfIndex && a.Contains(byDefault.Gateway) {
				// The kernel lists the one first that it sends with.
				return a.Addr().String()
			}
		}
	}
	for _, list := range [][]netip.Addr{here, all} {
		if len(list) == 1 {
			return list[0].String()
		}
	}
	return "THIS_NODE_IP"
}

// AddRows has the fix of a finding add rows.
func AddRows(f *model.Finding, rows ...model.Row) { f.Rows = model.With(f.Rows, rows...) }
