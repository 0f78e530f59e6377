package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// FaultType names a typed operation that breaks something. What each does is
// in its Doc.
type FaultType string

// The faults of the cloud's network.
const (
	DeleteUDR        FaultType = "delete-udr"
	WrongUDR         FaultType = "wrong-udr"
	ReturningUDR     FaultType = "returning-udr"
	NICForwardingOff FaultType = "nic-forwarding-off"
	NSGDrop          FaultType = "nsg-drop"
	NoReturn         FaultType = "no-return"
	NoOutbound       FaultType = "no-outbound"
	NICAddressGone   FaultType = "nic-address-gone"
	SilentFabric     FaultType = "silent-fabric"
	FabricMTU        FaultType = "fabric-mtu"
	NICRefuses       FaultType = "nic-refuses"
	TunnelDrop       FaultType = "tunnel-drop"
	TunnelAstray     FaultType = "tunnel-astray"
	TunnelEndGone    FaultType = "tunnel-end-gone"
	TunnelHopGone    FaultType = "tunnel-hop-gone"
	TunnelMAC        FaultType = "tunnel-mac"
)

// The faults of a node's own routing.
const (
	ForwardingOff      FaultType = "forwarding-off"
	BlackholeRoute     FaultType = "blackhole-route"
	AsymmetricRoute    FaultType = "asymmetric-route"
	DeleteNodeRoute    FaultType = "delete-node-route"
	WrongNodeRoute     FaultType = "wrong-node-route"
	DeleteDefaultRoute FaultType = "delete-default-route"
	DeletePodRoute     FaultType = "delete-pod-route"
	LeftoverRule       FaultType = "leftover-rule"
	SmallMTU           FaultType = "small-mtu"
)

// The faults of links, neighbours and bridges.
const (
	StaleDNAT           FaultType = "stale-dnat"
	StaleARPReply       FaultType = "stale-arpreply"
	GatewayARPReply     FaultType = "gateway-arpreply"
	WrongNeighbor       FaultType = "wrong-neighbor"
	StaleBridgeNeighbor FaultType = "stale-bridge-neighbor"
	LinkMAC             FaultType = "link-mac"
	WrongGateway        FaultType = "wrong-gateway"
	SilentGateway       FaultType = "silent-gateway"
	DuplicateIP         FaultType = "duplicate-ip"
	ReusedIP            FaultType = "reused-ip"
	PodLinkDown         FaultType = "pod-link-down"
	PodInterfaceDown    FaultType = "pod-interface-down"
	BridgeDrop          FaultType = "bridge-drop"
	DedupFlushed        FaultType = "dedup-flushed"
	PortsIsolated       FaultType = "ports-isolated"
	PortBlocked         FaultType = "port-blocked"
	LinkOffBridge       FaultType = "link-off-bridge"
	NICOffBridge        FaultType = "nic-off-bridge"
	StaleFDB            FaultType = "fdb-stale"
	PodsShareMAC        FaultType = "pods-share-mac"
	GatewayMACPinned    FaultType = "gateway-mac-pinned"
	GatewayTaken        FaultType = "gateway-taken"
	BridgeNetfilterOff  FaultType = "bridge-netfilter-off"
	UplinkQueueFull     FaultType = "uplink-queue-full"
	PodQueueFull        FaultType = "pod-queue-full"
	QueueInPodFull      FaultType = "queue-in-pod-full"
)

// The faults of addresses and routes in pods and on bridges.
const (
	BridgeWithoutAddress   FaultType = "bridge-without-address"
	PodAddressOnNode       FaultType = "pod-address-on-node"
	PodRouteLocal          FaultType = "pod-route-local"
	PodWithoutAddress      FaultType = "pod-without-address"
	PodDuplicateDetected   FaultType = "pod-duplicate-detected"
	PodWithoutDefaultRoute FaultType = "pod-without-default-route"
	PodDefaultElsewhere    FaultType = "pod-default-elsewhere"
	PodWrongPrefix         FaultType = "pod-wrong-prefix"
	PodBlackhole           FaultType = "pod-blackhole"
)

// The faults of packet filters and programs.
const (
	DropForward        FaultType = "drop-forward"
	DropLegacy         FaultType = "drop-legacy"
	DropQueued         FaultType = "drop-queued"
	DropReplies        FaultType = "drop-replies"
	DropMasqueraded    FaultType = "drop-masqueraded"
	DropNFT            FaultType = "drop-nft"
	DropChains         FaultType = "drop-chains"
	DropSomeDNS        FaultType = "drop-some-dns"
	ForwardPolicyDrop  FaultType = "forward-policy-drop"
	LastHop            FaultType = "last-hop"
	DropProgram        FaultType = "drop-program"
	DropTCX            FaultType = "drop-tcx"
	DropXDP            FaultType = "drop-xdp"
	PolicyUnprogrammed FaultType = "policy-unprogrammed"
	PolicyDeny         FaultType = "policy-deny"
	PodFirewall        FaultType = "pod-firewall"
	ProxyGone          FaultType = "proxy-gone"
)

// The faults of address translation, connection tracking and sockets.
const (
	MissingMasquerade   FaultType = "missing-masquerade"
	MasqueradeAll       FaultType = "masquerade-all"
	MasqueradeNFT       FaultType = "masquerade-nft"
	SNATPorts           FaultType = "snat-ports"
	DeadBackend         FaultType = "dead-backend"
	DeadBackendNFT      FaultType = "dead-backend-nft"
	SelfService         FaultType = "self-service"
	ForeignSNAT         FaultType = "snat-to-foreign-address"
	ServiceUntranslated FaultType = "service-untranslated"
	ServiceEndpointless FaultType = "service-without-endpoints"
	ServiceRetired      FaultType = "service-retired"
	Untracked           FaultType = "untracked"
	Zoned               FaultType = "zoned"
	ConntrackBypassed   FaultType = "conntrack-bypassed"
	SegmentsBypassed    FaultType = "segments-bypassed"
	ConntrackFull       FaultType = "conntrack-full"
	MasqueradeTCP       FaultType = "masquerade-tcp"
	ConntrackRace       FaultType = "conntrack-race"
	NoListener          FaultType = "no-listener"
	LoopbackListener    FaultType = "loopback-listener"
	DeafServer          FaultType = "deaf-server"
	PodHung             FaultType = "pod-hung"
	PodGone             FaultType = "pod-gone"
	CiliumServiceEmpty  FaultType = "cilium-service-empty"
	NodeDNSGone         FaultType = "node-dns-gone"
	LocalDNSStopped     FaultType = "local-dns-stopped"
)

// What is no fault: ordinary states of a node.
const (
	Service         FaultType = "service"
	ServiceByMaps   FaultType = "service-by-maps"
	EmptyBridge     FaultType = "empty-bridge"
	NodeDNS         FaultType = "node-dns"
	LocalDNS        FaultType = "local-dns"
	PodResolver     FaultType = "pod-resolver"
	Networkd        FaultType = "networkd"
	CiliumService   FaultType = "cilium-service"
	QueueShaped     FaultType = "queue-shaped"
	SecondInterface FaultType = "second-interface"
	PodTable        FaultType = "pod-table"
	PodTableEmpty   FaultType = "pod-table-empty"
	PodTableWrong   FaultType = "pod-table-wrong"
	PodTableUnruled FaultType = "pod-table-unruled"
	PingDenied      FaultType = "ping-denied"
	InvalidDropped  FaultType = "invalid-dropped"
)

// faultRow is what a file may say of a fault, and where it can strike. How it
// is made and undone is the row of the same type in kind/lab.
type faultRow struct {
	// args are the fields of its entry beside the type. A question mark is
	// behind those that may be left out. A node can stand for its podCIDR where
	// a route is wanted, and a MAC must be one that no machine has.
	args   string
	family faultFamily
	refuse []refusal
	// doc completes the sentence that begins with the type.
	doc string
	// ordinary is true of a state that is no fault.
	ordinary bool
}

// faultFamily says which IP version a fault strikes.
type faultFamily int

const (
	// onlyIPv4 also stands for faults that have no addresses, but are not known
	// to work without IPv4.
	onlyIPv4 faultFamily = iota
	// oneFamily strikes IPv6 alone where the entry says family: 6.
	oneFamily
	// everyFamily strikes whatever there is.
	everyFamily
)

// refusal is a condition under which a fault cannot be.
type refusal struct {
	// at is the field of the entry whose value is at fault; empty: the entry.
	at string
	is func(target) bool
	// why is the reason, in which these are replaced: {fault}, {node}, {plugin}, {pod}, {prefix} and {via}.
	why string
}

// target is what a fault strikes: pod and node are nil where it has none.
type target struct {
	t    *Topology
	node *Node
	pod  *Pod
	f    Fault
}

var (
	onSwitch      = refusal{"", func(x target) bool { return x.t.Switched }, "fault {fault} is one of a cloud, and a switch connects the nodes"}
	notKubenet    = refusal{"node", func(x target) bool { return x.node.Plugin != Kubenet }, `node "{node}" is not kubenet`}
	noPodBridge   = refusal{"node", notKubenet.is, `node "{node}" has no bridge other than that of its NIC`}
	oneNIC        = refusal{"pod", func(x target) bool { return x.node.Second.Name == "" }, `node "{node}" has no second NIC`}
	bridged       = refusal{"pod", func(x target) bool { return x.pod.Bridged }, `pod "{pod}" is on a bridge`}
	routed        = refusal{"pod", func(x target) bool { return !x.pod.Bridged }, `pod "{pod}" is on no bridge`}
	noBridge      = refusal{"pod", func(x target) bool { return x.node.Bridge == "" }, `node "{node}" has no bridge`}
	noBridgeOn    = refusal{"node", noBridge.is, noBridge.why}
	noGatewayLink = refusal{"node", func(x target) bool { return x.node.Bridge == "" || !x.node.PodGateway().IsValid() }, `the pods' gateway is not the address of a bridge of node "{node}"`}
	nodesOwn      = refusal{"via", func(x target) bool { return strings.Split(x.t.Place(x.f.Via), "/")[0] == x.f.Node }, `via: {via} is an address of node "{node}"`}
	nicUnbridged  = refusal{"pod", func(x target) bool { return x.node.Bridge == "" || x.node.PodGateway().IsValid() }, `the NIC of "{node}" is on no bridge: no frame rule for it can be stale`}
	nicAlone      = refusal{"node", nicUnbridged.is, `the NIC of "{node}" is on no bridge`}
	nicOwnOnly    = refusal{"node", func(x target) bool { return !x.node.IPForwarding }, `the NIC of "{node}" does not forward as it is`}
	byUDR         = refusal{"pod", func(x target) bool { return x.node.Plugin.routedByUDR() }, `the NIC of node "{node}" has no addresses of pods`}
	noCalico      = refusal{"pod", func(x target) bool { return !x.node.hasCalico() }, `node "{node}" has no Calico`}
	noCilium      = refusal{"node", func(x target) bool { return !x.node.Plugin.HasRouter() }, `node "{node}" has no Cilium`}
	noKnownMAC    = refusal{"pod", func(x target) bool { return x.node.Plugin.CNI() }, `the CNI plugin of node "{node}" chooses pods' MACs`}
	noPolicies    = refusal{"pod", func(x target) bool { return x.node.Policy == "" && !x.node.hasCalico() }, `node "{node}" has no program for network policies`}
	noIPAM        = refusal{"pod", func(x target) bool { return !x.node.Plugin.CNI() }, `no IPAM plugin of node "{node}" gives addresses out`}
	otherNodesPod = refusal{"via", func(x target) bool {
		n, p := x.t.Pod(x.t.Place(x.f.Via))
		return p == nil || n.Name != x.f.Node || x.t.Place(x.f.Via) == x.f.Pod
	}, `via: {via} is not another pod of node "{node}"`}
	notIPv6       = refusal{"", func(x target) bool { return x.pod.IP.Is4() && x.f.Family != 6 }, "IPv4 has no duplicate address detection: family: 6 is missing"}
	pinnedGateway = refusal{"", func(x target) bool { return x.f.Family == 6 && !x.node.PodGateway().IsValid() }, "the pods' IPv6 gateway is the link's own address, or pinned"}
	noProxiedNDP  = refusal{"", func(x target) bool { return x.f.Family == 6 && !x.node.Plugin.HasRouter() }, pinnedGateway.why}
	oneMasqRule   = refusal{"", func(x target) bool { return x.node.Dockershim && x.f.Prefix.IsValid() }, `node "{node}" has one rule that masquerades: nothing can be excluded beside`}
	calicoMasq    = refusal{"node", func(x target) bool { return x.node.Plugin == Calico }, `node "{node}" is calico, whose masquerading no range is excluded from`}
	pluginMasq    = refusal{"", func(x target) bool { return x.node.IPMasq }, "the plugin masquerades each pod by rules of its own"}
	pluginExclude = refusal{"", func(x target) bool { return x.node.IPMasq && x.f.Prefix.IsValid() }, pluginMasq.why}
	noNodeRoutes  = refusal{"node", func(x target) bool { return !x.node.Plugin.NodeRoutes() }, `node "{node}" is {plugin} and has no routes to other nodes' pods`}
	noOverlay     = refusal{"", func(x target) bool { return x.t.Overlay == "" }, "fault {fault} wants a topology with an overlay"}
	inOverlay     = refusal{"", func(x target) bool { return x.t.Overlay != "" }, "the routes to other nodes' pods lead into the overlay"}
	nobodysRange  = refusal{"prefix", func(x target) bool {
		return !slices.ContainsFunc(x.t.Nodes, func(o Node) bool {
			return o.Name != x.node.Name && (o.PodCIDR == x.f.Prefix || o.PodCIDR6 == x.f.Prefix)
		})
	}, "no other node has podCIDR {prefix}"}
	// A request goes to all addresses of the prefix at once.
	notFewAddresses = refusal{"prefix", func(x target) bool {
		bits := x.f.Prefix.Addr().BitLen() - x.f.Prefix.Bits()
		return bits < 1 || bits > 2
	}, "fault {fault} wants a prefix of 2 to 4 addresses, got {prefix}"}
	viaNoPod = refusal{"via", func(x target) bool {
		_, p := x.t.Pod(x.t.Place(x.f.Via))
		return p == nil
	}, "fault {fault} wants a pod for via, got {via}"}
)

var faultRows = map[FaultType]faultRow{
	DeleteUDR:        {args: "node? prefix?", family: oneFamily, doc: "deletes the user-defined route of prefix or of node's pods, or all such routes"},
	WrongUDR:         {args: "via node? prefix?", family: oneFamily, doc: "sends the user-defined route of prefix or of node's pods to via"},
	ReturningUDR:     {args: "node prefix", refuse: []refusal{onSwitch}, doc: "has the fabric send prefix, which nobody has, to node, whose reverse path filter is off and which sends it back"},
	NICForwardingOff: {args: "node", refuse: []refusal{onSwitch, nicOwnOnly}, doc: "takes IP forwarding from node's NIC"},
	NSGDrop:          {args: "node prefix? port?", refuse: []refusal{onSwitch}, doc: "has the network drop what node's pods send to prefix, or to anybody, or only to port of TCP and UDP, as a security group does that leaves the pods' addresses out"},
	NoReturn:         {args: "node", refuse: []refusal{onSwitch}, doc: "has the network drop what comes back to node from outside, as a firewall does that sees one direction only"},
	NoOutbound:       {args: "node", refuse: []refusal{onSwitch}, doc: "makes node's subnet private, without a NAT gateway: the network drops what node sends to the internet"},
	NICAddressGone:   {args: "pod", refuse: []refusal{onSwitch, byUDR}, doc: "takes pod's address, or the block that it is in, from the NIC of its node: the network knows no machine that has it"},
	SilentFabric:     {args: "node", doc: "has the network answer no ARP request of node any more"},
	NICRefuses:       {args: "node", refuse: []refusal{onSwitch}, doc: "gives the network's end of node's link an MTU of 1280: the driver drops what is longer once the node has sent it, and counts it"},
	FabricMTU:        {args: "node", refuse: []refusal{onSwitch}, doc: "has the network lose what is longer than 1280 bytes on its way to or from node, and say nothing, as behind a tunnel whose ICMP errors are filtered"},
	TunnelDrop:       {args: "node", refuse: []refusal{onSwitch, noOverlay}, doc: "has the network drop what carries the overlay to or from node, as a security group does that leaves its UDP port out"},
	TunnelAstray:     {args: "node prefix via", refuse: []refusal{noOverlay, nobodysRange, nodesOwn}, doc: "has node send what its overlay carries for the pods of the node that has prefix to via instead"},
	TunnelEndGone:    {args: "node prefix", refuse: []refusal{noOverlay, nobodysRange}, doc: "takes from node's overlay the forwarding entry that has the address of the node that has prefix"},
	TunnelMAC:        {args: "node mac", refuse: []refusal{noOverlay}, doc: "gives node's overlay mac, which the other nodes do not learn, as udev does with its MACAddressPolicy"},
	TunnelHopGone:    {args: "node prefix", refuse: []refusal{noOverlay, nobodysRange}, doc: "takes from node the neighbour entry of its overlay's next hop to the pods of the node that has prefix"},

	ForwardingOff:      {args: "node", family: oneFamily, doc: "turns node's IP forwarding off"},
	BlackholeRoute:     {args: "node prefix", family: everyFamily, doc: "has node drop what it routes to prefix"},
	AsymmetricRoute:    {args: "node prefix", refuse: []refusal{noPodBridge}, doc: "routes prefix to the bridge of node's pods, though its packets arrive by the NIC"},
	DeleteNodeRoute:    {args: "node prefix", family: everyFamily, refuse: []refusal{noNodeRoutes, nobodysRange, inOverlay}, doc: "deletes node's route to the pods of the node that has prefix"},
	WrongNodeRoute:     {args: "node prefix via", family: everyFamily, refuse: []refusal{noNodeRoutes, nobodysRange, inOverlay, nodesOwn}, doc: "gives node's route to the pods of the node that has prefix the next hop via"},
	DeleteDefaultRoute: {args: "node", family: oneFamily, doc: "deletes node's default route"},
	DeletePodRoute:     {args: "pod", family: oneFamily, refuse: []refusal{bridged}, doc: "deletes the node's route and rule for a routed pod"},
	LeftoverRule:       {args: "node prefix", doc: "leaves a routing rule that sends what is for prefix to a table of the plugin before, and by it to node's gateway"},
	SmallMTU:           {args: "node", doc: "gives node's NIC an MTU of 1280, and drops the ICMP errors that senders need"},

	StaleDNAT:           {args: "pod mac?", refuse: []refusal{nicUnbridged}, doc: "leaves an ebtables rule that rewrites frames for pod to mac"},
	StaleARPReply:       {args: "pod mac?", refuse: []refusal{noBridge}, doc: "leaves an ebtables rule that answers ARP requests for pod with mac"},
	GatewayARPReply:     {args: "pod mac?", refuse: []refusal{noBridge}, doc: "leaves an ebtables rule that answers ARP requests for the gateway of pod with mac"},
	WrongNeighbor:       {args: "pod mac?", family: oneFamily, doc: "pins the node's neighbour entry for pod to mac"},
	StaleBridgeNeighbor: {args: "pod mac?", refuse: []refusal{bridged, noBridge}, doc: "leaves a neighbour entry for a routed pod on the node's bridge, as the plugin before made it"},
	LinkMAC:             {args: "pod mac?", refuse: []refusal{bridged}, doc: "gives the host side of a routed pod's link the address mac, while the pod keeps the former one for its gateway"},
	WrongGateway:        {args: "pod mac?", family: oneFamily, refuse: []refusal{pinnedGateway}, doc: "pins pod's neighbour entry for its gateway to mac"},
	SilentGateway:       {args: "pod", family: oneFamily, refuse: []refusal{bridged, noProxiedNDP}, doc: "has the host side of a routed pod's link answer no ARP request"},
	DuplicateIP:         {args: "pod via", family: oneFamily, doc: "gives pod's address to the pod that has via as well"},
	ReusedIP:            {args: "pod via", refuse: []refusal{noIPAM, otherNodesPod}, doc: "has the node forget which addresses it gave out, and give pod's anew to the pod that has via"},
	PodLinkDown:         {args: "pod", family: everyFamily, doc: "takes the host side of pod's link down"},
	PodInterfaceDown:    {args: "pod", doc: "takes pod's own interface down"},
	BridgeDrop:          {args: "pod", refuse: []refusal{routed}, doc: "has the bridge drop all IPv4 frames for pod"},
	DedupFlushed:        {args: "node", refuse: []refusal{notKubenet}, doc: "empties the chain that drops the duplicates a promiscuous bridge makes, which does no harm"},
	PortsIsolated:       {args: "pod via", refuse: []refusal{routed, otherNodesPod}, doc: "isolates the bridge ports of pod and of the pod that has via from each other"},
	UplinkQueueFull:     {args: "node", family: everyFamily, doc: "limits what node's NIC sends to a trickle, by a queue that holds two packets"},
	PodQueueFull:        {args: "pod", family: everyFamily, doc: "limits what pod gets to a trickle, by a queue that holds two packets, as a bandwidth annotation does"},
	QueueInPodFull:      {args: "pod", family: everyFamily, doc: "limits what pod sends to a trickle, by a queue of its own interface that holds two packets"},
	PortBlocked:         {args: "pod", refuse: []refusal{routed}, doc: "puts the bridge port of pod in the state disabled, in which it forwards nothing"},
	LinkOffBridge:       {args: "pod", refuse: []refusal{routed}, doc: "takes pod's link out of its bridge"},
	NICOffBridge:        {args: "node", refuse: []refusal{nicAlone}, doc: "takes node's NIC out of its bridge, as systemd-networkd does with a NIC that it manages"},
	StaleFDB:            {args: "pod via", refuse: []refusal{routed, otherNodesPod}, doc: "leaves a forwarding entry of the bridge that leads pod's MAC to the port of the pod that has via"},
	PodsShareMAC:        {args: "pod via", refuse: []refusal{routed, otherNodesPod}, doc: "gives pod's MAC to the pod that has via as well"},
	BridgeNetfilterOff:  {args: "node", refuse: []refusal{noBridgeOn}, doc: "keeps what passes node's bridge from netfilter"},
	GatewayMACPinned:    {args: "node mac?", doc: "pins node's own neighbour entry for its gateway to mac"},
	GatewayTaken:        {args: "node mac?", doc: "has another machine with mac answer node's ARP requests for its gateway, before the gateway does"},

	BridgeWithoutAddress:   {args: "node", refuse: []refusal{noGatewayLink}, doc: "takes the gateway's address from the bridge of node's pods"},
	PodAddressOnNode:       {args: "pod", family: oneFamily, doc: "gives the loopback interface of pod's node pod's address, as a leftover virtual address"},
	PodRouteLocal:          {args: "pod", family: oneFamily, doc: "gives pod's node a route of type local to pod's address, as something that redirects packets to itself leaves behind"},
	PodWithoutAddress:      {args: "pod", family: oneFamily, doc: "takes pod's address from it, and with it the kernel takes its routes"},
	PodDuplicateDetected:   {args: "pod via", family: oneFamily, refuse: []refusal{routed, otherNodesPod, notIPv6}, doc: "adds pod's IPv6 address anew while the pod that has via has it as well, and then takes it from there: the kernel does not use what failed duplicate detection"},
	PodWithoutDefaultRoute: {args: "pod", family: oneFamily, doc: "deletes pod's default route"},
	PodDefaultElsewhere:    {args: "pod", doc: "has the second-interface of pod take its default route, by a gateway that nobody has, as an annotation does"},
	PodWrongPrefix:         {args: "pod", family: oneFamily, refuse: []refusal{routed}, doc: "shortens the prefix of pod's address by eight bits, so that pod looks for others on its link"},
	PodBlackhole:           {args: "pod", doc: "gives pod routes that discard what it sends off its link, as a VPN in pod does while it is not connected"},

	DropForward:        {args: "pod via?", family: oneFamily, doc: "drops what is forwarded to pod, or only what via sends"},
	DropLegacy:         {args: "pod", doc: "drops what is forwarded to pod, by legacy iptables"},
	DropQueued:         {args: "pod", doc: "queues what is forwarded to pod for a program that does not run"},
	DropNFT:            {args: "pod", doc: "drops what is forwarded to pod by a rule of a table of its own, in a chain that another jumps to"},
	DropChains:         {args: "pod", doc: "drops what pod sends, in chains like those of a network policy with a jump for each pod"},
	DropSomeDNS:        {args: "node", doc: "has node drop a tenth of what is sent to UDP port 53"},
	ForwardPolicyDrop:  {args: "node", doc: "sets the policy of node's FORWARD chain to DROP"},
	DropReplies:        {args: "node prefix", doc: "drops what comes from prefix by node's uplink before connection tracking sees it: replies, whose destination is still the node's address"},
	DropMasqueraded:    {args: "node prefix", doc: "drops what leaves for prefix by node's uplink, after it has the node's address"},
	LastHop:            {args: "pod", doc: "has the node give what pod sends a time to live of one"},
	DropProgram:        {args: "pod", doc: "attaches a tc program that drops IPv4 to the ingress of pod's link"},
	DropTCX:            {args: "pod", doc: "attaches a program that drops IPv4 to the ingress of pod's link by tcx"},
	DropXDP:            {args: "pod", doc: "attaches an XDP program that drops IPv4 to pod's link"},
	PolicyUnprogrammed: {args: "pod", family: everyFamily, refuse: []refusal{noCalico}, doc: "takes pod out of Calico's dispatch chains, which drop what they do not know"},
	PolicyDeny:         {args: "pod", family: everyFamily, refuse: []refusal{noPolicies}, doc: "has a network policy of the node's own program allow nothing to pod"},
	PodFirewall:        {args: "pod", family: oneFamily, doc: "drops in pod's own namespace all that arrives there"},
	ProxyGone:          {args: "pod", family: oneFamily, doc: "redirects what pod sends by TCP to a proxy's port in pod, where nobody listens"},

	PodTable:        {args: "pod", refuse: []refusal{oneNIC}, doc: "leads what pod sends to a table of its own, which has a default route by its node's second NIC, as plugins do that give pods addresses of a NIC", ordinary: true},
	PodTableEmpty:   {args: "pod", refuse: []refusal{oneNIC}, doc: "takes the default route from pod's own table"},
	PodTableWrong:   {args: "pod", refuse: []refusal{oneNIC}, doc: "leads what pod sends to a table of the first NIC instead of pod's own, and leaves both whole"},
	PodTableUnruled: {args: "pod", refuse: []refusal{oneNIC}, doc: "deletes the rule that leads what pod sends to its own table"},
	Service:         {args: "pod prefix", family: everyFamily, doc: "makes pod a backend of the service address prefix on its node, as kube-proxy does, beside those that are one already", ordinary: true},
	NodeDNS:         {args: "node", doc: "gives node the address 169.254.20.10 on a link of its own and keeps what is for it from connection tracking, as NodeLocal DNSCache does", ordinary: true},
	LocalDNS:        {args: "node", doc: "gives node 169.254.10.10 and 169.254.10.11 on a link of its own and keeps requests to them from connection tracking, but not replies, as AKS's LocalDNS does", ordinary: true},
	CiliumService:   {args: "node prefix via", refuse: []refusal{noCilium}, doc: "has the tables of node's Cilium lead port 53 of the service address prefix to via", ordinary: true},
	Networkd:        {args: "node", family: everyFamily, doc: "has systemd-networkd manage links of node, which removes routes and rules of others unless it is told not to", ordinary: true},
	PodResolver:     {args: "pod via", family: everyFamily, doc: "gives pod a process whose resolv.conf has the name server via, as kubelet writes it for the cluster's DNS", ordinary: true},
	QueueShaped:     {args: "pod", family: everyFamily, doc: "limits what pod gets and what its node sends to far more than there is, as bandwidth annotations do", ordinary: true},
	ServiceByMaps:   {args: "pod prefix", doc: "makes pod an endpoint of the service address prefix on its node, as kube-proxy does in its mode nftables", ordinary: true},
	EmptyBridge:     {args: "node", family: everyFamily, doc: "gives node a bridge without ports, as the container engine's", ordinary: true},
	SecondInterface: {args: "pod", doc: "gives pod a second interface, in a network of its own on its node", ordinary: true},
	PingDenied:      {args: "pod", family: oneFamily, doc: "drops the echo requests that are forwarded to pod", ordinary: true},
	InvalidDropped:  {args: "node", family: oneFamily, doc: "has node drop what is forwarded and invalid to connection tracking, as kube-proxy does", ordinary: true},

	MissingMasquerade:   {args: "node exclude?", family: oneFamily, refuse: []refusal{oneMasqRule, calicoMasq, pluginExclude}, doc: "takes the MASQUERADE rule from node or, with exclude, excludes that destination from it"},
	MasqueradeAll:       {args: "node", family: oneFamily, refuse: []refusal{pluginMasq}, doc: "takes every exclusion from node's MASQUERADE rule"},
	MasqueradeNFT:       {args: "node", doc: "has node masquerade what its pods send, by a rule of nft's own in a table of the family inet"},
	SNATPorts:           {args: "node", refuse: []refusal{pluginMasq}, doc: "leaves node a handful of ports for what it masquerades"},
	MasqueradeTCP:       {args: "node", refuse: []refusal{pluginMasq}, doc: "has node masquerade nothing but TCP"},
	DeadBackend:         {args: "node prefix via", doc: "has node translate the service address prefix to via, where no pod is"},
	DeadBackendNFT:      {args: "node prefix via", doc: "does as dead-backend, by a rule of nft's own that counts nothing"},
	SelfService:         {args: "pod prefix", doc: "has the node translate the service address prefix to pod also for pod itself, whose source then stays"},
	ForeignSNAT:         {args: "node via", refuse: []refusal{nodesOwn}, doc: "has node give what its pods send off the node the source address via, which it does not have"},
	ServiceUntranslated: {args: "node prefix", doc: "deletes node's rules for the service address prefix, as where kube-proxy is behind"},
	ServiceEndpointless: {args: "node prefix", doc: "takes all endpoints from a service-by-maps: node refuses what is sent to it"},
	ServiceRetired:      {args: "node prefix", doc: "takes a service-by-maps away: node drops what is sent to its address"},
	ConntrackBypassed:   {args: "pod", refuse: []refusal{noKnownMAC}, doc: "has a program at the NIC hand what comes in for pod to it past connection tracking, as one that a former plugin left does"},
	SegmentsBypassed:    {args: "pod", refuse: []refusal{noKnownMAC}, doc: "does as conntrack-bypassed for the TCP segments behind the first of a connection, as an offload of one direction does"},
	Zoned:               {args: "pod", doc: "has the node track what pod sends in a zone of its own, where the other direction is not"},
	Untracked:           {args: "pod", doc: "has the node not track what is sent to pod, and drop what is invalid to connection tracking: pod's replies"},
	ConntrackFull:       {args: "node", doc: "fills node's connection-tracking table with flows that the kernel may not evict; the limit is the whole machine's and stays"},
	ConntrackRace:       {args: "node prefix via", refuse: []refusal{notFewAddresses, viaNoPod}, doc: "has node translate the service addresses of prefix to via and hold the first packets of their flows, as a slow policy daemon does; pods ask all addresses at once from one socket, as some resolvers do"},
	CiliumServiceEmpty:  {args: "node prefix", refuse: []refusal{noCilium}, doc: "leaves port 53 of the service address prefix without a backend in the tables of node's Cilium, which refuses to connect to it"},
	NodeDNSGone:         {args: "node", doc: "leaves node the rules of NodeLocal DNSCache for 169.254.20.10, and takes the address from it"},
	LocalDNSStopped:     {args: "node", doc: "leaves node without the servers of its LocalDNS, from the next start of the traffic on"},
	LoopbackListener:    {args: "pod", family: everyFamily, doc: "has the servers in pod that traffic asks listen at its loopback address alone, from the next start of the traffic on"},
	NoListener:          {args: "pod", family: everyFamily, doc: "leaves pod without the servers that traffic asks, from the next start of the traffic on"},
	DeafServer:          {args: "pod", doc: "has pod's UDP servers read nothing, with the smallest buffer there is, from the next start of the traffic on"},
	PodGone:             {args: "pod", refuse: []refusal{noKnownMAC}, doc: "deletes pod, as its plugin does; nothing of the traffic may be from it"},
	PodHung:             {args: "pod", family: everyFamily, doc: "has pod's servers accept no connection and read no datagram, from the next start of the traffic on"},
}

// NodeLocalDNS is the address that NodeLocal DNSCache has on each node, LocalDNSes are those of AKS's LocalDNS: for the
// node's own requests, and for pods'.
var (
	NodeLocalDNS = netip.AddrFrom4([4]byte{169, 254, 20, 10})
	LocalDNSes   = []netip.Addr{netip.AddrFrom4([4]byte{169, 254, 10, 10}), netip.AddrFrom4([4]byte{169, 254, 10, 11})}
)

// OnEachNode reports whether each node has the address for itself.
func OnEachNode(a netip.Addr) bool { return a == NodeLocalDNS || slices.Contains(LocalDNSes, a) }

// FaultTypes are all faults, sorted by name.
func FaultTypes() []FaultType { return slices.Sorted(maps.Keys(faultRows)) }

// IsOrdinary reports whether the type is a state of many nodes that is no fault. Only tests
// ask, so it is no method: a program keeps those that nothing calls.
func IsOrdinary(t FaultType) bool { return faultRows[t].ordinary }

// Fault is one thing to break. Which fields are set depends on the type.
// Every fault carries what undoing it needs.
type Fault struct {
	Type FaultType
	Node string
	// Pod is "node/pod"; Node is set along with it.
	Pod string
	// Prefix is also what an entry says to exclude.
	Prefix netip.Prefix
	Via    netip.Addr
	MAC    model.MAC
	// Port is the destination's, of TCP and UDP.
	Port uint16 `json:",omitempty"`
	// When is Flowing or Before where the fault changes while traffic flows.
	When string `json:",omitempty"`
	// Family is 6 where the fault strikes IPv6 alone, else 0. A Prefix of IPv6
	// says so too.
	Family int
}

// Flowing faults are made once the traffic flows, those Before it are undone then. What
// connection tracking holds stays, so that clients with one socket go on as they began.
const (
	Flowing = "flowing"
	Before  = "before"
)

// IsIPv6 reports whether the fault strikes IPv6 alone.
func (f Fault) IsIPv6() bool { return f.Family == 6 || f.Prefix.Addr().Is6() }

// String names the fault and what it strikes.
func (f Fault) String() string {
	s := strings.TrimSuffix(string(f.Type)+" "+cmp.Or(f.Pod, f.Node), " ")
	if f.Prefix.IsValid() {
		s += " " + f.Prefix.String()
	}
	if f.Via.IsValid() {
		s += " via " + f.Via.String()
	}
	if f.Port != 0 {
		s += fmt.Sprintf(" port %d", f.Port)
	}
	if f.Family == 6 {
		s += " ip6"
	}
	if !f.MAC.IsZero() {
		s += " " + f.MAC.String()
	}
	if f.When != "" {
		s += " when " + f.When
	}
	return s
}

// StruckRoutes are the routes that a DeleteUDR or WrongUDR fault changes.
func (s *Scenario) StruckRoutes(f Fault) []Route {
	if f.Prefix == (netip.Prefix{}) {
		return s.Routes
	}
	var out []Route
	for _, route := range s.Routes {
		if route.Prefix == f.Prefix {
			out = append(out, route)
		}
	}
	return out
}

// Raced are the further addresses that a request of the flow goes to from the
// same socket, because of a ConntrackRace.
func (s *Scenario) Raced(flow Flow) []netip.Addr {
	node, _, _ := strings.Cut(flow.From.Place, "/")
	var out []netip.Addr
	for _, f := range s.Faults {
		if f.Type != ConntrackRace || f.Node != node || flow.Proto != UDP || !f.Prefix.Contains(flow.To.Addr) {
			continue
		}
		for a := f.Prefix.Masked().Addr(); f.Prefix.Contains(a); a = a.Next() {
			if a != flow.To.Addr {
				out = append(out, a)
			}
		}
	}
	return out
}

// Afflicted reports whether there is a fault of the type at the place.
func (s *Scenario) Afflicted(t FaultType, place string) bool {
	return slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Type == t && f.Pod == place })
}
