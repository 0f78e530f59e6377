package fabric

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/words"
)

// blockBits is the size of a NIC's blocks.
const blockBits = 28

// NICAddress reports pods with addresses of the virtual network that their node's NIC does not have.
var NICAddress = fault.Kind{Code: "NICAddress", Severity: model.Critical, Find: nicAddress, Needs: fault.Sources{model.SourceLinks},
	Rests: fault.Sources{model.SourceTC}, Ends: fault.Hops{model.HopBeyond}, Objects: fault.Objects{"nic.ID holder.ID", "nic.ID"},
	Traits: model.Unheard}

func nicAddress(v *fault.Input) {
	own, nics := v.OwnNICs(), v.Cluster.Azure.NICs
	// Where the network gives pods addresses without their NIC, no NIC has any. Those of uniform scale sets may be told without the
	// length of a block, so that only its first address shows.
	uniform := func(n *model.NIC) bool { return model.ResourcePart(n.ID, "virtualMachineScaleSets") != "" }
	listed := slices.ContainsFunc(nics, func(n model.NIC) bool {
		alike := len(own) > 0 && uniform(&n) == uniform(own[0])
		return alike && (len(n.Blocks) > 0 || slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool {
			block, _ := a.Prefix(blockBits)
			return len(v.Owners[a]) > 0 && (a != block.Addr() || !uniform(&n))
		}))
	})
	var holders node.Groups[*model.NIC, node.Lost]
	answered := node.AddrSet{}
	for p := range model.Each(v.Peers) {
		a := p.Local
		has := func(n *model.NIC) bool { return n.Has(a) }
		switch {
		case len(own) == 0 || len(v.Owners[a]) == 0 || v.IsTunnel(p.IfIndex) || !v.Elsewhere(p.Remote) || v.ByUDR(a),
			slices.ContainsFunc(own, has):
		case v.Answered(p):
			answered.Add(a)
		case v.Unanswered(p) && node.Lasted(p) && !v.Silenced(a, model.Host(p.Remote)):
			if holder := model.First(nics, has); holder != nil || listed && v.OfSubnet(a) {
				holders.Of(holder).AddPair(p, v.Senders(p), v.Asked(p))
			}
		}
	}
	for holder, lost := range holders.All() {
		if lost.Requests < node.MinAsks || slices.ContainsFunc(node.Sorted(lost.Pods), func(a netip.Addr) bool { return answered[a] }) {
			continue
		}
		f := fault.Fault{Lost: lost, Facts: words.Facts{"nic": own[0], "holder": holder, "node": v.Self(), "asks": lost.Requests}}
		f.LastHopAlive = v.Place(v.LinkName(lost.Link), model.Egress)
		f.Silences = func(asker netip.Addr, asked netip.Prefix) bool { return lost.Pods[asker] && v.Elsewhere(asked.Addr()) }
		v.Report(f)
	}
}
