package tui

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// noon is when the recorded readings were made.
var noon = time.Date(2026, 1, 2, 12, 4, 7, 0, time.UTC)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// podAddr is the address of the nth pod of a node that is made up.
func podAddr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, byte(1 + n/250), byte(4 + n%250)})
}

// kubenetNode is a node with pods, three faults, a source that is not whole
// and one that is missing.
func kubenetNode(pods int) model.Reading {
	s := &model.Snapshot{
		Node: model.Node{
			Name: "aks-np1-vmss02", Kernel: "6.1.0", Plugin: "kubenet", PluginBy: []string{"10-containerd-net.conflist", "cbr0"},
			Residue: "azure-vnet", Engine: "tc", Attach: "tcx", Uplinks: []string{"eth0"},
		},
		Window: model.Window{Start: noon.Add(-time.Minute), End: noon},
		Sources: []model.Source{
			{Name: model.SourceLinks, Status: model.OK, Detail: "44 links"},
			{Name: model.SourceRoutes, Status: model.OK, Detail: "51 routes"},
			{Name: model.SourceEbtables, Status: model.OK, Detail: "nft: 6 rules; legacy: not in this kernel"},
			{Name: model.SourceConntrack, Status: model.OK, Detail: "812 flows"},
			{Name: model.SourcePods, Status: model.Partial, Detail: "netns of 2 pods: needs SYS_ADMIN"},
			{Name: model.SourceNodes, Status: model.Missing, Detail: "the cluster's nodes are unknown: use --nodes FILE"},
			{Name: model.SourceSysctl, Status: model.OK, Detail: "read"},
			{Name: model.SourceTC, Status: model.OK, Detail: "84 hooks"},
			{Name: model.SourceDrops, Status: model.OK, Detail: "kfree_skb, reasons from BTF"},
		},
		Sysctls: []model.Sysctl{
			{Name: "net.ipv4.ip_forward", Value: "1"}, {Name: "net.ipv4.conf.all.rp_filter", Value: "1"}, {Name: "net.ipv4.conf.veth3f2.rp_filter", Value: "2"},
		},
		Conntrack: model.Conntrack{Count: 812, Max: 262144, InsertFailed: 3},
		Cluster:   model.Cluster{PodCIDRs: []netip.Prefix{prefix("10.244.0.0/16")}},
		Links: []model.Link{
			{Index: 1, Name: "lo", MTU: 65536, Up: true, Carrier: true},
			{Index: 2, Name: "eth0", MAC: model.MAC{0, 0x0d, 0x3a, 1, 2, 3}, MTU: 1500, Up: true, Carrier: true, Role: model.RoleUplink, Addresses: []netip.Prefix{prefix("10.240.0.5/16")}},
			{Index: 3, Name: "cbr0", MAC: model.MAC{0x0a, 0x58, 10, 244, 1, 1}, MTU: 1500, Up: true, Carrier: true, Role: model.RoleBridge, Addresses: []netip.Prefix{prefix("10.244.1.1/24")}},
		},
	}
	apps := []string{"cart-7d9f", "payments-6c4b", "ledger-0", "web-5f6d8", "search-77b9c"}
	spaces := []string{"shop", "shop", "bank", "front", "front"}
	r := model.Reading{At: noon, Snapshot: s, Drops: []float64{0, 0, 3, 40, 87, 91, 87}}
	for i := range pods {
		a := podAddr(i)
		mac := model.MAC{0x0a, 0x58, 10, 244, 1, byte(i)}
		link := fmt.Sprintf("veth%04x", 0x3f2+i*7)
		name := apps[i%len(apps)]
		if i >= len(apps) {
			name = fmt.Sprintf("%s-%02d", name, i)
		}
		s.Pods = append(s.Pods, model.Pod{
			Namespace: spaces[i%len(spaces)], Name: name, Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)}, MAC: mac,
			Interface: "eth0", Link: link, LinkIndex: 10 + i, Netns: uint32(4026532000 + i), Up: true, Since: noon.Add(-time.Hour),
		})
		s.Links = append(s.Links, model.Link{Index: 10 + i, Name: link, Kind: "veth", MAC: mac, MTU: 1500, Up: true, Carrier: i != 7, Master: 3, Role: model.RolePodLink})
		n := uint64(412 + 97*i%1900)
		s.Traffic.Hops = append(s.Traffic.Hops,
			model.HopCount{Addr: a, IfIndex: 10 + i, Link: link, Direction: model.Ingress, Side: model.AsSource, Packets: n, Bytes: n * 90},
			model.HopCount{Addr: a, IfIndex: 2, Link: "eth0", Direction: model.Egress, Side: model.AsSource, Packets: n, Bytes: n * 90},
			model.HopCount{Addr: a, IfIndex: 10 + i, Link: link, Direction: model.Egress, Side: model.AsDestination, Packets: n / 2, Bytes: n * 45},
		)
	}
	s.PastPods = []model.Pod{{
		Namespace: "batch", Name: "import-28711", Addresses: []netip.Prefix{prefix("10.244.1.240/24")}, Link: "veth0bad",
		Since: noon.Add(-50 * time.Second), Until: noon.Add(-20 * time.Second),
	}}
	s.Traffic.Peers = []model.Peer{
		{Local: podAddr(0), Remote: addr("10.244.3.21"), IfIndex: 2, Link: "eth0", Out: model.PeerCount{Packets: 412, Requests: 412}},
		{Local: podAddr(0), Remote: addr("10.240.0.9"), IfIndex: 2, Link: "eth0", Out: model.PeerCount{Packets: 60}, In: model.PeerCount{Packets: 58, Replies: 58}},
	}
	s.Traffic.Drops = []model.Drop{
		{Src: addr("10.240.0.9"), Dst: podAddr(2), Proto: 6, Reason: "OTHERHOST", Location: "ip_rcv_core", IfIndex: 12, Link: "veth0400", Packets: 377, First: noon.Add(-3 * time.Minute), Last: noon.Add(-time.Second)},
		{Src: podAddr(3), Dst: addr("10.244.1.9"), Proto: 17, Reason: "NETFILTER_DROP", Location: "nf_hook_slow", IfIndex: 13, Link: "veth0407", Packets: 12, Last: noon.Add(-30 * time.Second)},
	}
	s.Traffic.Samples = []model.Sample{
		{Time: noon.Add(-40 * time.Second), Reason: "OTHERHOST", Location: "ip_rcv_core", Link: "veth0400", Src: addr("10.240.0.9"), Dst: podAddr(2), Protocol: 0x0800, Length: 60, Count: 1},
	}
	s.Traffic.MACs = []model.MACPair{{Addr: podAddr(0), IfIndex: 2, Link: "eth0", Direction: model.Egress, Side: model.AsSource, Src: model.MAC{0, 0x0d, 0x3a, 1, 2, 3}, Dst: model.MAC{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}, Packets: 412}}
	r.Findings = kubenetFindings(min(pods, 14))
	return r
}

// kubenetFindings are the faults of that node.
func kubenetFindings(pods int) []model.Tracked {
	var first, all []netip.Addr
	for i := range pods {
		all = append(all, podAddr(i))
		if i < 6 {
			first = append(first, podAddr(i))
		}
	}
	missing := model.Finding{
		Code: "MissingUDR", Severity: model.Critical, Confidence: model.Likely, Pods: first, Peers: []netip.Prefix{prefix("10.244.3.0/24")},
		LastHopAlive: model.Place{Link: "eth0", Role: model.RoleUplink, Direction: model.Egress}, Title: "no route to 10.244.3.0/24",
		Why: "Packets from pods to this range leave eth0 with the correct source and next hop, but there is no reply. No packets are dropped on this node. Other targets reply in the same window. So the fabric has no route to this range.",
		Evidence: []model.Evidence{
			{Source: "tc", Text: "eth0 egress: 4821 packets (412 requests) from 6 pods to 1 address of 10.244.3.0/24; ingress: no reply"},
			{Source: "conntrack", Text: "37 flows from pods to this range: UNREPLIED"},
			{Source: "tc", Text: "replies come from 10.244.2.0/24"},
		},
		Unseen:       []string{"the route table itself: a node cannot see its routes"},
		Alternatives: []string{"a network security group drops the pods' addresses", "a NIC does not forward (IP forwarding off)", "the other node or its pods are down"},
		Fix: []string{
			"az network route-table route create --resource-group <group> --route-table-name <table> --name aks-np1-vmss04 --address-prefix 10.244.3.0/24 --next-hop-type VirtualAppliance --next-hop-ip-address 10.240.0.7",
			"az network vnet subnet update --resource-group <group> --vnet-name <vnet> --name <subnet> --route-table <table>",
		},
		Verify: "lasthop check --only MissingUDR", Packets: 4821,
	}
	stale := model.Finding{
		Code: "StaleMACRewrite", Severity: model.Critical, Confidence: model.Proven, Pods: all[min(2, len(all)-1):min(3, len(all))], Peers: []netip.Prefix{prefix("10.240.0.9/32")},
		LastHopAlive: model.Place{Link: "azure0", Role: model.RoleBridge, Direction: model.Ingress}, Title: "stale MAC for 10.240.0.32",
		Why:      "An ebtables rule sets the destination MAC of frames for 10.240.0.32 to a2:96:88:20:cb:c6; nobody on this node has it.",
		Evidence: []model.Evidence{{Source: "ebtables", Text: "nat PREROUTING rule 1 (nft): counted 377 frames in the window"}},
		Fix:      []string{"ebtables-nft -t nat -D PREROUTING -p IPv4 -i eth0 --ip-dst 10.240.0.32 -j dnat --to-dst a2:96:88:20:cb:c6"},
		Verify:   "lasthop check --only StaleMACRewrite", Packets: 377,
	}
	masquerade := model.Finding{
		Code: "UnexpectedMasquerade", Severity: model.Warning, Confidence: model.Proven, Pods: all, Peers: []netip.Prefix{prefix("10.244.0.0/16")},
		LastHopAlive: model.Place{Link: "cbr0", Role: model.RoleBridge, Direction: model.Ingress}, Title: "pod traffic is masqueraded",
		Why: "Rule 3 of nat POSTROUTING masquerades traffic between pods.", Fix: []string{"iptables -t nat -I POSTROUTING 1 -d 10.244.0.0/16 -j RETURN"},
	}
	return []model.Tracked{
		{Finding: missing, First: noon.Add(-12 * time.Minute), Last: noon},
		{Finding: stale, First: noon.Add(-3 * time.Minute), Last: noon},
		{Finding: masquerade, First: noon.Add(-70 * time.Minute), Last: noon},
		{
			Finding: model.Finding{Code: "UnansweredARP", Severity: model.Warning, Confidence: model.Likely, Pods: all[:1], Title: "no ARP reply for 10.244.1.1",
				LastHopAlive: model.Place{Link: "veth03f2", Role: model.RolePodLink, Direction: model.Ingress}},
			First: noon.Add(-40 * time.Minute), Last: noon.Add(-31 * time.Minute), Closed: true,
		},
	}
}

// kubenetPath is what the tables of that node do with a pod's packets.
func kubenetPath(_ model.Reading, findings []model.Finding, pod, to netip.Addr) model.Path {
	n := model.Counted
	p := model.Path{Pod: pod, To: to, Port: 8443, Proto: 6, Pair: to == addr("10.244.3.21")}
	same := func(number int, kind model.HopKind, link, decision string, rules ...string) model.PathHop {
		return model.PathHop{N: number, Kind: kind, Link: link, In: n(412), Out: n(412), Lost: n(0), Decision: decision, Rules: rules}
	}
	p.Forward = []model.PathHop{
		same(1, model.HopPod, "eth0", "default via 10.244.1.1", "default via 10.244.1.1 dev eth0", "10.244.1.1 dev eth0 lladdr 0a:58:0a:f4:01:01 REACHABLE"),
		same(2, model.HopLink, "veth03f2", "up, rp_filter 2"),
		same(3, model.HopBridge, "cbr0", "accept", "ebtables filter AKS-DEDUP-PROMISC 1: -p IPv4 -s 0a:58:0a:f4:01:01 -o veth+ --ip-src 10.244.1.1 -j ACCEPT"),
		same(4, model.HopConntrack, "", "no SNAT", "nat IP-MASQ-AGENT 1: -d 10.0.0.0/8 -j RETURN"),
		same(5, model.HopPolicy, "", "accept (rule 14)", "filter FORWARD 14: -j ACCEPT"),
		same(6, model.HopRoute, "", "via 10.240.0.1 dev eth0", "default via 10.240.0.1 dev eth0 proto dhcp"),
		{N: 7, Kind: model.HopLink, Role: model.RoleUplink, Link: "eth0", In: n(412), Out: n(412), Lost: n(0), Decision: "no SYN-ACK, no ICMP"},
		{N: 8, Kind: model.HopBeyond, Decision: "not visible from this node"},
	}
	for _, f := range findings {
		if f.Code == "MissingUDR" && len(f.Peers) > 0 && f.Peers[0].Contains(to) {
			hop := &p.Forward[6]
			hop.Out, hop.Lost, hop.Dead, hop.Finding = n(0), n(412), true, f.Code
		}
	}
	p.Return = []model.PathHop{
		{N: 1, Kind: model.HopLink, Role: model.RoleUplink, Link: "eth0", In: n(0), Out: n(0), Lost: n(0), Decision: "nothing arrives"},
		{N: 2, Kind: model.HopConntrack, Decision: "no flow is translated"},
		{N: 3, Kind: model.HopRoute, Decision: "10.244.1.0/24 dev cbr0"},
		{N: 4, Kind: model.HopBridge, Link: "cbr0", Decision: "known MAC"},
		{N: 5, Kind: model.HopPod, Link: "eth0", In: n(0), Out: model.Count{}, Lost: model.Count{}, Decision: "deliver"},
	}
	return p
}

// canned is a Source that has what it was given and notes what it is asked.
type canned struct {
	readings chan model.Reading
	asked    chan string
}

func newCanned(readings ...model.Reading) *canned {
	c := &canned{readings: make(chan model.Reading, len(readings)+1), asked: make(chan string, 100)}
	for _, r := range readings {
		c.readings <- r
	}
	return c
}

func (c *canned) Readings() <-chan model.Reading { return c.readings }
func (c *canned) SetWindow(d time.Duration)      { c.asked <- "window " + d.String() }
func (c *canned) Rescan()                        { c.asked <- "rescan" }
func (c *canned) Reset()                         { c.asked <- "reset" }

// tape is a canned Source that replays.
type tape struct{ *canned }

func (t tape) Step(n int)           { t.asked <- fmt.Sprintf("step %d", n) }
func (t tape) Seek(d time.Duration) { t.asked <- "seek " + d.String() }
func (t tape) Span() (first, last time.Time) {
	return noon.Add(-time.Minute), noon.Add(time.Minute)
}
func (t tape) Speed(f float64) { t.asked <- fmt.Sprintf("speed %g", f) }

// whoReaches is a map in which one node's pods are not reached, one pod reaches nobody, and of a
// third some packets were not counted.
func whoReaches(r model.Reading) model.Matrix {
	m := model.Matrix{Columns: []model.Destination{{Kind: model.ToPods}}}
	for i := range 9 {
		m.Columns = append(m.Columns, model.Destination{Kind: model.ToNode, Name: fmt.Sprintf("aks-np1-vmss%02d", 10-i)})
	}
	for _, k := range []model.DestinationKind{model.ToServices, model.ToDNS, model.ToNetwork, model.ToInternet} {
		m.Columns = append(m.Columns, model.Destination{Kind: k})
	}
	for i := range r.Snapshot.Pods {
		row := model.MatrixRow{Pod: podAddr(i), Whole: i != 5}
		for j, c := range m.Columns {
			reach := model.ReachWell
			switch {
			case i == 0:
				reach = model.ReachDead
			case j == 1:
				reach = model.ReachOneWay
			case (i+j)%7 == 0:
				row.Cells = append(row.Cells, nil)
				continue
			case c.Kind == model.ToNetwork:
				reach = []model.Reach{model.ReachSilent, model.ReachUnclear, model.ReachWell}[i%3]
			}
			peer := netip.AddrFrom4([4]byte{10, 244, byte(10 + j), byte(20 + i)})
			cell := &model.MatrixCell{Reach: reach, Pairs: []model.MatrixPair{{Pod: row.Pod, Peer: peer, Reach: reach, Sent: uint64(40 + i), Lost: uint64(j)}}}
			row.Cells, row.Reach = append(row.Cells, cell), row.Reach.Join(reach)
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}
