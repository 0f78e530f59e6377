package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// The limit of Azure, and from where on a cluster that grows should know.
const (
	udrMost = 400
	udrMany = 360
)

// UDRLimit reports route tables that are close to the number of rows that the cloud allows.
var UDRLimit = fault.Kind{Code: "UDRLimit", Severity: model.Warning, Find: udrLimit, Passes: true}

func udrLimit(v *fault.Input) {
	if len(v.OwnCIDRs()) == 0 {
		return
	}
	listed := v.Cluster.Nodes[:len(v.Cluster.Nodes)-len(v.Others.Nodes)] // recordings need no table
	needed := model.SetOf(model.Flat(listed, func(n model.ClusterNode) []netip.Prefix { return n.PodCIDRs }))
	// What the table holds beside the nodes' rows takes room too.
	var tables []*model.RouteTable
	rows, others := 0, 0
	for _, t := range v.ClusterTables() {
		if len(t.Routes) < rows {
			continue
		}
		rows, others = len(t.Routes), 0
		for _, r := range t.Routes {
			if !slices.ContainsFunc(r.Prefixes, func(p netip.Prefix) bool { return needed[p] }) {
				others++
			}
		}
		tables = append(tables, t)
	}
	wanted := max(rows, len(needed)+others)
	if wanted < udrMany {
		return
	}
	f := fault.Fault{Facts: words.Facts{
		"wanted": wanted, "most": udrMost, "nodes": listed, "ranges": needed, "tables": tables,
	}}
	if wanted > udrMost || rows >= udrMost {
		f.Severity, f.Facts["full"] = model.Critical, true
	}
	v.Report(f)
}
