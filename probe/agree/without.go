package agree

import (
	"fmt"
	"iter"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// losses are what a snapshot has no more where a source was not read, with what is found by it. Half of a source is
// what an interrupted dump leaves.
var losses = map[string]func(s *model.Snapshot, half bool){
	model.SourceLinks: func(s *model.Snapshot, half bool) {
		s.Links = part(s.Links, half)
		read := model.SetOf(model.Map(s.Links, func(l model.Link) string { return l.Name }))
		s.Node.Uplinks = model.Filter(s.Node.Uplinks, func(l string) bool { return read[l] })
		s.Pods = model.Filter(s.Pods, func(p model.Pod) bool { return read[p.Link] })
		s.Programs = model.Filter(s.Programs, func(p model.Program) bool { return p.Link == "" || read[p.Link] })
		s.Devices = model.Filter(s.Devices, func(d model.Device) bool { return read[d.Link] })
		s.Routes, s.Neighbors, s.Queues = slices.Clone(s.Routes), slices.Clone(s.Neighbors), slices.Clone(s.Queues)
		for r := range model.Each(s.Routes) {
			r.Link = model.Either(read[r.Link], r.Link, "")
			r.NextHops = slices.Clone(r.NextHops)
			for h := range model.Each(r.NextHops) {
				h.Link = model.Either(read[h.Link], h.Link, "")
			}
		}
		for n := range model.Each(s.Neighbors) {
			n.Link = model.Either(read[n.Link], n.Link, "")
		}
		for q := range model.Each(s.Queues) {
			q.Link = model.Either(read[q.Link], q.Link, "")
		}
		for _, also := range []string{model.SourcePods, model.SourcePrograms, model.SourceStats} {
			mark(s, also, model.Partial)
		}
	},
	model.SourceQueues: func(s *model.Snapshot, half bool) { s.Queues = part(s.Queues, half) },
	model.SourceStats: func(s *model.Snapshot, half bool) {
		s.Devices, s.Softnet = part(s.Devices, half), part(s.Softnet, half)
		s.NeighborTables, s.SocketLimits = part(s.NeighborTables, half), part(s.SocketLimits, half)
	},
	model.SourceRoutes: func(s *model.Snapshot, half bool) {
		s.Routes, s.Rules = part(s.Routes, half), part(s.Rules, half)
	},
	model.SourceNeighbors: func(s *model.Snapshot, half bool) { s.Neighbors = part(s.Neighbors, half) },
	model.SourceBridge:    func(s *model.Snapshot, half bool) { s.FDB = part(s.FDB, half) },
	model.SourceSysctl:    func(s *model.Snapshot, half bool) { s.Sysctls = part(s.Sysctls, half) },
	model.SourceEbtables: func(s *model.Snapshot, half bool) {
		s.FrameRules = part(s.FrameRules, half)
		s.Chains = chains(s.Chains, func(c *model.Chain) bool { return c.Family == "bridge" }, half)
	},
	model.SourceNAT: func(s *model.Snapshot, half bool) {
		s.PacketRules, s.Sets = part(s.PacketRules, half), part(s.Sets, half)
		s.Chains = chains(s.Chains, func(c *model.Chain) bool { return c.Family != "bridge" }, half)
	},
	model.SourceConntrack: func(s *model.Snapshot, half bool) {
		s.Flows = part(s.Flows, half)
		if !half {
			s.Conntrack = model.Conntrack{}
		}
	},
	model.SourcePods: func(s *model.Snapshot, half bool) {
		s.Pods = part(s.Pods, half)
		pods := model.SetOf(model.Map(s.Pods, func(p model.Pod) string { return p.Link }))
		s.Links = slices.Clone(s.Links)
		for l := range model.Each(s.Links) {
			if l.Role == model.RolePodLink && !pods[l.Name] {
				l.Role = model.RoleOther
			}
		}
	},
	model.SourceNames: func(s *model.Snapshot, half bool) {
		s.Pods = slices.Clone(s.Pods)
		for i := range s.Pods {
			if !half || i%2 == 0 {
				s.Pods[i].Namespace, s.Pods[i].Name, s.Pods[i].UID = "", "", ""
			}
		}
	},
	model.SourceFiles: func(s *model.Snapshot, half bool) {
		if !half {
			s.Node.Networkd, s.Cluster.Azure.Node = nil, model.AzureNode{}
		}
	},
	model.SourcePrograms: func(s *model.Snapshot, half bool) { s.Programs = part(s.Programs, half) },
	model.SourceCilium: func(s *model.Snapshot, half bool) {
		if !half {
			s.Cilium = model.Cilium{}
		}
	},
	model.SourceTC: func(s *model.Snapshot, half bool) {
		watched := model.SetOf(model.Map(part(s.Links, half), func(l model.Link) int { return l.Index }))
		t := &s.Traffic
		t.Hops = model.Filter(t.Hops, func(c model.HopCount) bool { return watched[c.IfIndex] })
		t.Peers = model.Filter(t.Peers, func(c model.Peer) bool { return watched[c.IfIndex] })
		t.Pairs = model.Filter(t.Pairs, func(c model.PairCount) bool { return watched[c.IfIndex] })
		t.MACs = model.Filter(t.MACs, func(c model.MACPair) bool { return watched[c.IfIndex] })
		t.ARP = model.Filter(t.ARP, func(c model.ARPCount) bool { return watched[c.IfIndex] })
		s.Edges.Read = false
	},
	model.SourceDrops: func(s *model.Snapshot, half bool) {
		s.Traffic.Drops, s.Traffic.Samples = part(s.Traffic.Drops, half), part(s.Traffic.Samples, half)
	},
}

// part is nothing of a list, or every second element.
func part[T any](list []T, half bool) (out []T) {
	for i, x := range list {
		if half && i%2 == 0 {
			out = append(out, x)
		}
	}
	return out
}

func chains(list []model.Chain, of func(*model.Chain) bool, half bool) []model.Chain {
	n := 0
	return model.Filter(list, func(c model.Chain) bool {
		if !of(&c) {
			return true
		}
		n++
		return half && n%2 == 1
	})
}

func mark(s *model.Snapshot, source string, status model.Status) {
	s.Sources = slices.Clone(s.Sources)
	for src := range model.Each(s.Sources) {
		if src.Name == source && src.Status == model.OK {
			src.Status = status
		}
	}
}

// WithoutSource yields the snapshot without each of its sources, and with half of each, by what is missing.
func WithoutSource(s *model.Snapshot) iter.Seq2[string, *model.Snapshot] {
	return func(yield func(string, *model.Snapshot) bool) {
		for _, src := range s.Sources {
			lose := losses[src.Name]
			if lose == nil || src.Status != model.OK {
				continue
			}
			for _, status := range []model.Status{model.Missing, model.Partial} {
				poor := *s
				mark(&poor, src.Name, status)
				lose(&poor, status == model.Partial)
				if !yield(src.Name+" "+string(status), &poor) {
					return
				}
			}
		}
	}
}

// Accusations are what diagnose finds only because a source was not read: what is proven beside the drops that were
// seen and, where nothing was found, anything. What counts would refute is possible without them. Proven are also the
// losses that then have no name.
func Accusations(s *model.Snapshot, judge func(*model.Snapshot) model.Verdict) (proven, healthy []string) {
	whole := judge(s).Findings
	for lost, poor := range WithoutSource(s) {
		v := judge(poor)
		for _, u := range Unaccounted(poor, v) {
			proven = append(proven, fmt.Sprintf("without %s: no name for %s", lost, u))
		}
		for _, f := range v.Findings {
			if slices.ContainsFunc(whole, func(w model.Finding) bool {
				return w.Code == f.Code && w.Confidence.Rank() >= f.Confidence.Rank()
			}) {
				continue
			}
			// The kernel's own reason says so.
			seen := f.Code == "UnexplainedDrop" || f.Code == "BPFDrop" || f.Severity == model.Info
			text := fmt.Sprintf("without %s: %s %s %s: %s", lost, f.Severity, f.Confidence, f.Code, f.Title)
			if f.Confidence == model.Proven && !seen {
				proven = append(proven, text)
			} else if len(whole) == 0 {
				healthy = append(healthy, text)
			}
		}
	}
	return proven, healthy
}
