package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/growth"
	"github.com/lasthop/lasthop/probe/ledger"
	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

// The node of the tests: an uplink, a bridge or none, and pods behind links.
const (
	uplink = 2
	bridge = 3
	nodeNS = 100
)

var (
	node  = netip.MustParseAddr("10.0.0.4")
	far   = netip.MustParseAddr("198.51.100.7")
	peer  = netip.MustParseAddr("10.9.0.8")
	vip   = netip.MustParseAddr("10.96.0.10")
	gwMAC = model.MAC{2, 0, 0, 0, 0, 1}
	start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

func pod(i int) netip.Addr    { return netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}) }
func podLink(i int) int       { return 10 + i }
func podMAC(i int) model.MAC  { return model.MAC{2, 1, 0, 0, 0, byte(i)} }
func podNS(i int) uint32      { return uint32(200 + i) }
func owner(a netip.Addr) int  { return int(a.As4()[3]) }
func isPod(a netip.Addr) bool { return a.Is4() && a.As4()[1] == 1 && a.As4()[0] == 10 }

// world is a snapshot that is written packet by packet.
type world struct {
	*model.Snapshot
	causes []model.DropCause
	hops   map[model.HopCount]*[3]uint64 // packets, inner, outer
	macs   map[model.MACPair]uint64
	in     map[netip.Addr]uint64 // to the node, by remote
}

func newWorld(pods int) *world {
	w := &world{
		Snapshot: &model.Snapshot{
			Node:   model.Node{Netns: nodeNS, Plugin: "kindnet"},
			Window: model.Window{Start: start, End: start.Add(10 * time.Second)},
			Links: []model.Link{
				{Index: uplink, Name: "up0", Role: model.RoleUplink, Addresses: []netip.Prefix{netip.PrefixFrom(node, 24)}},
				{Index: bridge, Name: "br0", Role: model.RoleBridge, Kind: "bridge"},
			},
		},
		hops: map[model.HopCount]*[3]uint64{}, macs: map[model.MACPair]uint64{}, in: map[netip.Addr]uint64{},
	}
	for i := 1; i <= pods; i++ {
		name := fmt.Sprintf("pod%d", i)
		w.Links = append(w.Links, model.Link{Index: podLink(i), Name: name, Role: model.RolePodLink})
		w.Pods = append(w.Pods, model.Pod{
			Addresses: []netip.Prefix{netip.PrefixFrom(pod(i), 24)}, MAC: podMAC(i), Link: name, LinkIndex: podLink(i),
			Netns: podNS(i), Since: start, Until: start.Add(10 * time.Second),
		})
	}
	for _, src := range []string{model.SourceTC, model.SourceDrops, model.SourceConntrack, model.SourcePrograms} {
		w.Sources = append(w.Sources, model.Source{Name: src, Status: model.OK})
	}
	return w
}

// at counts n packets at a link as the programs do. from is the link that an
// egress packet came in by.
func (w *world) at(link int, d model.Direction, src, dst netip.Addr, mac model.MAC, from int, n uint64) {
	for side, a := range map[model.Side]netip.Addr{model.AsSource: src, model.AsDestination: dst} {
		if !isPod(a) && a != node {
			continue
		}
		k := model.HopCount{Addr: a, IfIndex: link, Direction: d, Side: side}
		if w.hops[k] == nil {
			w.hops[k] = &[3]uint64{}
		}
		w.hops[k][0] += n
		if d == model.Egress && from == uplink {
			w.hops[k][2] += n
		} else if d == model.Egress && from != 0 {
			w.hops[k][1] += n
		}
		w.macs[model.MACPair{Addr: a, IfIndex: link, Direction: d, Side: side, Dst: mac}] += n
	}
	if link == uplink && d == model.Ingress && dst == node {
		w.in[src] += n
	}
}

// enter and leave are the hooks of a pod's link, arrive and depart those of the
// uplink.
func (w *world) enter(src, dst netip.Addr, n uint64) {
	w.at(podLink(owner(src)), model.Ingress, src, dst, gwMAC, 0, n)
}

func (w *world) leave(src, dst netip.Addr, from int, n uint64) {
	w.at(podLink(owner(dst)), model.Egress, src, dst, podMAC(owner(dst)), from, n)
}

func (w *world) arrive(src, dst netip.Addr, n uint64) {
	w.at(uplink, model.Ingress, src, dst, gwMAC, 0, n)
}

func (w *world) depart(src, dst netip.Addr, from int, n uint64) {
	w.at(uplink, model.Egress, src, dst, gwMAC, from, n)
}

func (w *world) drop(d model.Drop, cause model.DropCause) {
	if d.Netns == 0 {
		d.Netns = nodeNS
	}
	w.Traffic.Drops = append(w.Traffic.Drops, d)
	w.causes = append(w.causes, cause)
}

// flow is an entry of connection tracking: the first packet's ends, and those
// of the reply.
func (w *world) flow(src, dst, back, to netip.Addr) {
	w.Flows = append(w.Flows, model.Flow{Proto: 17, Original: model.Tuple{Src: src, Dst: dst}, Reply: model.Tuple{Src: back, Dst: to}})
}

// read writes what was counted so far into a reading.
func (w *world) read(t *model.Traffic) {
	t.Hops, t.MACs, t.Peers = nil, nil, nil
	for k, n := range w.hops {
		k.Packets, k.FromInside, k.FromUplink = n[0], n[1], n[2]
		t.Hops = append(t.Hops, k)
	}
	for k, n := range w.macs {
		k.Packets = n
		t.MACs = append(t.MACs, k)
	}
	for remote, n := range w.in {
		t.Peers = append(t.Peers, model.Peer{Local: node, Remote: remote, IfIndex: uplink, In: model.PeerCount{Packets: n}})
	}
}

func (w *world) rows() map[string]model.LedgerRow {
	w.read(&w.Traffic)
	out := map[string]model.LedgerRow{}
	for _, r := range ledger.Balance(w.Snapshot, w.causes) {
		out[r.Addrs[0].String()+" "+string(r.Direction)] = r
	}
	return out
}

// text is a row in a line: in = out + dropped + unexplained, and the parts.
func text(r model.LedgerRow) string {
	count := func(c model.Count) string {
		if !c.Known {
			return "?"
		}
		return fmt.Sprint(c.N)
	}
	u := count(r.Unexplained())
	if u == "?" {
		u = fmt.Sprintf("(%d..%s)", r.Least, count(r.Most))
	}
	s := fmt.Sprintf("%s = %s + %d + %s", count(r.In), count(r.Out), r.Dropped, u)
	for _, p := range r.Parts {
		s += fmt.Sprintf(" %s %d", p.Place, p.Packets)
	}
	for _, d := range r.Drops {
		s += fmt.Sprintf(" %s/%s %d", d.Reason, d.Code, d.Packets)
	}
	if r.Edge > 0 {
		s += fmt.Sprintf(" edge %d", r.Edge)
	}
	return s
}

func TestBalance(t *testing.T) {
	p, q := pod(1), pod(2)
	policy := model.DropCause{Code: "PolicyDrop"}
	expected := model.DropCause{Ordinary: loss.ByDesign}
	tests := []struct {
		name     string
		build    func(*world)
		from, to string // of pod 1
		why      string // of either
	}{
		{name: "nothing", from: "0 = 0 + 0 + 0", to: "0 = 0 + 0 + 0"},
		{name: "raw both ways", build: func(w *world) {
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 9)
			w.arrive(peer, p, 7)
			w.leave(peer, p, uplink, 7)
		}, from: "9 = 9 + 0 + 0 outside 9", to: "7 = 7 + 0 + 0 outside 7"},
		{name: "silent loss", build: func(w *world) {
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 5)
			w.arrive(peer, p, 7)
			w.leave(peer, p, uplink, 6)
		}, from: "9 = 5 + 0 + 4 outside 5", to: "7 = 6 + 0 + 1 outside 7"},
		{name: "pods and the node", build: func(w *world) {
			w.enter(p, q, 5)
			w.leave(p, q, podLink(1), 5)
			w.enter(q, p, 4)
			w.leave(q, p, podLink(2), 4)
			w.enter(p, node, 3)
			w.leave(node, p, 0, 2)
		}, from: "8 = 8 + 0 + 0 pods 5 node 3", to: "6 = 6 + 0 + 0 pods 4 node 2"},
		{name: "masqueraded with another's and the node's", build: func(w *world) {
			w.enter(p, far, 5)
			w.enter(q, far, 6)
			w.depart(node, far, podLink(1), 5)
			w.depart(node, far, podLink(2), 6)
			w.depart(node, far, 0, 50)
			w.flow(p, far, far, node)
			w.flow(q, far, far, node)
			w.arrive(far, node, 9)
			w.leave(far, p, uplink, 4)
			w.leave(far, q, uplink, 5)
		}, from: "5 = 5 + 0 + 0 translated 5", to: "4 = 4 + 0 + 0 translated 4"},
		{name: "masqueraded and one of two lost", build: func(w *world) {
			w.enter(p, far, 5)
			w.enter(q, far, 6)
			w.depart(node, far, podLink(1), 8)
			w.flow(p, far, far, node)
		}, from: "5 = ? + 0 + (0..3)", to: "0 = 0 + 0 + 0", why: "3 packets of all of them are missing"},
		{name: "masqueraded and lost alone", build: func(w *world) {
			w.enter(p, far, 5)
			w.depart(node, far, podLink(1), 3)
			w.flow(p, far, far, node)
		}, from: "5 = 3 + 0 + 2 translated 3", to: "0 = 0 + 0 + 0", why: "dropped after translation"},
		{name: "answers for the node besides", build: func(w *world) {
			w.flow(p, far, far, node)
			w.arrive(far, node, 9)
			w.leave(far, p, uplink, 4)
		}, from: "0 = 0 + 0 + 0", to: "? = 4 + 0 + (0..5)", why: "may have been for the pod"},
		{name: "more than came", build: func(w *world) { w.leave(far, p, uplink, 4) },
			from: "0 = 0 + 0 + 0", to: "? = 4 + 0 + (0..?)", why: "no longer lists"},
		{name: "service of a pod here", build: func(w *world) {
			w.flow(p, vip, q, p)
			w.enter(p, vip, 5)
			w.leave(p, q, podLink(1), 5)
			w.enter(q, p, 4)
			w.at(podLink(1), model.Egress, vip, p, podMAC(1), podLink(2), 4)
			w.enter(p, q, 3)
			w.leave(p, q, podLink(1), 3)
		}, from: "8 = 8 + 0 + 0 pods 8", to: "4 = 4 + 0 + 0 pods 4"},
		{name: "serves a service to a pod here", build: func(w *world) {
			w.flow(q, vip, p, q)
			w.enter(q, vip, 5)
			w.leave(q, p, podLink(2), 5)
			w.enter(p, q, 4)
			w.at(podLink(2), model.Egress, vip, q, podMAC(2), podLink(1), 4)
			w.enter(q, p, 3)
			w.leave(q, p, podLink(2), 3)
		}, from: "4 = 4 + 0 + 0 translated 4", to: "8 = 8 + 0 + 0 pods 3 translated 5"},
		{name: "node port", build: func(w *world) {
			w.flow(far, node, p, node)
			w.arrive(far, node, 5)
			w.leave(node, p, uplink, 5)
			w.enter(p, node, 4)
			w.depart(node, far, podLink(1), 4)
		}, from: "4 = ? + 0 + (0..4) node 4", to: "5 = 5 + 0 + 0 translated 5", why: "are translated and forwarded"},
		{name: "translated to nobody known", build: func(w *world) {
			w.flow(p, far, far, netip.MustParseAddr("203.0.113.9"))
			w.enter(p, far, 5)
		}, from: "5 = ? + 0 + (0..5)", to: "? = 0 + 0 + (0..?)", why: "neither the pod's nor the node's"},
		{name: "a service that the node itself serves", build: func(w *world) {
			w.flow(p, vip, node, p)
			w.enter(p, vip, 5)
			w.leave(vip, p, 0, 4)
		}, from: "5 = ? + 0 + (0..5)", to: "4 = 4 + 0 + 0 node 4", why: "translated to the node's own"},
		{name: "diverted to another", build: func(w *world) {
			w.flow(peer, p, q, peer)
			w.arrive(peer, p, 5)
			w.leave(peer, q, uplink, 5)
		}, from: "0 = 0 + 0 + 0", to: "? = 0 + 0 + (0..?) outside 5", why: "translated to another"},
		{name: "dropped by a rule", build: func(w *world) {
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 5)
			w.drop(model.Drop{Src: p, Dst: peer, Reason: "NETFILTER_DROP", IfIndex: podLink(1), Packets: 4}, policy)
			w.arrive(peer, p, 3)
			w.drop(model.Drop{Src: peer, Dst: p, Reason: "NETFILTER_DROP", IfIndex: uplink, Packets: 3}, policy)
		}, from: "9 = 5 + 4 + 0 outside 5 NETFILTER_DROP/PolicyDrop 4", to: "3 = 0 + 3 + 0 outside 3 NETFILTER_DROP/PolicyDrop 3"},
		{name: "dropped behind the hook", build: func(w *world) {
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 9)
			w.drop(model.Drop{Src: p, Dst: peer, Reason: "QDISC_DROP", Location: "__dev_queue_xmit", IfIndex: uplink, Packets: 4}, model.DropCause{})
			w.leave(node, p, 0, 3)
			w.drop(model.Drop{Src: node, Dst: p, Reason: "QDISC_DROP", Location: "__dev_queue_xmit", IfIndex: podLink(1), Packets: 3}, model.DropCause{})
		}, from: "9 = 5 + 4 + 0 outside 5 QDISC_DROP/ 4", to: "3 = 0 + 3 + 0 node 3 QDISC_DROP/ 3"},
		{name: "dropped where no row counts it", build: func(w *world) {
			w.enter(p, q, 9)
			w.leave(p, q, podLink(1), 9)
			w.enter(p, node, 2)
			w.drop(model.Drop{Src: p, Dst: q, Reason: "NO_SOCKET", Netns: podNS(2), IfIndex: 7, Packets: 4}, model.DropCause{Code: "NoListener"})
			w.drop(model.Drop{Src: p, Dst: peer, Reason: "NETFILTER_DROP", Netns: podNS(1), Packets: 3}, model.DropCause{})
			w.drop(model.Drop{Src: p, Dst: node, Reason: "QUEUE_PURGE", Packets: 1}, expected)
			w.drop(model.Drop{Src: p, Dst: q, Reason: "CPU_BACKLOG", IfIndex: podLink(1), Packets: 1}, model.DropCause{})
			w.drop(model.Drop{Src: p, Dst: q, Reason: "NOT_SPECIFIED", Location: "do_xdp_generic", IfIndex: podLink(1), Packets: 1}, model.DropCause{})
		}, from: "11 = 11 + 0 + 0 pods 9 node 2", to: "0 = 0 + 0 + 0"},
		{name: "dropped by the node's own rule", build: func(w *world) {
			w.enter(p, node, 9)
			w.drop(model.Drop{Src: p, Dst: node, Reason: "NETFILTER_DROP", IfIndex: podLink(1), Packets: 4}, policy)
			w.drop(model.Drop{Src: node, Dst: p, Reason: "NETFILTER_DROP", Packets: 2}, policy)
		}, from: "9 = 5 + 4 + 0 node 5 NETFILTER_DROP/PolicyDrop 4", to: "2 = 0 + 2 + 0 node 2 NETFILTER_DROP/PolicyDrop 2"},
		{name: "a ban is by design", build: func(w *world) {
			w.enter(p, far, 4)
			w.drop(model.Drop{Src: p, Dst: far, Reason: "NETFILTER_DROP", IfIndex: podLink(1), Packets: 4}, expected)
		}, from: "4 = 0 + 4 + 0 NETFILTER_DROP/ 4", to: "0 = 0 + 0 + 0"},
		{name: "for a pod that went away", build: func(w *world) {
			w.PastPods = append(w.PastPods, model.Pod{Addresses: []netip.Prefix{netip.PrefixFrom(pod(9), 24)}, LinkIndex: podLink(9), Netns: podNS(9)})
			w.enter(p, pod(9), 4)
			w.drop(model.Drop{Src: p, Dst: pod(9), Reason: "IP_INNOROUTES", Location: "ip_error", IfIndex: podLink(1), Packets: 4}, expected)
		}, from: "4 = 0 + 4 + 0 IP_INNOROUTES/ 4", to: "0 = 0 + 0 + 0"},
		{name: "a bridge floods, and the packets arrive", build: func(w *world) {
			w.bridged()
			w.enter(p, q, 9)
			w.leave(p, q, podLink(1), 9)
			w.at(podLink(3), model.Egress, p, q, podMAC(2), podLink(1), 4)
			w.at(uplink, model.Egress, p, q, podMAC(2), podLink(1), 4)
			w.drop(model.Drop{Src: p, Dst: q, Reason: "OTHERHOST", Netns: podNS(3), IfIndex: 7, Packets: 4}, expected)
			w.drop(model.Drop{Src: p, Dst: q, Reason: "OTHERHOST", IfIndex: bridge, Packets: 9}, expected)
		}, from: "9 = 9 + 0 + 0 pods 9", to: "0 = 0 + 0 + 0"},
		{name: "a bridge floods what nobody has", build: func(w *world) {
			w.bridged()
			stale := model.MAC{2, 9, 9, 9, 9, 9}
			w.enter(p, q, 9)
			for i := 2; i <= 3; i++ {
				w.at(podLink(i), model.Egress, p, q, stale, podLink(1), 9)
				w.drop(model.Drop{Src: p, Dst: q, Reason: "OTHERHOST", Netns: podNS(i), IfIndex: 7, Packets: 9}, model.DropCause{Code: "StaleARPReply"})
			}
		}, from: "9 = 0 + 9 + 0 OTHERHOST/StaleARPReply 9", to: "0 = 0 + 0 + 0"},
		{name: "reflected with a MAC that nobody has", build: func(w *world) {
			w.arrive(peer, p, 9)
			w.at(uplink, model.Egress, peer, p, model.MAC{2, 9, 9, 9, 9, 9}, uplink, 9)
		}, from: "0 = 0 + 0 + 0", to: "9 = 9 + 0 + 0 outside 9"},
		{name: "round by the fabric", build: func(w *world) {
			w.enter(p, q, 9)
			w.depart(p, q, podLink(1), 9)
			w.arrive(p, q, 9)
			w.leave(p, q, uplink, 9)
			w.depart(node, p, 0, 5)
			w.arrive(node, p, 5)
			w.leave(node, p, uplink, 5)
		}, from: "18 = 18 + 0 + 0 outside 9 pods 9", to: "10 = 10 + 0 + 0 outside 5 node 5"},
		{name: "multicast", build: func(w *world) {
			w.at(podLink(1), model.Ingress, p, netip.MustParseAddr("224.0.0.251"), model.MAC{1, 0, 0x5e, 0, 0, 0xfb}, 0, 6)
			w.at(podLink(2), model.Egress, p, netip.MustParseAddr("224.0.0.251"), model.MAC{1, 0, 0x5e, 0, 0, 0xfb}, podLink(1), 6)
		}, from: "6 = 6 + 0 + 0 groups 6", to: "0 = 0 + 0 + 0"},
		{name: "came within the window", build: func(w *world) {
			w.Pods[0].Since = start.Add(time.Second)
			w.enter(p, peer, 9)
		}, from: "9 = ? + 0 + (0..?)", to: "? = 0 + 0 + (0..?)", why: "started or ended"},
		{name: "an address twice", build: func(w *world) {
			w.Pods[1].Addresses = w.Pods[0].Addresses
			w.enter(p, peer, 9)
		}, from: "", to: "", why: "another pod has the same address"},
		{name: "programs that redirect", build: func(w *world) {
			w.Programs = []model.Program{{Kind: model.ProgramTCX, IfIndex: uplink, Direction: model.Ingress, Netns: w.Node.Netns}}
			w.arrive(peer, p, 9)
		}, from: "0 = 0 + 0 + 0", to: "? = 0 + 0 + (0..9) outside 9", why: "past other links' hooks"},
		{name: "programs unread", build: func(w *world) {
			w.Sources[3].Status = model.Partial
			w.arrive(peer, p, 9)
		}, from: "0 = 0 + 0 + 0", to: "? = 0 + 0 + (0..9) outside 9", why: "not all BPF programs"},
		{name: "a program where packets leave", build: func(w *world) {
			w.Programs = []model.Program{{Kind: model.ProgramTCX, IfIndex: uplink, Direction: model.Egress, Netns: w.Node.Netns}}
			w.arrive(peer, p, 9)
		}, from: "0 = 0 + 0 + 0", to: "9 = 0 + 0 + 9 outside 9"},
		{name: "lost by the probe", build: func(w *world) {
			w.Traffic.Lost.Counters = 1
			w.enter(p, peer, 9)
		}, from: "9 = ? + 0 + (0..10)", to: "? = 0 + 0 + (0..1)", why: "could not count all packets"},
		{name: "packets of another pod lost by the probe", build: func(w *world) {
			w.Traffic.Lost = model.Lost{Counters: 60, MACs: 5, Others: 10, Addrs: []model.AddrLoss{{Addr: pod(2), Hops: 30, Peers: 10, Drops: 10, MACs: 5}}}
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 8)
		}, from: "9 = 8 + 0 + 1 outside 8", to: "0 = 0 + 0 + 0"},
		{name: "packets of the pod lost by the probe", build: func(w *world) {
			w.Traffic.Lost = model.Lost{Counters: 3, MACs: 2, Addrs: []model.AddrLoss{{Addr: p, Hops: 2, Drops: 1, MACs: 2}}}
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 9)
		}, from: "9 = ? + 0 + (0..5) outside 9", to: "? = 0 + 0 + (0..5)", why: "could not count all packets"},
		{name: "drops of several far ends", build: func(w *world) {
			w.enter(p, peer, 9)
			w.Traffic.Drops = []model.Drop{
				{Src: p, Range: netip.MustParsePrefix("10.9.0.0/24"), Reason: "IP_INNOROUTES", Netns: nodeNS, Packets: 5},
				{Src: p, Range: netip.MustParsePrefix("0.0.0.0/0"), Reason: "IP_INNOROUTES", Netns: nodeNS, Packets: 4},
			}
		}, from: "9 = 0 + 9 + 0 IP_INNOROUTES/ 9", to: "0 = 0 + 0 + 0"},
		{name: "others kept the probe from counting", build: func(w *world) {
			w.Traffic.Lost.Gaps = 1
			w.enter(p, peer, 9)
		}, from: "9 = ? + 0 + (0..?)", to: "? = 0 + 0 + (0..?)", why: "not every link"},
		{name: "malformed packets are not lost by the probe", build: func(w *world) {
			w.Traffic.Lost.Malformed = 1
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 9)
		}, from: "9 = 9 + 0 + 0 outside 9", to: "0 = 0 + 0 + 0"},
		{name: "an address of the node that is not counted", build: func(w *world) {
			w.Links[0].Addresses = append(w.Links[0].Addresses, netip.MustParsePrefix("169.254.20.10/32"))
			w.enter(p, netip.MustParseAddr("169.254.20.10"), 9)
		}, from: "9 = ? + 0 + (0..9)", to: "0 = 0 + 0 + 0", why: "169.254.20.10"},
		{name: "a link that is not watched", build: func(w *world) {
			w.Sources[0].Status = model.Partial
			w.enter(p, peer, 9)
			w.depart(p, peer, podLink(1), 9)
		}, from: "9 = ? + 0 + (0..?) outside 9", to: "? = 0 + 0 + (0..?)", why: "not every link"},
		{name: "connection tracking unread", build: func(w *world) {
			w.Sources[2].Status = model.Missing
			w.enter(p, far, 9)
		}, from: "9 = ? + 0 + (0..?)", to: "0 = 0 + 0 + 0", why: "connection tracking was not read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(3)
			if tt.build != nil {
				tt.build(w)
			}
			rows := w.rows()
			from, to := rows[p.String()+" fromPod"], rows[p.String()+" toPod"]
			if got := text(from); tt.from != "" && got != tt.from {
				t.Errorf("from: %s, want %s: %q", got, tt.from, from.Why)
			}
			if got := text(to); tt.to != "" && got != tt.to {
				t.Errorf("to: %s, want %s: %q", got, tt.to, to.Why)
			}
			if why := strings.Join(append(from.Why, to.Why...), "\n"); !strings.Contains(why, tt.why) || tt.why == "" && why != "" {
				t.Errorf("why %q, want %q", why, tt.why)
			}
		})
	}
}

// bridged makes the pods' links and the uplink ports of a bridge.
func (w *world) bridged() {
	for i := range w.Links {
		if w.Links[i].Index != bridge {
			w.Links[i].Master = bridge
		}
	}
}

// TestEdges has a flow run through both edges of the window, with packets on
// their way while the counters are read.
func TestEdges(t *testing.T) {
	for _, lost := range []uint64{0, 5} {
		w := newWorld(1)
		w.Edges.Read = true
		p := pod(1)
		w.depart(p, peer, podLink(1), 3) // the uplink was attached first
		w.read(&w.Edges.Start)
		w.enter(p, peer, 2)
		w.read(&w.Edges.StartAgain)
		w.enter(p, peer, 100)
		w.depart(p, peer, podLink(1), 98-lost)
		w.enter(p, peer, 4) // and are not yet out
		rows := w.rows()
		w.depart(p, peer, podLink(1), 8)
		w.enter(p, peer, 3)
		w.read(&w.Edges.EndAgain)
		// Traffic is the reading before.
		saved := w.Traffic
		row := ledger.Balance(w.Snapshot, nil)[0]
		w.Traffic = saved
		if u := row.Unexplained(); u != model.Counted(max(lost, 2)-2) {
			t.Errorf("%d lost: %s", lost, text(row))
		}
		if row.Edge < 8 || row.In.N != 106 {
			t.Errorf("%s, want 106 in and an edge of 8 and more; before %v", text(row), len(rows))
		}
	}
}

// TestLateDrop has a packet come in before the last reading and be dropped, as
// the first of its kind, after it.
func TestLateDrop(t *testing.T) {
	w := newWorld(1)
	w.Edges.Read = true
	w.enter(pod(1), peer, 1)
	w.read(&w.Traffic)
	w.read(&w.Edges.EndAgain)
	w.Edges.EndAgain.Drops = []model.Drop{{Src: pod(1), Dst: peer, Reason: "IP_INNOROUTES", Netns: nodeNS, Packets: 1}}
	if row := ledger.Balance(w.Snapshot, nil)[0]; row.Unexplained() != model.Counted(0) || row.Edge != 1 {
		t.Errorf("%s, want nothing unexplained and an edge of 1", text(row))
	}
}

func TestNotWatched(t *testing.T) {
	w := newWorld(2)
	w.Sources[0].Status = model.Missing
	if rows := w.rows(); len(rows) > 0 {
		t.Errorf("a ledger of nothing: %v", rows)
	}
	if rows := ledger.Balance(&model.Snapshot{}, nil); rows != nil {
		t.Errorf("a ledger of an empty snapshot: %v", rows)
	}
}

// TestTruth makes packets of every kind, loses some without a word, and wants
// the bounds of every row to hold what was lost, and to be narrow where nothing
// is shared.
func TestTruth(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		pods := 1 + r.IntN(4)
		w := newWorld(pods)
		lost := map[string]uint64{}
		lossy := r.IntN(2) == 0
		for range 40 {
			p := pod(1 + r.IntN(pods))
			n := uint64(1 + r.IntN(20))
			gone := uint64(0)
			if lossy {
				gone = uint64(r.IntN(int(n) + 1))
			}
			switch r.IntN(6) {
			case 0:
				w.enter(p, peer, n)
				w.depart(p, peer, podLink(owner(p)), n-gone)
				lost[p.String()+" fromPod"] += gone
			case 1:
				w.arrive(peer, p, n)
				w.leave(peer, p, uplink, n-gone)
				lost[p.String()+" toPod"] += gone
			case 2:
				w.enter(p, far, n)
				w.depart(node, far, podLink(owner(p)), n-gone)
				w.flow(p, far, far, node)
				lost[p.String()+" fromPod"] += gone
			case 3:
				w.arrive(far, node, n)
				w.leave(far, p, uplink, n-gone)
				w.flow(p, far, far, node)
				lost[p.String()+" toPod"] += gone
			case 4:
				if q := pod(1 + r.IntN(pods)); q != p {
					w.enter(p, q, n)
					w.leave(p, q, podLink(owner(p)), n-gone)
					lost[p.String()+" fromPod"] += gone
					lost[q.String()+" toPod"] += gone
				}
			case 5:
				w.enter(p, peer, n)
				w.depart(p, peer, podLink(owner(p)), n-gone)
				w.drop(model.Drop{Src: p, Dst: peer, Reason: "NETFILTER_DROP", Packets: gone}, model.DropCause{})
			}
		}
		rows := w.rows()
		if len(rows) != 2*pods {
			t.Fatalf("seed %d: %d rows of %d pods", seed, len(rows), pods)
		}
		for key, row := range rows {
			if row.Least > lost[key] || row.Most.Known && row.Most.N < lost[key] {
				t.Errorf("seed %d: %s: %d lost, told as %s: %q", seed, key, lost[key], text(row), row.Why)
			}
			if !lossy && row.Unexplained() != model.Counted(0) {
				t.Errorf("seed %d: %s: nothing was lost, told as %s: %q", seed, key, text(row), row.Why)
			}
		}
	}
}

// TestOrder wants the rows in one order, whatever the order of what they are
// made of.
func TestOrder(t *testing.T) {
	w := newWorld(4)
	slices.Reverse(w.Pods)
	w.read(&w.Traffic)
	var got []string
	for _, r := range ledger.Balance(w.Snapshot, nil) {
		got = append(got, r.Addrs[0].String()+" "+string(r.Direction))
	}
	if !slices.IsSorted(got) || len(got) != 8 {
		t.Errorf("rows %q", got)
	}
}

// large is a node of which each pod talks with others.
func large(pods, others int) *world {
	w := newWorld(pods)
	for i := 1; i <= pods; i++ {
		for k := range others {
			j := (i+k)%pods + 1
			w.enter(pod(i), pod(j), 3)
			w.leave(pod(i), pod(j), podLink(i), 3)
		}
		w.flow(pod(i), vip, pod(i%pods+1), pod(i))
		w.flow(pod(i), far, far, node)
	}
	w.read(&w.Traffic)
	return w
}

// BenchmarkBalance makes the ledger of 250 pods that talk with thirty others
// each, which is as many hops as are counted.
func BenchmarkBalance(b *testing.B) {
	w := large(250, 30)
	for b.Loop() {
		ledger.Balance(w.Snapshot, nil)
	}
}

func TestGrowth(t *testing.T) {
	growth.Test(t, func(scale int) func() {
		w := large(60*scale, 10)
		return func() {
			if rows := ledger.Balance(w.Snapshot, nil); len(rows) != 2*60*scale {
				t.Errorf("%d rows at size %d", len(rows), scale)
			}
		}
	})
}
