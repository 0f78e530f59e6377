package diagnose

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// routing predicts what the node's tables do; built when it is first asked for.
func (v *view) routing() *path.Routing {
	if v.tables == nil {
		v.tables = path.NewRouting(v.Snapshot)
	}
	return v.tables
}

// setting is a kernel setting, and whether it was read.
func (v *view) setting(name string) (string, bool) {
	if v.settings == nil {
		v.settings = make(map[string]string, len(v.Sysctls))
		for _, c := range v.Sysctls {
			v.settings[c.Name] = c.Value
		}
	}
	s, ok := v.settings[name]
	return s, ok
}

// linkSetting names a link's own setting, as sysctl(8) does.
func linkSetting(link, name string) string {
	return "net.ipv4.conf." + strings.ReplaceAll(link, ".", "/") + "." + name
}

// rejected reports whether the kernel's lookup of routes refused a packet:
// every such packet is freed at one place, whatever the cause. Before Linux
// 5.17 it has no reason.
func rejected(d *model.Drop, reason model.Reason) bool {
	return d.Location == "ip_error" && (d.Reason == reason || d.Reason == "")
}

// lookupRefused reports whether the kernel's lookup of routes refused a packet, for
// whatever cause.
func lookupRefused(d *model.Drop) bool { return d.Location == "ip_error" || refused6(d) }

// refused6 reports whether the kernel's lookup refused an IPv6 packet. Where it
// does so differs by the kind of route and by what the compiler made of it
// (ip6_pkt_drop, or ip6_pkt_prohibit that holds it); the reason tells nothing.
func refused6(d *model.Drop) bool {
	return d.Dst.Is6() && (strings.HasPrefix(d.Location, "dst_discard") || strings.HasPrefix(d.Location, "ip6_pkt_"))
}

// ofPod reports whether an end of the dropped packet is a living pod, or one
// that went away.
func (v *view) ofPod(d *model.Drop) bool {
	return v.pod(d) != netip.Addr{}
}

// lost sums up drops: the pods, the other ends, the number of packets and the
// worst of them as evidence.
type lost struct {
	pods    map[netip.Addr]bool
	peers   map[netip.Addr]bool
	packets uint64
	drops   []*model.Drop
}

func (l *lost) add(v *view, d *model.Drop) { l.addFor(v.pod(d), d) }

// addFor adds a drop that concerns one of its ends above the other.
func (l *lost) addFor(pod netip.Addr, d *model.Drop) {
	if l.pods == nil {
		l.pods, l.peers = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	}
	peer := d.Dst
	if peer == pod {
		peer = d.Src
	}
	l.pods[pod], l.peers[peer] = true, true
	l.packets += d.Packets
	l.drops = append(l.drops, d)
}

// evidence are the ends that lost most.
func (l *lost) evidence() []model.Evidence {
	var out []model.Evidence
	for _, d := range mostDropped(l.drops) {
		reason := string(d.Reason)
		if reason == "" {
			reason = "no reason told"
		}
		where := ""
		if d.Link != "" {
			where = " on " + d.Link
		}
		out = append(out, model.Evidence{Source: model.SourceDrops, Text: fmt.Sprintf(
			"%s to %s%s: %s at %s, %s", d.Src, d.Dst, where, reason, d.Location, count(d.Packets, "packet"))})
	}
	return out
}

// routeText is a route as ip(8) prints it.
func (v *view) routeText(r *model.Route) string { return path.RouteText(r, v.routeLink(r)) }

// routeWords are a route as ip(8) takes it from a shell.
func (v *view) routeWords(r *model.Route) string {
	link := v.routeLink(r)
	if link != "" {
		link = shellWord(link)
	}
	return path.RouteText(r, link)
}

// routeLink names the link that a route leads to, empty where it has none.
func (v *view) routeLink(r *model.Route) string {
	if l := v.links[r.IfIndex]; l != nil && r.IfIndex != 0 {
		return l.Name
	}
	return ""
}

// ip is the tool for the address's family.
func ip(a netip.Addr) string {
	if a.Is6() {
		return "ip -6"
	}
	return "ip"
}

// reverseFiltered reports whether the reverse path filter dropped a packet.
func reverseFiltered(d *model.Drop) bool {
	return d.Reason == "IP_RPFILTER" || d.Reason == "" && d.Location == "ip_rcv_finish_core"
}

// fromPod is a packet of a pod as it arrives at the node's routing.
func (v *view) fromPod(pod, dst netip.Addr) path.Query {
	q := path.Query{Src: pod, Dst: dst}
	for _, p := range v.pods[pod] {
		l := v.links[p.LinkIndex]
		if l != nil && v.links[l.Master] != nil {
			l = v.links[l.Master]
		}
		if l != nil {
			q.In = l.Name
		}
	}
	return q
}

// expired reports whether a router dropped a packet whose TTL had ended.
func expired(d *model.Drop) bool {
	return (d.Location == "ip_forward" || d.Location == "ip6_forward") && (d.Reason == "IP_INHDR" || d.Reason == "")
}

// arrived is a dropped packet as the node's routing got it.
func (v *view) arrived(d *model.Drop) path.Query {
	return path.Query{Src: d.Src, Dst: d.Dst, In: d.Link}
}
