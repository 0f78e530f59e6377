package diagnose

import (
	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/fault/below"
	"github.com/lasthop/lasthop/probe/fault/bridge"
	"github.com/lasthop/lasthop/probe/fault/fabric"
	"github.com/lasthop/lasthop/probe/fault/link"
	"github.com/lasthop/lasthop/probe/fault/nat"
	"github.com/lasthop/lasthop/probe/fault/neighbor"
	"github.com/lasthop/lasthop/probe/fault/pod"
	"github.com/lasthop/lasthop/probe/fault/policy"
	"github.com/lasthop/lasthop/probe/fault/route"
	"github.com/lasthop/lasthop/probe/fault/service"
	"github.com/lasthop/lasthop/probe/fault/silence"
)

// kinds is the catalogue, in the order in which the kinds are judged: the most specific cause first, and what
// no other explains last. Each proposes findings for the losses that none before it has claimed.
var kinds = []fault.Kind{
	neighbor.TableFull, link.PodLinkDown, pod.Address, pod.Prefix, neighbor.DuplicateMAC, bridge.PodLinkOffBridge,
	bridge.PortBlocked, pod.DefaultRoute, bridge.Address, bridge.StaleFDB, bridge.StaleMACRewrite,
	bridge.StaleARPReply, route.ForwardingDisabled, route.MissingPodRoute, route.MissingTableRoute, fabric.WrongUDR,
	service.DeadBackend, route.RoutingLoop, route.BlackholeRoute, route.MissingNodeRoute, route.WrongNodeRoute,
	route.MissingDefaultRoute, route.ReversePathFilter, link.PathMTU, fabric.NICForwarding, fabric.NICAddress, fabric.UDRLimit,
	neighbor.WrongNextHopMAC, pod.DuplicatePodIP, neighbor.WrongGatewayMAC, bridge.RuleDrop, neighbor.StaleNeighbor,
	bridge.HairpinDrop,
	// kubelet's dedup rule drops these frames first.
	bridge.NetfilterOff, nat.UnexpectedMasquerade, neighbor.UnansweredARP, nat.SNATPortExhaustion, nat.ForeignSNAT,
	nat.StaleFlow, fabric.NSGDrop, fabric.MissingUDR, fabric.MissingOutbound, nat.MissingMasquerade, policy.ConntrackFull,
	policy.ConntrackRace, policy.InvalidDrop, below.AllowanceExceeded, below.NICDrop, below.BacklogFull, below.QueueDrop, policy.Drop,
	policy.BPFDrop, pod.NoListener, pod.ReceiveOverflow, silence.PodNotReplying, silence.NoReply,
	silence.UnexplainedDrop,
}
