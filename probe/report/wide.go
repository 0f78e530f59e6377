package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/loss"
	"github.com/lasthop/lasthop/probe/model"
)

func (r Report) wide(p *printer, names Names) {
	s := r.Snapshot
	for _, a := range r.addresses() {
		p.title("hops of " + Named(names, a))
		p.hops(s, func(h model.HopCount) bool { return h.Addr == a })
	}
	for _, prefix := range remoteRanges(s) {
		p.title("hops of the remote range " + prefixText(prefix))
		p.hops(s, func(h model.HopCount) bool { return h.Prefix == prefix })
	}
	r.ledger(p, names)
	r.drops(p, names)
	r.matrix(p, names)
	r.silences(p, names)
	r.rewrites(p, names)
	if len(s.Node.PluginBy) > 0 {
		p.title("plugin recognised by")
		for _, by := range s.Node.PluginBy {
			p.line("  " + Clean(by))
		}
	}
	p.title("sources")
	p.table([]string{"NAME", "STATUS", "DETAIL"}, model.Map(s.Sources, func(src model.Source) []string {
		return []string{src.Name, string(src.Status), src.Detail}
	}))
}

// addresses are those of the pods in focus, with traffic or without, then the others that were counted: the node's own.
func (r Report) addresses() []netip.Addr {
	var out []netip.Addr
	add := func(a netip.Addr) {
		if a.IsValid() && r.inFocus(a) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, pod := range allPods(r.Snapshot) {
		for _, a := range pod.Addresses {
			add(a.Addr())
		}
	}
	pods := len(out)
	for _, h := range r.Snapshot.Traffic.Hops {
		add(h.Addr)
	}
	slices.SortFunc(out[pods:], netip.Addr.Compare)
	return out
}

func (p *printer) title(s string) {
	p.line("")
	p.line(p.paint(bold, Clean(s)))
}

func (p *printer) hops(s *model.Snapshot, of func(model.HopCount) bool) {
	hops := model.Filter(s.Traffic.Hops, of)
	slices.SortStableFunc(hops, HopOrder(s))
	role := linkRoles(s)
	p.table([]string{"SIDE", "LINK", "ROLE", "DIRECTION", "PACKETS", "BYTES"}, model.Map(hops, func(h model.HopCount) []string {
		role := orUnknown(string(role(&h)))
		return []string{string(h.Side), h.Link, role, string(h.Direction), number(h.Packets), number(h.Bytes)}
	}))
}

func remoteRanges(s *model.Snapshot) []netip.Prefix {
	out := model.Map(s.Traffic.Hops, func(h model.HopCount) netip.Prefix { return h.Prefix })
	out = slices.DeleteFunc(out, func(p netip.Prefix) bool { return !p.IsValid() })
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

func (r Report) drops(p *printer, names Names) {
	heading := []string{"LOCAL", "SIDE", "PEER", "REASON", "LOCATION", "LINK", "PACKETS"}
	var drops, harmless [][]string
	for _, d := range r.dropRows() {
		if !r.inFocus(d.local) && !r.inFocus(d.peer) {
			continue
		}
		row := []string{Named(names, d.local), string(d.side), d.peerText(names), ReasonText(d.reason, d.cilium.Reason), d.location, d.link, number(d.packets)}
		if d.class == loss.Lost {
			drops = append(drops, append(row, causeText(d.cause)))
		} else {
			harmless = append(harmless, append(row, excuseWords[d.class]))
		}
	}
	p.title("drops")
	p.table(append(slices.Clip(heading), "FINDING"), drops)
	if len(harmless) > 0 {
		p.title("frees that are no loss")
		p.table(append(slices.Clip(heading), "WHY"), harmless)
	}
}

func (r Report) silences(p *printer, names Names) {
	silences := model.Filter(r.Silences, func(x model.Silence) bool { return r.inFocus(x.Local) || r.inFocus(x.Remote) })
	if len(silences) == 0 {
		return
	}
	p.title("no reply")
	p.table([]string{"LOCAL", "PEER", "PACKETS", "FINDING", "WHY"}, model.Map(silences, func(x model.Silence) []string {
		return []string{
			Named(names, x.Local), Named(names, x.Remote), number(x.Packets), string(x.Code), excuseWords[x.Ordinary],
		}
	}))
}

// causeText is the finding that claims a drop, or why none does.
func causeText(c model.DropCause) string { return cmp.Or(string(c.Code), excuseWords[c.Ordinary]) }

// excuseWords say why a loss is no finding's: of requests without a reply, of any loss, and of packets that were not lost.
var excuseWords = map[model.Excuse]string{
	model.ExcusedScan:       "one of many addresses in a scan",
	model.ExcusedForwarder:  "a gateway need not reply to pings",
	model.ExcusedGone:       "the pod is gone",
	model.ExcusedPlatform:   "a cloud address that does not serve pods",
	model.ExcusedBrief:      "requests for a moment only",
	model.ExcusedGroup:      "a multicast or broadcast address",
	model.ExcusedHere:       "a pod of this node: flooded frames",
	model.ExcusedReflected:  "sent back to where they came from",
	model.ExcusedTranslated: "translated connections get replies",
	model.ExcusedElsewhere:  "the cause is on another node",
	model.ExcusedFew:        "too few packets for a finding",
	model.ExcusedRecent:     "too late in the window",
	model.ExcusedUncounted:  "replies were perhaps not counted",
	model.ExcusedUnread:     "a source was not read",
	model.ExcusedNoReason:   "the kernel gives no reason",
	model.ExcusedNoPod:      "not a packet of a pod",

	loss.Delivered:         "already delivered",
	loss.Copy:              "a copy for another host",
	loss.Group:             "multicast group not joined",
	loss.NeighborDiscovery: "neighbour discovery",
	loss.PodGone:           "the pod is gone",
	loss.PodStarting:       "before the new pod's rules existed",
	loss.Redirect:          "an ICMP redirect",
	loss.Closed:            "connection already closed",
	loss.ByDesign:          "by a rule of AKS's or kubelet's that healthy nodes have",
	loss.Foreign:           "another machine sent it with the pod's address",
}

func (r Report) rewrites(p *printer, names Names) {
	p.title("rewritten MACs")
	rewrites := model.Filter(r.Rewrites, func(x model.MACRewrite) bool { return r.inFocus(x.Addr) })
	heading := []string{"POD", "FIELD", "FROM", "AT", "TO", "AT", "PACKETS"}
	p.table(heading, model.Map(rewrites, func(x model.MACRewrite) []string {
		return []string{
			Named(names, x.Addr), string(x.Field), x.From.MAC.String(), x.From.Link + " " + string(x.From.Direction),
			x.To.MAC.String(), x.To.Link + " " + string(x.To.Direction), number(x.Packets),
		}
	}))
}

// table prints rows in aligned columns; one without rows says so. A "-" stands for what is not known.
func (p *printer) table(heading []string, rows [][]string) {
	if len(rows) == 0 {
		p.line("  none")
		return
	}
	all := model.Map(append([][]string{heading}, rows...), func(row []string) []string {
		return model.Map(row, func(cell string) string { return cmp.Or(Clean(cell), "-") })
	})
	for _, line := range aligned(all, "  ", 0) {
		p.line("  " + line)
	}
}

// aligned joins the cells of each row, with a gap between columns of even width.
// Cells of the columns in the bit set right stand at the right.
func aligned(rows [][]string, gap string, right uint) []string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return model.Map(rows, func(row []string) string {
		cells := make([]string, len(row))
		for i, cell := range row {
			w := widths[i]
			if right&(1<<i) == 0 {
				w = -w
			}
			cells[i] = fmt.Sprintf("%*s", w, cell)
		}
		return strings.Join(cells, gap)
	})
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
