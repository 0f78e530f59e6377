package diagnose

import (
	"fmt"

	"github.com/lasthop/lasthop/probe/model"
)

// ConntrackFull is the code of this finding.
const ConntrackFull model.Code = "ConntrackFull"

var conntrackFull = kind{
	code:     ConntrackFull,
	severity: model.Critical,
	find:     findConntrackFull,
	ends:     []model.HopKind{model.HopConntrack, model.HopPolicy}, // netfilter drops both
}

// nearlyFull is the share of the limit from which the table is as good as
// full, in percent.
const nearlyFull = 95

func findConntrackFull(v *view) []finding {
	c := &v.Conntrack
	if !v.Has(model.SourceConntrack) || c.Max == 0 || c.Count*100 < c.Max*nearlyFull {
		return nil
	}
	var l lost
	for d := range model.Each(v.Traffic.Drops) {
		// Connection tracking drops in the hook itself, never within nft.
		if c.Drop > 0 && d.Netfilter() && d.Location != model.LocationNFT && v.ofPod(d) && !v.inPod(d).IsValid() {
			l.add(v, d)
		}
	}
	f := l.finding()
	f.LastHopAlive.Direction = model.Ingress
	f.Packets = c.Drop
	f.Title = fmt.Sprintf("the connection-tracking table is full: %d of %d", c.Count, c.Max)
	f.Why = fmt.Sprintf("The node's table holds %d flows and may hold %d. New flows find no room.", c.Count, c.Max)
	f.Evidence = []model.Evidence{seen(model.SourceConntrack,
		"%d entries, limit %d; in the window %s dropped for want of room, %s thrown out early", c.Count, c.Max, count(c.Drop, "packet"), count(c.EarlyDrop, "flow"))}
	f.Evidence = append(f.Evidence, dropEvidence(l.drops)...)
	switch {
	case c.Drop > 0:
	case c.EarlyDrop > 0:
		f.Confidence = model.Likely
		f.Unseen = append(f.Unseen, "a packet that was dropped for it: flows were thrown out in time")
	default:
		f.Severity, f.Confidence = model.Warning, model.Possible
		f.Unseen = append(f.Unseen, "a flow that found no room in the window")
	}
	f.Fix = []string{
		fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 2*c.Max),
		"conntrack -L -o extended | awk '{print $7, $9}' | sort | uniq -c | sort -rn | head # who holds the entries",
	}
	return []finding{{Finding: f, claims: sameDrops(l.drops)}}
}
