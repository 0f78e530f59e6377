package agree

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
)

// Unaccounted are the losses of a snapshot that a verdict on it has no name for: each drop, and each pair of a pod that
// got no reply, is claimed by a finding that there is, or ordinary for a reason.
func Unaccounted(s *model.Snapshot, v model.Verdict) []string {
	var out []string
	found := model.SetOf(model.Map(v.Findings, func(f model.Finding) model.Code { return f.Code }))
	hold := func(code model.Code, ordinary model.Excuse, format string, args ...any) {
		if (code == "") == (ordinary == "") || code != "" && !found[code] {
			out = append(out, fmt.Sprintf("%s: claimed by %q, ordinary by %q", fmt.Sprintf(format, args...), code, ordinary))
		}
	}
	if len(v.Causes) != len(s.Traffic.Drops) {
		return []string{fmt.Sprintf("%d drops have %d causes", len(s.Traffic.Drops), len(v.Causes))}
	}
	for i, c := range v.Causes {
		d := &s.Traffic.Drops[i]
		hold(c.Code, c.Ordinary, "%d drops from %s to %s, %s at %s", d.Packets, d.Far(d.Src), d.Far(d.Dst), d.Reason, d.Location)
	}
	told := map[[2]netip.Addr]bool{}
	for _, x := range v.Silences {
		told[[2]netip.Addr{x.Local, x.Remote}] = true
		hold(x.Code, x.Ordinary, "requests of %s to %s", x.Local, x.Remote)
	}
	for _, p := range inVain(s) {
		if !told[[2]netip.Addr{p.Local, p.Remote}] {
			hold("", "", "requests of %s to %s", p.Local, p.Remote)
		}
	}
	return out
}

// inVain are the pairs of pods whose requests left by an uplink, and of which nothing at all came back. What a queue there
// dropped had been counted, and did not leave.
func inVain(s *model.Snapshot) []model.Peer {
	dropped := map[[2]netip.Addr]uint64{}
	for d := range model.Each(s.Traffic.Drops) {
		dropped[[2]netip.Addr{d.Src, d.Dst}] += d.Packets
	}
	pods, uplinks, replied := s.PodAddrs(), map[int]bool{}, map[[2]netip.Addr]bool{}
	for _, l := range s.Links {
		uplinks[l.Index] = l.Role == model.RoleUplink
	}
	for _, f := range s.Flows {
		if f.Replied {
			replied[[2]netip.Addr{f.Original.Src, f.Reply.Src}], replied[[2]netip.Addr{f.Reply.Src, f.Original.Src}] = true, true
		}
	}
	for _, p := range s.Traffic.Peers {
		if p.In.Replies > 0 {
			// Programs may have put the node's address in place of the pod's.
			replied[[2]netip.Addr{{}, p.Remote}] = replied[[2]netip.Addr{{}, p.Remote}] || !pods[p.Local]
		}
	}
	return model.Filter(model.MergePeers(s.Traffic.Peers, func(link int) bool { return uplinks[link] }), func(p model.Peer) bool {
		return pods[p.Local] && p.Remote.IsValid() && p.Out.Requests > 0 && p.In == (model.PeerCount{}) &&
			dropped[[2]netip.Addr{p.Local, p.Remote}] < p.Out.Packets &&
			!replied[[2]netip.Addr{p.Local, p.Remote}] && !replied[[2]netip.Addr{{}, p.Remote}]
	})
}
