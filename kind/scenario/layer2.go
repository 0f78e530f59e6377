package scenario

// The faults of links, neighbours and bridges.
const (
	// LinkMAC gives the host side of a routed Pod's link the address MAC,
	// while the pod keeps the former one for its gateway.
	LinkMAC FaultType = "link-mac"
	// WrongGateway pins Pod's neighbour entry for its gateway to MAC.
	WrongGateway FaultType = "wrong-gateway"
	// StaleBridgeNeighbor leaves a neighbour entry for a routed Pod on the
	// node's bridge, as the plugin before made it.
	StaleBridgeNeighbor FaultType = "stale-bridge-neighbor"
	// DuplicateIP gives Pod's address to the pod that holds Via as well.
	DuplicateIP FaultType = "duplicate-ip"
	// ReusedIP has the node forget which addresses it gave to whom, and give
	// Pod's anew to the pod that holds Via.
	ReusedIP FaultType = "reused-ip"
	// SilentGateway makes the host side of a routed Pod's link answer no
	// ARP request.
	SilentGateway FaultType = "silent-gateway"
	// PodInterfaceDown takes Pod's own interface down.
	PodInterfaceDown FaultType = "pod-interface-down"
	// BridgeDrop has the bridge drop all IPv4 frames for Pod.
	BridgeDrop FaultType = "bridge-drop"
)

// layer2Shapes are their entries.
var layer2Shapes = map[FaultType]shape{
	LinkMAC:             {need: []string{"pod"}, may: []string{"mac"}},
	WrongGateway:        {need: []string{"pod"}, may: []string{"mac"}},
	StaleBridgeNeighbor: {need: []string{"pod"}, may: []string{"mac"}},
	DuplicateIP:         {need: []string{"pod", "via"}},
	ReusedIP:            {need: []string{"pod", "via"}},
	SilentGateway:       {need: []string{"pod"}},
	PodInterfaceDown:    {need: []string{"pod"}},
	BridgeDrop:          {need: []string{"pod"}},
}

// writesMAC reports whether the fault writes a MAC that nobody may have.
func (t FaultType) writesMAC() bool {
	switch t {
	case StaleDNAT, StaleARPReply, WrongNeighbor, LinkMAC, WrongGateway, StaleBridgeNeighbor:
		return true
	}
	return false
}

// misfit says why a fault cannot strike a pod of a node; empty when it can.
func (t FaultType) misfit(n *Node, p *Pod) string {
	switch {
	case t == ReusedIP && !n.Plugin.CNI():
		return "no IPAM plugin of the node's gives addresses out"
	case p.Bridged && (t == LinkMAC || t == SilentGateway || t == StaleBridgeNeighbor):
		return "the pod is on a bridge"
	case n.Bridge == "" && t == StaleBridgeNeighbor:
		return "the node has no bridge"
	case !p.Bridged && t == BridgeDrop:
		return "the pod is on no bridge"
	}
	return ""
}
