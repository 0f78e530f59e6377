package session

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/timeline"
	"github.com/lasthop/lasthop/probe/traffic"
)

// attach makes the engine watch these links, and count the pods whose links it watches.
func (w *watch) attach(links []model.Link) error {
	w.hold(w.now(), links)
	w.links = links
	if w.engine == nil {
		return nil
	}
	first := map[int]bool{}
	for p := range model.Each(w.roster.alive()) {
		known := func(a netip.Addr) bool { return slices.Contains(w.firstAddrs, a) || slices.Contains(w.pairAddrs, a) }
		first[p.LinkIndex] = slices.ContainsFunc(p.Known(), known)
	}
	until := model.Either(w.most > 0, time.Now().Add(w.most), time.Time{})
	// The source reports links that cannot be watched. It is an error only if there is no other.
	watching := func(s model.Source) bool { return s.Name == model.SourceTC && s.Status != model.Missing }
	if err := w.engine.Attach(watched(links, first), until); err != nil && !slices.ContainsFunc(w.engine.Sources(), watching) {
		return fmt.Errorf("watch links: %w", err)
	}
	w.roster.watch(w.now(), w.engine.Pending())
	w.setLocal()
	// After attaching: to make a clsact qdisc drops packets, which are no finding.
	w.note("namespaces", w.engine.SetNamespaces(w.namespaces()))
	w.setRanges()
	return nil
}

// hold notes since when the node has each address.
func (w *watch) hold(now time.Time, links []model.Link) {
	held := map[netip.Prefix]time.Time{}
	for l := range model.Each(links) {
		l.Since = model.Map(l.Addresses, func(a netip.Prefix) time.Time {
			held[a] = cmp.Or(w.held[a], now)
			return held[a]
		})
	}
	w.held = held
}

// countPairs starts or stops counting by address pair, if that is wanted. It does so on all links at once, so
// that two hops count the same packets, except those in flight between them at that instant.
func (w *watch) countPairs(on bool) {
	if w.engine == nil || len(w.pairAddrs) == 0 {
		return
	}
	w.countingPairs = on
	w.setLocal()
}

// setLocal has the local addresses counted. Those of the node are counted by pair
// too: a pod's packets may bear the node's address.
func (w *watch) setLocal() {
	list := locals(w.links, w.roster.watched())
	for i := range list {
		list[i].Pairs = w.countingPairs && (list[i].Node || slices.Contains(w.pairAddrs, list[i].Addr))
	}
	w.note("addresses", w.engine.SetLocal(list))
}

// setRanges has the pod ranges of other nodes counted, as far as they are known. Links
// and pods may change four times a second.
func (w *watch) setRanges() {
	if time.Since(w.ranged) < timeline.Every/2 {
		return
	}
	w.ranged = time.Now()
	s := *w.state
	s.Pods = w.roster.alive()
	// Nothing else is looked at, and pods that are gone have many counters.
	s.Traffic, s.Flows = model.Traffic{Peers: w.engine.Peers()}, w.ends
	ranges := diagnose.RemoteRanges(&s)
	if slices.Equal(ranges, w.ranges) {
		return
	}
	w.ranges = ranges
	w.note("other nodes' pod ranges", w.engine.SetPrefixes(ranges))
}

// note records in gaps that some of what cannot be counted, or that all can.
func (w *watch) note(what string, err error) {
	delete(w.gaps, what)
	if err != nil {
		first, _, more := strings.Cut(err.Error(), "\n")
		if more {
			first += ", and more"
		}
		w.gaps[what] = fmt.Sprintf("not all %s are counted: %s", what, first)
	}
}

func (w *watch) sources() []model.Source {
	if w.engine == nil {
		return model.Map([]string{model.SourceTC, model.SourceDrops}, func(name string) model.Source {
			return model.Source{Name: name, Status: model.Missing, Detail: w.unwatched}
		})
	}
	list := w.engine.Sources()
	for i := range list {
		var gaps []string
		switch list[i].Name {
		case model.SourceTC:
			gaps = model.Map(slices.Sorted(maps.Keys(w.gaps)), func(what string) string { return w.gaps[what] })
		case model.SourceDrops:
			known := func(p model.Pod) bool { return p.Netns != 0 }
			if n := len(slices.DeleteFunc(w.roster.alive(), known)); n > 0 {
				gaps = append(gaps, fmt.Sprintf("none inside %d pods, whose namespaces could not be entered", n))
			}
		}
		if len(gaps) > 0 && list[i].Status == model.OK {
			list[i].Status = model.Partial
		}
		if len(gaps) > 0 && list[i].Status != model.Missing {
			list[i].Detail += "; " + strings.Join(gaps, "; ")
		}
	}
	return list
}

// namespaces are those whose drops are counted: the node's and those of its pods.
func (w *watch) namespaces() []traffic.Namespace {
	out := []traffic.Namespace{{Inode: w.options.NS.Inode()}}
	for _, p := range w.roster.alive() {
		if p.Netns != 0 {
			out = append(out, traffic.Namespace{Inode: p.Netns, Cookie: p.NetnsCookie})
		}
	}
	return out
}

// watched are the links to attach to: all but lo, which no packet of a pod crosses. Of those of pods, some come first.
func watched(links []model.Link, first map[int]bool) []traffic.Link {
	var out []traffic.Link
	for _, l := range links {
		if l.Name == "lo" {
			continue
		}
		out = append(out, traffic.Link{
			Index: l.Index, Name: l.Name, Uplink: l.Role == model.RoleUplink, First: l.Role != model.RolePodLink || first[l.Index],
			NoEthernet: l.MAC.IsZero(), IPTunnel: l.Kind == "ipip" || l.Kind == "sit",
		})
	}
	return out
}

// locals are the addresses to count: those of pods and of the node.
func locals(links []model.Link, pods []model.Pod) []traffic.Local {
	var out []traffic.Local
	seen := map[netip.Addr]bool{}
	add := func(a netip.Addr, node bool) {
		if !seen[a] && a.IsGlobalUnicast() {
			seen[a], out = true, append(out, traffic.Local{Addr: a, Node: node})
		}
	}
	for p := range model.Each(pods) {
		for _, a := range p.Known() {
			add(a, false)
		}
	}
	for l := range model.Each(links) {
		for _, a := range l.Addresses {
			if l.Counted(a) {
				add(a.Addr(), true)
			}
		}
	}
	return out
}
