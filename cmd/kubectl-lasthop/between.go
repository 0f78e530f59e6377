package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/join"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/report"
)

// protocols are those that a destination may name.
var protocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}

// ends are those of a path between pods on two nodes.
func ends(near, far target) (e path.Ends, err error) {
	place, proto, named := strings.Cut(near.to, "/")
	if named && protocols[strings.ToLower(proto)] == 0 {
		return e, usagef("--to %s: no protocol %q; want tcp, udp, icmp, icmpv6 or sctp", near.to, proto)
	}
	e.Proto = protocols[strings.ToLower(proto)]
	if _, err := netip.ParseAddr(place); err != nil {
		to, err := netip.ParseAddrPort(place)
		if err != nil || to.Port() == 0 {
			return e, usagef("--to %s: want pod/NAME[:PORT][/PROTO]", near.to)
		}
		e.Port = to.Port()
	}
	both := addresses([]string{near.pods[0], far.pods[0]})
	if len(both) < 2 || both[0].Is4() != both[1].Is4() {
		return e, usagef("the pods have no addresses of one family: %s and %s", near.pods[0], far.pods[0])
	}
	e.Pod, e.To = both[0], both[1]
	return e, nil
}

// end is the recording of one end's node.
type end struct {
	node     string
	snapshot *model.Snapshot
	err      error
}

func (r *runner) end(targets []target, i int) end {
	s, err := readRecording(r.recording(i))
	return end{targets[i].node, s, err}
}

// between is the path through both nodes and the gap between them, with what all show.
func between(result join.Result, found report.Joint, near, far end, e path.Ends) report.Path {
	at := func(x end) join.End {
		i := slices.IndexFunc(result.Nodes, func(n model.NodeSeen) bool { return n.Recording == x.node })
		return join.End{Name: result.Nodes[i].Name, Snapshot: x.snapshot}
	}
	p := report.Path{Snapshot: near.snapshot, Far: far.snapshot, Limits: found.Limits, Path: join.Trace(at(near), at(far), found.Findings, e)}
	p.Take(found.Findings)
	return p
}

// pathVerdict is the exit status, as that of lasthop's explain: a hop at which packets
// end for a finding below --fail-on is no failure.
func (j *joint) pathVerdict(p report.Path, all report.Joint) int {
	if p.Fails(j.failOn) {
		return exitFindings
	}
	all.Findings = p.Findings
	return j.verdict(all)
}
