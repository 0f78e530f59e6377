package report

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

// wide adds the tables that the verdict was drawn from.
func (r Report) wide(p *printer) {
	s := r.Snapshot
	names := locals(s)
	for _, a := range r.addresses() {
		p.title(strings.TrimSpace("hops of " + addrText(a) + " " + names[a]))
		p.hops(s, func(h model.HopCount) bool { return h.Addr == a })
	}
	for _, prefix := range remoteRanges(s) {
		p.title("hops of the remote range " + prefixText(prefix))
		p.hops(s, func(h model.HopCount) bool { return h.Prefix == prefix })
	}
	r.ledger(p)
	r.drops(p)
	r.rewrites(p)
	if len(s.Node.PluginBy) > 0 {
		p.title("plugin recognised by")
		for _, by := range s.Node.PluginBy {
			p.line("  " + Clean(by))
		}
	}
	p.title("sources")
	rows := [][]string{{"NAME", "STATUS", "DETAIL"}}
	for _, src := range s.Sources {
		rows = append(rows, []string{src.Name, string(src.Status), src.Detail})
	}
	p.table(rows)
}

// addresses are those of the pods in focus, seen or not, then the others that
// were counted: the node's own.
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
	var hops []model.HopCount
	for _, h := range s.Traffic.Hops {
		if of(h) {
			hops = append(hops, h)
		}
	}
	slices.SortStableFunc(hops, onTheWay(s))
	rows := [][]string{{"SIDE", "LINK", "ROLE", "DIRECTION", "PACKETS", "BYTES"}}
	for _, h := range hops {
		rows = append(rows, []string{
			string(h.Side), h.Link, orUnknown(string(role(s, h.IfIndex, h.Link))), string(h.Direction), number(h.Packets), number(h.Bytes),
		})
	}
	p.table(rows)
}

func remoteRanges(s *model.Snapshot) []netip.Prefix {
	var out []netip.Prefix
	for _, h := range s.Traffic.Hops {
		if h.Prefix.IsValid() && !slices.Contains(out, h.Prefix) {
			out = append(out, h.Prefix)
		}
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return out
}

func (r Report) drops(p *printer) {
	drops := [][]string{{"LOCAL", "SIDE", "PEER", "REASON", "LOCATION", "LINK", "PACKETS"}}
	harmless := [][]string{append(slices.Clone(drops[0]), "WHY")}
	for _, d := range dropRows(r.Snapshot) {
		if !r.inFocus(d.local) && !r.inFocus(d.peer) {
			continue
		}
		row := []string{addrText(d.local), string(d.side), addrText(d.peer), orUnknown(string(d.reason)), d.location, d.link, number(d.packets)}
		if d.class == model.DropLost {
			drops = append(drops, row)
		} else {
			harmless = append(harmless, append(row, harmlessWords[d.class]))
		}
	}
	p.title("drops")
	p.table(drops)
	if len(harmless) > 1 {
		p.title("harmless frees")
		p.table(harmless)
	}
}

// harmlessWords say why the kernel freed a packet that was not lost.
var harmlessWords = map[model.DropClass]string{
	model.FreeDelivered:         "delivered already",
	model.FreeCopy:              "a copy, for another",
	model.FreeGroup:             "for a group not joined",
	model.FreeNeighborDiscovery: "neighbour discovery",
	model.FreePodGone:           "for a pod that went away",
	model.FreePodStarting:       "before a new pod's rules were written",
}

func (r Report) rewrites(p *printer) {
	p.title("rewritten MACs")
	rows := [][]string{{"POD", "FIELD", "FROM", "AT", "TO", "AT", "PACKETS"}}
	for _, x := range r.Rewrites {
		if r.inFocus(x.Addr) {
			rows = append(rows, []string{
				addrText(x.Addr), string(x.Field), x.From.MAC.String(), x.From.Link + " " + string(x.From.Direction),
				x.To.MAC.String(), x.To.Link + " " + string(x.To.Direction), number(x.Packets),
			})
		}
	}
	p.table(rows)
}

// table prints rows in aligned columns under the first row as the heading; a
// table without rows says so. What cannot be known is shown as "-".
func (p *printer) table(rows [][]string) {
	if len(rows) == 1 {
		p.line("  none")
		return
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = Clean(cell)
			if row[i] == "" {
				row[i] = "-"
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			fmt.Fprintf(&b, "  %-*s", widths[i], cell)
		}
		p.line(b.String())
	}
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
