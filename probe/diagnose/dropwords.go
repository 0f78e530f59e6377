package diagnose

import (
	"fmt"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// dropWords says in plain words what one of the kernel's reasons means.
type dropWords struct {
	matches func(*model.Drop) bool
	// what is a clause, fix what helps where packets were dropped at a link.
	what, fix string
	// broken is set where no healthy network drops so for long.
	broken bool
}

// manyRefused is more packets than bad luck spoils in a window.
const manyRefused = 9

// knownReasons are those that no other finding is about. The first that matches counts.
var knownReasons = []dropWords{
	{
		matches: func(d *model.Drop) bool { return strings.HasSuffix(string(d.Reason), "_CSUM") },
		what:    "the checksum is wrong",
		fix: "find who spoils them: tcpdump -nvv where they are sent and where they arrive. A card or tunnel that should compute checksums and does " +
			"not is the usual cause: at the sender, ethtool -K LINK tx off # for the link of the card or tunnel",
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
		what: "the link's queue was full: more is sent than it lets pass, as with a pod's bandwidth limit",
		fix:  "tc -s qdisc show # at the pod's link and inside of the pod; the pod's annotations kubernetes.io/ingress-bandwidth and egress-bandwidth set such limits",
	},
	{
		matches: func(d *model.Drop) bool { return d.Expired() && d.Reason != "" },
		what:    "its TTL or hop limit ran out here, as that of what traceroute sends does",
		fix:     "look at who sends them: tcpdump -nv 'ip[8] < 2 or ip6[7] < 2'",
	},
	{
		matches: func(d *model.Drop) bool { return d.Reason == "CPU_BACKLOG" },
		what:    "a processor's queue of received packets was full",
		fix:     "look at the load of interrupts: cat /proc/net/softnet_stat; a larger net.core.netdev_max_backlog helps against bursts",
	},
	{
		matches: func(d *model.Drop) bool { return strings.HasPrefix(string(d.Reason), "FRAG_") },
		what:    "other fragments of the datagram never came, or came too late",
		fix:     "look for what drops fragments on the way, such as a security group or a card; or let the application send smaller datagrams",
	},
	{
		matches: func(d *model.Drop) bool { return d.Reason == "IP_NOPROTO" || d.Reason == "UNHANDLED_PROTO" },
		what:    "the receiver has nothing that takes this protocol",
		fix:     "look at who sends it, and whether the receiver should have a tunnel or socket for it",
	},
	{
		matches: func(d *model.Drop) bool { return d.NeighborFailed() },
		what:    "nobody answers for the next hop's MAC",
		fix:     "ip neigh show nud failed",
	},
	{
		matches: func(d *model.Drop) bool { return d.Reason == "IPV6DISABLED" },
		what:    "IPv6 is disabled on the link that it came to",
		fix:     "sysctl -a | grep disable_ipv6 # in the namespace where they are dropped",
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

// tell adds the words for a drop to a finding.
func (v *view) tell(f *model.Finding, l *lost, d *model.Drop) {
	w := wordsOf(d)
	if w == nil {
		return
	}
	f.Why += fmt.Sprintf(" That means: %s.", w.what)
	f.Fix[0] = w.fix
	if w.broken && l.lasting() {
		f.Severity = model.Warning
	}
}
