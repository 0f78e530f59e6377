package diagnose

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// dropWords says in plain words what one of the kernel's reasons means.
type dropWords struct {
	matches func(*model.Drop) bool
	// what is a clause, fix what helps where packets were dropped at a link.
	what, fix string
	// broken is set where no healthy network drops so for long, ordinary where every
	// healthy one may.
	broken, ordinary bool
}

// manyRefused is more packets than bad luck spoils in a window.
const manyRefused = 9

// knownReasons are those that no other finding is about. The first that matches counts.
var knownReasons = []dropWords{
	{
		matches: func(d *model.Drop) bool { return strings.HasSuffix(string(d.Reason), "_CSUM") },
		what:    "the checksum is wrong",
		fix: "find who spoils them: tcpdump -nvv where they are sent and where they arrive. A NIC or tunnel that should compute checksums and does " +
			"not is the usual cause: at the sender, ethtool -K LINK tx off # for the link of the NIC or tunnel",
		broken: true,
	},
	{
		matches: func(d *model.Drop) bool { return d.Distrusted() },
		what:    "TCP does not accept its signature or hop limit",
		fix:     "compare the keys (TCP MD5, TCP-AO) and the minimal TTL (IP_MINTTL) that the two applications set",
		broken:  true,
	},
	{
		matches: func(d *model.Drop) bool { return d.Dst.IsLoopback() && (d.Reason == "IP_LOCALNET" || d.Unspecified()) },
		what:    "it is for the loopback address, and did not come from there",
		fix: "find the rule that translates to that address: iptables-save -t nat | grep 127. Let what listens there take an address of the node; " +
			"net.ipv4.conf.LINK.route_localnet=1 helps too, and opens all of the node's loopback to LINK",
		broken: true,
	},
	{
		matches: func(d *model.Drop) bool {
			return d.Transmitting() && (strings.HasPrefix(string(d.Reason), "QDISC_") || strings.HasPrefix(string(d.Reason), "FQ_"))
		},
		what:     "the link's queue was full: more is sent than it lets pass, as with a pod's bandwidth limit",
		fix:      "tc -s qdisc show # at the pod's link and inside of the pod; the pod's annotations kubernetes.io/ingress-bandwidth and egress-bandwidth set such limits",
		ordinary: true,
	},
	{
		matches: func(d *model.Drop) bool { return d.Expired() && d.Reason != "" },
		what:    "its TTL or hop limit ran out here, as that of what traceroute sends does",
		fix:     "look at who sends them: tcpdump -nv 'ip[8] < 2 or ip6[7] < 2'", ordinary: true,
	},
	{
		matches: func(d *model.Drop) bool { return d.Reason == "CPU_BACKLOG" },
		what:    "a processor's queue of received packets was full",
		fix:     "look at the load of interrupts: cat /proc/net/softnet_stat; a larger net.core.netdev_max_backlog helps against bursts", ordinary: true,
	},
	{
		matches: func(d *model.Drop) bool { return strings.HasPrefix(string(d.Reason), "FRAG_") },
		what:    "other fragments of the datagram never came, or came too late",
		fix:     "look for what drops fragments on the way, such as a security group or a NIC; or let the application send smaller datagrams",
	},
	{
		matches: func(d *model.Drop) bool { return d.Reason == "IP_NOPROTO" || d.Reason == "UNHANDLED_PROTO" },
		what:    "the receiver has nothing that takes this protocol",
		fix:     "look at who sends it, and whether the receiver should have a tunnel or socket for it", ordinary: true,
	},
	{
		matches: (*model.Drop).Netfilter,
		what: "a rule dropped them that lasthop does not read, or not whole: one of nftables' families arp and netdev, one that asks a map, " +
			"or a program behind a queue",
		fix: "nft list ruleset",
	},
	{
		matches: func(d *model.Drop) bool { return d.Location == "vxlan_xmit" },
		what:    "the tunnel has no entry for the next hop's MAC, so that no node is known to send it to",
		fix:     "bridge fdb show # the tunnel's entries are those of the other nodes' tunnels (dst); restart the agent that writes them",
	},
	{
		matches: func(d *model.Drop) bool { return d.NeighborFailed() },
		what:    "nobody answers for the next hop's MAC",
		fix:     "ip neigh show nud failed",
	},
	{
		matches: func(d *model.Drop) bool { return d.Reason == "IPV6DISABLED" },
		what:    "IPv6 is disabled on the link that it came to",
		fix:     "sysctl -a | grep disable_ipv6 # in the namespace where they are dropped", ordinary: true,
	},
}

// wordsOf are the words for a drop, nil where the kernel's reason is all there is.
func wordsOf(d *model.Drop) *dropWords {
	for i := range knownReasons {
		if knownReasons[i].matches(d) {
			return &knownReasons[i]
		}
	}
	return nil
}

// refused reports whether a drop is of a kind that no healthy network has for long.
func refused(d *model.Drop) bool {
	w := wordsOf(d)
	return w != nil && w.broken
}

// lasting reports whether drops went on for a while.
func (l *lost) lasting() bool {
	if l.packets < manyRefused {
		return false
	}
	first, last := l.drops[0].First, l.drops[0].Last
	for _, d := range l.drops {
		if d.First.Before(first) {
			first = d.First
		}
		if d.Last.After(last) {
			last = d.Last
		}
	}
	return last.Sub(first) >= 2*settled
}

// nothingPasses are two ends whose drops go on while no flow between them was replied
// to, those that lost most. They are not valid where there are none, or where healthy
// networks drop so: by limits, and what is asked at once of IPv6 on a node that leads
// nowhere by it.
func (v *view) nothingPasses(l *lost) (most pair) {
	if !v.Has(model.SourceConntrack) {
		return most
	}
	byPair := map[pair]*lost{}
	for _, d := range l.drops {
		w := wordsOf(d)
		if w != nil && w.ordinary || whatWasFull(d) != "" || !model.Unicast(d.Src) || !model.Unicast(d.Dst) ||
			d.Src.Is6() && d.LookupRefused() && !hasDefault(v, true) {
			continue
		}
		entry(byPair, pair{d.Src, d.Dst}).add(v, d)
	}
	for f := range model.Each(v.Flows) {
		if f.Replied {
			for _, t := range []model.Tuple{f.Original, f.Reply} {
				delete(byPair, pair{t.Src, t.Dst})
				delete(byPair, pair{t.Dst, t.Src})
			}
		}
	}
	var packets uint64
	for k, of := range byPair {
		if of.lasting() && (of.packets > packets || of.packets == packets && cmp.Or(k.local.Compare(most.local), k.remote.Compare(most.remote)) < 0) {
			most, packets = k, of.packets
		}
	}
	return most
}

// tell adds the words for a drop to a finding.
func (v *view) tell(f *model.Finding, l *lost, d *model.Drop) {
	if w := wordsOf(d); w != nil {
		f.Why += fmt.Sprintf(" That means: %s.", w.what)
		f.Fix[0] = w.fix
		if w.broken && l.lasting() {
			f.Severity = model.Warning
		}
	}
	if ends := v.nothingPasses(l); ends.local.IsValid() {
		f.Severity = model.Warning
		observe(f, model.SourceConntrack, "no flow between %s and %s was replied to", ends.local, ends.remote)
	}
}
