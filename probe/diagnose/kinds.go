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
	"github.com/lasthop/lasthop/probe/model"
)

type (
	hops    = []model.HopKind
	sources = []string
	objects = []string
	before  = map[model.Code]string
)

// ruleObjects are the objects of a kind about firewall rules.
var ruleObjects = objects{
	"rule.Pod.Link rule.Family rule.Table rule.Chain rule.Rule", "rule.Family rule.Table rule.Chain rule.Rule",
	"rule.Table rule.Chain rule.Frame", "rule.Family rule.Table rule.Chain",
}

// kinds is the catalogue, in the order in which the kinds are judged: the most specific cause first, and what
// no other explains last. Each proposes findings for the losses that none before it has claimed.
var kinds = []kind{
	{code: fault.NeighborTableFull, severity: model.Critical, find: neighbor.TableFull,
		ends: hops{model.HopNeighbor, model.HopPod, model.HopLink}, objects: objects{"six"}},
	{code: fault.PodLinkDown, severity: model.Critical, find: link.PodLinkDown,
		needs: sources{model.SourceLinks, model.SourcePods}, ends: hops{model.HopLink, model.HopPod, model.HopRoute},
		objects: objects{"link.Name"}},
	{code: fault.PodAddress, severity: model.Critical, find: pod.Address, rests: sources{model.SourceTC},
		ends: hops{model.HopPod, model.HopNeighbor}, objects: objects{"pod.Link addr", "pod.Link"}},
	{code: fault.PodPrefix, severity: model.Critical, find: pod.Prefix, rests: sources{model.SourceTC}, ends: hops{model.HopPod},
		objects: objects{"pod.Link"}},
	{code: fault.DuplicateMAC, severity: model.Critical, find: neighbor.DuplicateMAC,
		before: before{fault.StaleNeighbor: "the entry may hold the MAC that the pod had"},
		ends:   hops{model.HopBridge, model.HopPod, model.HopNeighbor}, objects: objects{"mac"}, traits: model.ByNextHop},
	{code: fault.PodLinkOffBridge, severity: model.Critical, find: bridge.PodLinkOffBridge,
		needs:   sources{model.SourceLinks, model.SourcePods, model.SourceRoutes},
		ends:    hops{model.HopLink, model.HopNeighbor, model.HopBridge, model.HopRoute, model.HopPod},
		objects: objects{"link.Name"}},
	{code: fault.BridgePortBlocked, severity: model.Critical, find: bridge.PortBlocked,
		needs:   sources{model.SourceLinks, model.SourcePods},
		ends:    hops{model.HopBridge, model.HopLink, model.HopNeighbor, model.HopPod},
		objects: objects{"link.Name", "nic.Name", "bridge.Name"}},
	{code: fault.PodDefaultRoute, severity: model.Critical, find: pod.DefaultRoute, rests: sources{model.SourceLinks},
		ends: hops{model.HopPod}, objects: objects{"pod.Link isIPv6", "pod.Link"}},
	{code: fault.BridgeAddress, severity: model.Critical, find: bridge.Address,
		needs:   sources{model.SourceLinks, model.SourcePods, model.SourceRoutes},
		ends:    hops{model.HopPod, model.HopNeighbor, model.HopBridge, model.HopRoute},
		objects: objects{"bridge.Name gateway"}},
	{code: fault.StaleFDB, severity: model.Critical, find: bridge.StaleFDB,
		needs: sources{model.SourceLinks, model.SourcePods, model.SourceBridge},
		ends:  hops{model.HopBridge, model.HopNeighbor, model.HopPod}, objects: objects{"bridge entry.MAC", "link hop"}},
	{code: fault.StaleMACRewrite, severity: model.Critical, find: bridge.StaleMACRewrite,
		rests: sources{model.SourceEbtables, model.SourceLinks}, ends: hops{model.HopBridge},
		objects: objects{"rule addr"}},
	{code: fault.StaleARPReply, severity: model.Critical, find: bridge.StaleARPReply,
		needs: sources{model.SourceNeighbors, model.SourceRoutes}, rests: sources{model.SourceEbtables, model.SourceLinks}, ends: hops{model.HopBridge},
		objects: objects{"rule addr"}, traits: model.ByNextHop},
	{code: fault.ForwardingDisabled, severity: model.Critical, find: route.ForwardingDisabled,
		ends: hops{model.HopRoute, model.HopPod}, objects: objects{"all", "links"}},
	{code: fault.MissingPodRoute, severity: model.Critical, find: route.MissingPodRoute,
		needs: sources{model.SourceRoutes, model.SourceLinks}, rests: sources{model.SourcePods}, ends: hops{model.HopRoute},
		objects: objects{"first"}},
	{code: fault.MissingTableRoute, severity: model.Critical, find: route.MissingTableRoute, ends: hops{model.HopBeyond},
		objects: objects{"rule"}},
	{code: fault.WrongUDR, severity: model.Critical, find: fabric.WrongUDR,
		needs: sources{model.SourceLinks}, ends: hops{model.HopBeyond, model.HopRoute},
		traits: model.Unheard | model.Astray | model.ByRoute | model.Foreign},
	{code: fault.DeadBackend, severity: model.Warning, find: service.DeadBackend,
		needs:   sources{model.SourcePods, model.SourceConntrack},
		ends:    hops{model.HopNeighbor, model.HopRoute, model.HopBeyond, model.HopPod},
		objects: objects{"addr", "server"}, traits: model.Vacant},
	{code: fault.RoutingLoop, severity: model.Critical, find: route.RoutingLoop,
		rests: sources{model.SourceRoutes, model.SourceLinks}, ends: hops{model.HopRoute, model.HopBeyond},
		traits: model.Astray},
	{code: fault.BlackholeRoute, severity: model.Critical, find: route.BlackholeRoute,
		needs: sources{model.SourceRoutes}, rests: sources{model.SourceLinks, model.SourcePods}, ends: hops{model.HopRoute},
		objects: objects{"rule", "route"}},
	{code: fault.MissingNodeRoute, severity: model.Critical, find: route.MissingNodeRoute,
		needs: sources{model.SourceRoutes, model.SourceTC}, objects: objects{"f.Peers"},
		traits: model.Astray | model.OnlySent | model.ByRoute},
	{code: fault.WrongNodeRoute, severity: model.Critical, find: route.WrongNodeRoute,
		needs: sources{model.SourceRoutes, model.SourceTC}, ends: hops{model.HopBeyond, model.HopNeighbor},
		objects: objects{"f.Peers route.Gateway"}, traits: model.Astray | model.OnlySent},
	{code: fault.MissingDefaultRoute, severity: model.Critical, find: route.MissingDefaultRoute,
		objects: objects{"link to.Is4", "link"}, traits: model.Astray},
	{code: fault.ReversePathFilter, severity: model.Warning, find: route.ReversePathFilter,
		rests: sources{model.SourceLinks, model.SourcePods, model.SourceTC}, ends: hops{model.HopRoute},
		objects: objects{"link"}},
	{code: fault.PathMTU, severity: model.Warning, find: link.PathMTU,
		ends: hops{model.HopRoute, model.HopLink, model.HopPod, model.HopBridge}},
	{code: fault.NICForwarding, severity: model.Critical, find: fabric.NICForwarding,
		needs: sources{model.SourceCloud}, rests: sources{model.SourceTC}, ends: hops{model.HopBeyond},
		objects: objects{"f.Peers"}, traits: model.Unheard | model.Astray},
	{code: fault.UDRLimit, severity: model.Warning, find: fabric.UDRLimit, passes: true},
	{code: fault.WrongNextHopMAC, severity: model.Critical, find: neighbor.WrongNextHopMAC, ends: hops{model.HopBeyond, model.HopLink},
		objects: objects{"entry.Addr link", "link.Name for"}, traits: model.Astray | model.OnlySent | model.ByNextHop},
	{code: fault.DuplicatePodIP, severity: model.Critical, find: pod.DuplicatePodIP,
		before:  before{fault.WrongGatewayMAC: "who has the gateway's address answers for it"},
		ends:    hops{model.HopRoute, model.HopNeighbor, model.HopBridge, model.HopPod},
		objects: objects{"addr", "answer.Addr"}},
	{code: fault.WrongGatewayMAC, severity: model.Critical, find: neighbor.WrongGatewayMAC,
		needs: sources{model.SourceLinks}, rests: sources{model.SourceEbtables, model.SourceRoutes, model.SourceNeighbors}, ends: hops{model.HopLink, model.HopBridge},
		objects: objects{"pod.Link"}, traits: model.ByNextHop},
	{code: fault.BridgeRuleDrop, severity: model.Warning, find: bridge.RuleDrop,
		before: before{fault.NoReply: "the sender of a dropped request sees no reply",
			fault.StaleNeighbor: "an entry whose requests a rule drops stays unresolved"},
		needs: sources{model.SourceLinks}, ends: hops{model.HopBridge, model.HopNeighbor, model.HopPod},
		objects: objects{"rule.Table rule.Chain rule"}},
	{code: fault.StaleNeighbor, severity: model.Critical, find: neighbor.StaleNeighbor,
		needs: sources{model.SourceNeighbors, model.SourceRoutes, model.SourceLinks, model.SourcePods},
		ends:  hops{model.HopNeighbor}, objects: objects{"entry.Addr link"}, traits: model.ByNextHop},
	{code: fault.HairpinDrop, severity: model.Warning, find: bridge.HairpinDrop},
	// kubelet's dedup rule drops these frames first.
	{code: fault.BridgeNetfilterOff, severity: model.Critical, find: bridge.NetfilterOff,
		needs: sources{model.SourceConntrack, model.SourceLinks, model.SourceSysctl},
		ends:  hops{model.HopPod, model.HopBridge}, objects: objects{"bridge", "link"}},
	{code: fault.UnexpectedMasquerade, severity: model.Warning, find: nat.UnexpectedMasquerade,
		ends: hops{model.HopConntrack}, passes: true, objects: objects{"rules", "rule"}},
	{code: fault.UnansweredARP, severity: model.Warning, find: neighbor.UnansweredARP,
		rests: sources{model.SourcePods, model.SourceRoutes}, ends: hops{model.HopPod, model.HopNeighbor},
		objects: objects{"port remotes"}, traits: model.ByNextHop},
	{code: fault.SNATPortExhaustion, severity: model.Critical, find: nat.SNATPortExhaustion, ends: hops{model.HopConntrack},
		objects: objects{"from proto port to"}},
	{code: fault.ForeignSNAT, severity: model.Critical, find: nat.ForeignSNAT,
		needs: sources{model.SourceLinks, model.SourceRoutes, model.SourceConntrack, model.SourcePods},
		ends:  hops{model.HopConntrack, model.HopBeyond}, objects: objects{"addr"}},
	{code: fault.StaleFlow, severity: model.Warning, find: nat.StaleFlow,
		needs: sources{model.SourcePods, model.SourceConntrack, model.SourceNAT, model.SourceLinks},
		ends:  hops{model.HopConntrack, model.HopBeyond}},
	{code: fault.MissingUDR, severity: model.Critical, find: fabric.MissingUDR, rests: sources{model.SourceTC},
		ends: hops{model.HopBeyond}, traits: model.Unheard | model.Astray | model.ByRoute},
	{code: fault.MissingMasquerade, severity: model.Critical, find: nat.MissingMasquerade, ends: hops{model.HopBeyond}},
	{code: fault.ConntrackFull, severity: model.Critical, find: policy.ConntrackFull,
		before: before{fault.PolicyDrop: "netfilter drops these as well", fault.ConntrackRace: "a full table refuses entries of all flows"},
		ends:   hops{model.HopConntrack, model.HopPolicy}, objects: objects{"table.Max"}},
	{code: fault.ConntrackRace, severity: model.Warning, find: policy.ConntrackRace,
		before: before{fault.PolicyDrop: "netfilter drops these as well"},
		needs:  sources{model.SourceConntrack, model.SourceNAT}, ends: hops{model.HopConntrack, model.HopPolicy}},
	{code: fault.InvalidDrop, severity: model.Warning, find: policy.InvalidDrop, ends: hops{model.HopPolicy},
		objects: ruleObjects},
	{code: fault.AllowanceExceeded, severity: model.Warning, find: below.AllowanceExceeded, ends: hops{model.HopBeyond},
		objects: objects{"conntrack", "linklocal"}},
	{code: fault.NICDrop, severity: model.Warning, find: below.NICDrop, ends: hops{model.HopLink, model.HopQueue}},
	{code: fault.BacklogFull, severity: model.Warning, find: below.BacklogFull, ends: hops{model.HopLink, model.HopPod}},
	{code: fault.QueueDrop, severity: model.Warning, find: below.QueueDrop,
		ends: hops{model.HopQueue, model.HopLink, model.HopPod}, objects: objects{"queue.Link queue.Kind", "pod.Link"}},
	{code: fault.PolicyDrop, severity: model.Warning, find: policy.Drop, rests: sources{model.SourceLinks},
		ends: hops{model.HopPolicy, model.HopPod}, objects: append(objects{"calico", "service", "pod.Link"}, ruleObjects...)},
	{code: fault.BPFDrop, severity: model.Warning, find: policy.BPFDrop, ends: hops{model.HopLink},
		objects: objects{"inside f.Pods", "code", "xdp link", "netkit link", "link direction"}},
	{code: fault.NoListener, severity: model.Info, find: pod.NoListener, ends: hops{model.HopPod, model.HopLocal},
		objects: objects{"pod.Link f.Pods"}},
	{code: fault.ReceiveOverflow, severity: model.Info, find: pod.ReceiveOverflow, ends: hops{model.HopPod, model.HopLocal},
		before:  before{fault.PodNotReplying: "who reads nothing replies to nothing"},
		objects: objects{"f.Pods"}},
	{code: fault.PodNotReplying, severity: model.Warning, find: silence.PodNotReplying,
		needs: sources{model.SourceTC, model.SourcePods}, ends: hops{model.HopPod, model.HopLocal}, objects: objects{"f.Pods"}},
	{code: fault.NoReply, severity: model.Warning, find: silence.NoReply, ends: hops{model.HopBeyond}, objects: objects{"addr"},
		traits: model.Unheard},
	{code: fault.UnexplainedDrop, severity: model.Info, find: silence.UnexplainedDrop,
		objects: objects{"reason location", "location"}, traits: model.Unknown},
}
