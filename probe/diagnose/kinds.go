package diagnose

import "github.com/lasthop/lasthop/probe/model"

// The codes of all findings; package catalogue has what each means.
const (
	NeighborTableFull    model.Code = "NeighborTableFull"
	PodLinkDown          model.Code = "PodLinkDown"
	PodAddress           model.Code = "PodAddress"
	PodPrefix            model.Code = "PodPrefix"
	DuplicateMAC         model.Code = "DuplicateMAC"
	PodLinkOffBridge     model.Code = "PodLinkOffBridge"
	BridgePortBlocked    model.Code = "BridgePortBlocked"
	PodDefaultRoute      model.Code = "PodDefaultRoute"
	BridgeAddress        model.Code = "BridgeAddress"
	StaleFDB             model.Code = "StaleFDB"
	StaleMACRewrite      model.Code = "StaleMACRewrite"
	StaleARPReply        model.Code = "StaleARPReply"
	ForwardingDisabled   model.Code = "ForwardingDisabled"
	MissingPodRoute      model.Code = "MissingPodRoute"
	MissingTableRoute    model.Code = "MissingTableRoute"
	WrongUDR             model.Code = "WrongUDR"
	DeadBackend          model.Code = "DeadBackend"
	RoutingLoop          model.Code = "RoutingLoop"
	BlackholeRoute       model.Code = "BlackholeRoute"
	MissingNodeRoute     model.Code = "MissingNodeRoute"
	WrongNodeRoute       model.Code = "WrongNodeRoute"
	MissingDefaultRoute  model.Code = "MissingDefaultRoute"
	ReversePathFilter    model.Code = "ReversePathFilter"
	PathMTU              model.Code = "PathMTU"
	NICForwarding        model.Code = "NICForwarding"
	UDRLimit             model.Code = "UDRLimit"
	WrongNextHopMAC      model.Code = "WrongNextHopMAC"
	DuplicatePodIP       model.Code = "DuplicatePodIP"
	WrongGatewayMAC      model.Code = "WrongGatewayMAC"
	BridgeRuleDrop       model.Code = "BridgeRuleDrop"
	StaleNeighbor        model.Code = "StaleNeighbor"
	HairpinDrop          model.Code = "HairpinDrop"
	BridgeNetfilterOff   model.Code = "BridgeNetfilterOff"
	UnexpectedMasquerade model.Code = "UnexpectedMasquerade"
	UnansweredARP        model.Code = "UnansweredARP"
	SNATPortExhaustion   model.Code = "SNATPortExhaustion"
	ForeignSNAT          model.Code = "ForeignSNAT"
	StaleFlow            model.Code = "StaleFlow"
	MissingUDR           model.Code = "MissingUDR"
	MissingMasquerade    model.Code = "MissingMasquerade"
	ConntrackFull        model.Code = "ConntrackFull"
	ConntrackRace        model.Code = "ConntrackRace"
	InvalidDrop          model.Code = "InvalidDrop"
	AllowanceExceeded    model.Code = "AllowanceExceeded"
	NICDrop              model.Code = "NICDrop"
	BacklogFull          model.Code = "BacklogFull"
	QueueDrop            model.Code = "QueueDrop"
	PolicyDrop           model.Code = "PolicyDrop"
	BPFDrop              model.Code = "BPFDrop"
	NoListener           model.Code = "NoListener"
	ReceiveOverflow      model.Code = "ReceiveOverflow"
	PodNotReplying       model.Code = "PodNotReplying"
	NoReply              model.Code = "NoReply"
	UnexplainedDrop      model.Code = "UnexplainedDrop"
)

type (
	hops    = []model.HopKind
	sources = []string
	objects = []string
)

// ruleObjects are the objects of a kind about firewall rules.
var ruleObjects = objects{
	"rule.Pod.Link rule.Family rule.Table rule.Chain rule.Rule", "rule.Family rule.Table rule.Chain rule.Rule",
	"rule.Table rule.Chain rule.Frame", "rule.Family rule.Table rule.Chain",
}

// kinds is the catalogue, in the order in which the kinds are judged: the most specific cause first, and what
// no other explains last. Each proposes findings for the losses that none before it has claimed.
var kinds = []kind{
	{code: NeighborTableFull, severity: model.Critical, find: findNeighborTableFull,
		ends: hops{model.HopNeighbor, model.HopPod, model.HopLink}, objects: objects{"six"}},
	// The link's route goes with it.
	{code: PodLinkDown, severity: model.Critical, find: findPodLinkDown,
		needs: sources{model.SourceLinks, model.SourcePods}, ends: hops{model.HopLink, model.HopPod, model.HopRoute},
		objects: objects{"link.Name"}},
	{code: PodAddress, severity: model.Critical, find: findPodAddress, rests: sources{model.SourceTC},
		ends: hops{model.HopPod, model.HopNeighbor}, objects: objects{"pod.Link addr", "pod.Link"}},
	{code: PodPrefix, severity: model.Critical, find: findPodPrefix, rests: sources{model.SourceTC}, ends: hops{model.HopPod},
		objects: objects{"pod.Link"}},
	// The node may still hold the MAC that one had.
	{code: DuplicateMAC, severity: model.Critical, find: findDuplicateMAC,
		ends: hops{model.HopBridge, model.HopPod, model.HopNeighbor}, objects: objects{"mac"}, traits: model.ByNextHop},
	{code: PodLinkOffBridge, severity: model.Critical, find: findPodLinkOffBridge,
		needs:   sources{model.SourceLinks, model.SourcePods, model.SourceRoutes},
		ends:    hops{model.HopLink, model.HopNeighbor, model.HopBridge, model.HopRoute, model.HopPod},
		objects: objects{"link.Name"}},
	{code: BridgePortBlocked, severity: model.Critical, find: findBridgePortBlocked,
		needs:   sources{model.SourceLinks, model.SourcePods},
		ends:    hops{model.HopBridge, model.HopLink, model.HopNeighbor, model.HopPod},
		objects: objects{"link.Name", "nic.Name", "bridge.Name"}},
	{code: PodDefaultRoute, severity: model.Critical, find: findPodDefaultRoute, rests: sources{model.SourceLinks},
		ends: hops{model.HopPod}, objects: objects{"pod.Link isIPv6", "pod.Link"}},
	{code: BridgeAddress, severity: model.Critical, find: findBridgeAddress,
		needs:   sources{model.SourceLinks, model.SourcePods, model.SourceRoutes},
		ends:    hops{model.HopPod, model.HopNeighbor, model.HopBridge, model.HopRoute},
		objects: objects{"bridge.Name gateway"}},
	{code: StaleFDB, severity: model.Critical, find: findStaleFDB,
		needs: sources{model.SourceLinks, model.SourcePods, model.SourceBridge},
		ends:  hops{model.HopBridge, model.HopNeighbor, model.HopPod}, objects: objects{"bridge entry.MAC", "link hop"}},
	{code: StaleMACRewrite, severity: model.Critical, find: findStaleMACRewrite,
		rests: sources{model.SourceEbtables, model.SourceLinks}, ends: hops{model.HopBridge},
		objects: objects{"rule addr"}},
	{code: StaleARPReply, severity: model.Critical, find: findStaleARPReply,
		needs: sources{model.SourceNeighbors, model.SourceRoutes}, rests: sources{model.SourceEbtables, model.SourceLinks}, ends: hops{model.HopBridge},
		objects: objects{"rule addr"}, traits: model.ByNextHop},
	// Nor does such a link answer for a gateway.
	{code: ForwardingDisabled, severity: model.Critical, find: findForwardingDisabled,
		ends: hops{model.HopRoute, model.HopPod}, objects: objects{"all", "links"}},
	{code: MissingPodRoute, severity: model.Critical, find: findMissingPodRoute,
		needs: sources{model.SourceRoutes, model.SourceLinks}, rests: sources{model.SourcePods}, ends: hops{model.HopRoute},
		objects: objects{"first"}},
	{code: MissingTableRoute, severity: model.Critical, find: findMissingTableRoute, ends: hops{model.HopBeyond},
		objects: objects{"rule"}},
	// Where the TTL ends.
	{code: WrongUDR, severity: model.Critical, find: findWrongUDR,
		needs: sources{model.SourceLinks}, ends: hops{model.HopBeyond, model.HopRoute},
		traits: model.Unheard | model.Astray | model.ByRoute | model.Foreign},
	{code: DeadBackend, severity: model.Warning, find: findDeadBackend,
		needs:   sources{model.SourcePods, model.SourceConntrack},
		ends:    hops{model.HopNeighbor, model.HopRoute, model.HopBeyond, model.HopPod},
		objects: objects{"addr", "server"}, traits: model.Vacant},
	{code: RoutingLoop, severity: model.Critical, find: findRoutingLoop,
		rests: sources{model.SourceRoutes, model.SourceLinks}, ends: hops{model.HopRoute, model.HopBeyond},
		traits: model.Astray},
	{code: BlackholeRoute, severity: model.Critical, find: findBlackholeRoute,
		needs: sources{model.SourceRoutes}, rests: sources{model.SourceLinks, model.SourcePods}, ends: hops{model.HopRoute},
		objects: objects{"rule", "route"}},
	{code: MissingNodeRoute, severity: model.Critical, find: findMissingNodeRoute,
		needs: sources{model.SourceRoutes, model.SourceTC}, objects: objects{"f.Peers"},
		traits: model.Astray | model.OnlySent | model.ByRoute},
	{code: WrongNodeRoute, severity: model.Critical, find: findWrongNodeRoute,
		needs: sources{model.SourceRoutes, model.SourceTC}, ends: hops{model.HopBeyond, model.HopNeighbor},
		objects: objects{"f.Peers route.Gateway"}, traits: model.Astray | model.OnlySent},
	{code: MissingDefaultRoute, severity: model.Critical, find: findMissingDefaultRoute,
		objects: objects{"link to.Is4", "link"}, traits: model.Astray},
	{code: ReversePathFilter, severity: model.Warning, find: findReversePathFilter,
		rests: sources{model.SourceLinks, model.SourcePods, model.SourceTC}, ends: hops{model.HopRoute},
		objects: objects{"link"}},
	{code: PathMTU, severity: model.Warning, find: findPathMTU,
		ends: hops{model.HopRoute, model.HopLink, model.HopPod, model.HopBridge}},
	{code: NICForwarding, severity: model.Critical, find: findNICForwarding,
		needs: sources{model.SourceCloud}, rests: sources{model.SourceTC}, ends: hops{model.HopBeyond},
		objects: objects{"f.Peers"}, traits: model.Unheard | model.Astray},
	{code: UDRLimit, severity: model.Warning, find: findUDRLimit, passes: true},
	{code: WrongNextHopMAC, severity: model.Critical, find: findWrongNextHopMAC, ends: hops{model.HopBeyond, model.HopLink},
		objects: objects{"entry.Addr link", "link.Name for"}, traits: model.Astray | model.OnlySent | model.ByNextHop},
	{code: DuplicatePodIP, severity: model.Critical, find: findDuplicatePodIP,
		ends:    hops{model.HopRoute, model.HopNeighbor, model.HopBridge, model.HopPod},
		objects: objects{"addr", "answer.Addr"}},
	{code: WrongGatewayMAC, severity: model.Critical, find: findWrongGatewayMAC,
		needs: sources{model.SourceLinks}, rests: sources{model.SourceEbtables, model.SourceRoutes, model.SourceNeighbors}, ends: hops{model.HopLink, model.HopBridge},
		objects: objects{"pod.Link"}, traits: model.ByNextHop},
	// Who asks gets no reply.
	{code: BridgeRuleDrop, severity: model.Warning, find: findBridgeRuleDrop,
		needs: sources{model.SourceLinks}, ends: hops{model.HopBridge, model.HopNeighbor, model.HopPod},
		objects: objects{"rule.Table rule.Chain rule"}},
	{code: StaleNeighbor, severity: model.Critical, find: findStaleNeighbor,
		needs: sources{model.SourceNeighbors, model.SourceRoutes, model.SourceLinks, model.SourcePods},
		ends:  hops{model.HopNeighbor}, objects: objects{"entry.Addr link"}, traits: model.ByNextHop},
	{code: HairpinDrop, severity: model.Warning, find: findHairpinDrop},
	// A rule against doubled frames takes them first.
	{code: BridgeNetfilterOff, severity: model.Critical, find: findBridgeNetfilterOff,
		needs: sources{model.SourceConntrack, model.SourceLinks, model.SourceSysctl},
		ends:  hops{model.HopPod, model.HopBridge}, objects: objects{"bridge", "link"}},
	{code: UnexpectedMasquerade, severity: model.Warning, find: findUnexpectedMasquerade,
		ends: hops{model.HopConntrack}, passes: true, objects: objects{"rules", "rule"}},
	{code: UnansweredARP, severity: model.Warning, find: findUnansweredARP,
		rests: sources{model.SourcePods, model.SourceRoutes}, ends: hops{model.HopPod, model.HopNeighbor},
		objects: objects{"port remotes"}, traits: model.ByNextHop},
	{code: SNATPortExhaustion, severity: model.Critical, find: findSNATPortExhaustion, ends: hops{model.HopConntrack},
		objects: objects{"from proto port to"}},
	{code: ForeignSNAT, severity: model.Critical, find: findForeignSNAT,
		needs: sources{model.SourceLinks, model.SourceRoutes, model.SourceConntrack, model.SourcePods},
		ends:  hops{model.HopConntrack, model.HopBeyond}, objects: objects{"addr"}},
	{code: StaleFlow, severity: model.Warning, find: findStaleFlow,
		needs: sources{model.SourcePods, model.SourceConntrack, model.SourceNAT, model.SourceLinks},
		ends:  hops{model.HopConntrack, model.HopBeyond}},
	{code: MissingUDR, severity: model.Critical, find: findMissingUDR, rests: sources{model.SourceTC},
		ends: hops{model.HopBeyond}, traits: model.Unheard | model.Astray | model.ByRoute},
	{code: MissingMasquerade, severity: model.Critical, find: findMissingMasquerade, ends: hops{model.HopBeyond}},
	// Netfilter drops both.
	{code: ConntrackFull, severity: model.Critical, find: findConntrackFull,
		ends: hops{model.HopConntrack, model.HopPolicy}, objects: objects{"table.Max"}},
	// Netfilter drops both.
	{code: ConntrackRace, severity: model.Warning, find: findConntrackRace,
		needs: sources{model.SourceConntrack, model.SourceNAT}, ends: hops{model.HopConntrack, model.HopPolicy}},
	{code: InvalidDrop, severity: model.Warning, find: findInvalidDrop, ends: hops{model.HopPolicy},
		objects: ruleObjects},
	{code: AllowanceExceeded, severity: model.Warning, find: findAllowanceExceeded, ends: hops{model.HopBeyond},
		objects: objects{"conntrack", "linklocal"}},
	{code: NICDrop, severity: model.Warning, find: findNICDrop, ends: hops{model.HopLink, model.HopQueue}},
	{code: BacklogFull, severity: model.Warning, find: findBacklogFull, ends: hops{model.HopLink, model.HopPod}},
	{code: QueueDrop, severity: model.Warning, find: findQueueDrop,
		ends: hops{model.HopQueue, model.HopLink, model.HopPod}, objects: objects{"queue.Link queue.Kind", "pod.Link"}},
	{code: PolicyDrop, severity: model.Warning, find: findPolicyDrop, rests: sources{model.SourceLinks},
		ends: hops{model.HopPolicy, model.HopPod}, objects: append(objects{"calico", "service", "pod.Link"}, ruleObjects...)},
	{code: BPFDrop, severity: model.Warning, find: findBPFDrop, ends: hops{model.HopLink},
		objects: objects{"inside f.Pods", "code", "xdp link", "netkit link", "link direction"}},
	{code: NoListener, severity: model.Info, find: findNoListener, ends: hops{model.HopPod, model.HopLocal},
		objects: objects{"pod.Link f.Pods"}},
	{code: ReceiveOverflow, severity: model.Info, find: findReceiveOverflow, ends: hops{model.HopPod, model.HopLocal},
		objects: objects{"f.Pods"}},
	{code: PodNotReplying, severity: model.Warning, find: findPodNotReplying,
		needs: sources{model.SourceTC, model.SourcePods}, ends: hops{model.HopPod, model.HopLocal}, objects: objects{"f.Pods"}},
	{code: NoReply, severity: model.Warning, find: findNoReply, ends: hops{model.HopBeyond}, objects: objects{"addr"},
		traits: model.Unheard},
	{code: UnexplainedDrop, severity: model.Info, find: findUnexplainedDrop,
		objects: objects{"reason location", "location"}, traits: model.Unknown},
}
