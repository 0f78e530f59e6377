package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// UDRLimit is the code of this finding.
const UDRLimit model.Code = "UDRLimit"

var udrLimit = kind{
	code:     UDRLimit,
	severity: model.Warning,
	find:     findUDRLimit,
	passes:   true,
}

// The limit of Azure, and from where on a cluster that grows should know.
const (
	udrMost = 400
	udrMany = 360
)

func findUDRLimit(v *view) []finding {
	if len(v.ownCIDRs()) == 0 {
		return nil
	}
	needed := map[netip.Prefix]bool{}
	for _, n := range v.Cluster.Nodes {
		for _, p := range n.PodCIDRs {
			needed[p] = true
		}
	}
	nodes := len(needed)
	f := model.Finding{Confidence: model.Proven}
	observeSome(&f, nodes, model.SourceNodes, "%s with %s",
		words.Count(uint64(len(v.Cluster.Nodes)), "node"), words.Count(uint64(nodes), "pod range"))
	// What the table holds beside the nodes' rows takes room too.
	rows, others := 0, 0
	for _, t := range v.clusterTables() {
		if len(t.Routes) < rows {
			continue
		}
		rows, others = len(t.Routes), 0
		for _, r := range t.Routes {
			if !slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return needed[p] }) {
				others++
			}
		}
		observe(&f, model.SourceCloud, "%s holds %s", tableName(t), words.Count(uint64(rows), "route"))
	}
	wanted := max(rows, nodes+others)
	switch {
	case nodes == 0 && rows == 0 || wanted < udrMany:
		return nil
	case wanted > udrMost, rows >= udrMost:
		f.Severity = model.Critical
		f.Title = fmt.Sprintf("%d routes are wanted, a table holds %d", wanted, udrMost)
		f.Why = "No further route fits into the table: nodes without one cannot exchange packets with other nodes' pods."
	default:
		f.Title = fmt.Sprintf("%d of at most %d routes are wanted", wanted, udrMost)
		f.Why = "Each further node needs a route of its own. Beyond the limit a node gets none, and its pods reach no other node's."
	}
	f.Fix = []string{"az aks update --resource-group RESOURCE_GROUP --name CLUSTER --network-plugin azure --network-plugin-mode overlay"}
	return []finding{{Finding: f}}
}
