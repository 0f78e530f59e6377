package scenario

import "slices"

// The faults of a node's own routing.
const (
	// BlackholeRoute makes Node throw away what it routes to Prefix.
	BlackholeRoute FaultType = "blackhole-route"
	// AsymmetricRoute leads Prefix to the bridge of Node's pods, though its
	// packets arrive by the network card.
	AsymmetricRoute FaultType = "asymmetric-route"
	// ReturningUDR makes the fabric send Prefix, which nobody has, to Node,
	// whose reverse path filter is off and which sends it back.
	ReturningUDR FaultType = "returning-udr"
	// DeleteNodeRoute deletes Node's route to the pods of the node that has
	// Prefix.
	DeleteNodeRoute FaultType = "delete-node-route"
	// DeleteDefaultRoute deletes Node's default route.
	DeleteDefaultRoute FaultType = "delete-default-route"
	// SmallMTU gives Node's network card an MTU of 1280, and loses the ICMP
	// errors that would tell senders.
	SmallMTU FaultType = "small-mtu"
)

// faultNode checks that a fault of routing can strike the node.
func (r *resolver) faultNode(f *Fault, raw rawFault) bool {
	n := r.s.Topology.Node(f.Node)
	if f.Type == AsymmetricRoute && n.Plugin != Kubenet {
		r.errorf(raw.node.at, "node %q has no bridge beside its network card", f.Node)
		return false
	}
	if f.Type == DeleteNodeRoute {
		if !n.Plugin.NodeRoutes() {
			r.errorf(raw.node.at, "node %q is %s and has no routes to other nodes' pods", f.Node, n.Plugin)
			return false
		}
		if !slices.ContainsFunc(r.s.Topology.Nodes, func(o Node) bool {
			return o.Name != n.Name && (o.PodCIDR == raw.prefix.v || o.PodCIDR6 == raw.prefix.v)
		}) {
			r.errorf(raw.prefix.at, "no other node has podCIDR %s", raw.prefix.v)
			return false
		}
	}
	if raw.prefix.set() {
		f.Prefix = raw.prefix.v
	}
	return true
}
