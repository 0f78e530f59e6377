package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// sayUntranslated tells of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
func (v *view) sayUntranslated(f *model.Finding, remotes []netip.Addr) {
	var services []netip.Addr
	tables := path.NewTables(v.Snapshot)
	for _, a := range remotes {
		if v.remote(a).IsValid() || !v.elsewhere(a) {
			continue
		}
		others := tables.Untranslated(v.Snapshot, v.routing(), path.Packet{Src: f.Pods[0], Dst: a})
		if len(others) == 0 {
			continue
		}
		services = append(services, a)
		observe(f, model.SourceNAT, "no rule translates %s, though rules translate others of its range: %s", a, addrs(others))
	}
	if len(services) == 0 {
		return
	}
	why := fmt.Sprintf("No rule of this node translates %s, though rules translate others of that range: a service's address that is not translated "+
		"leaves the node, and nobody beyond has it. Its service is gone, has no endpoint or port like that, or kube-proxy is behind.", addrs(services))
	if slices.Equal(services, remotes) {
		f.Title = fmt.Sprintf("no rule translates %s, and what is sent there leaves the node", addrs(services))
		f.Why = why
		return
	}
	f.Why += " " + why
}

// besideServices reports whether rules translate addresses of the same block to
// others: it is of services, and no pod has one of the others.
func (v *view) besideServices(a netip.Addr) bool {
	block, err := a.Prefix(closeBits(a))
	if err != nil {
		return false
	}
	is, known := v.services[block]
	if !known {
		is = len(path.NewTables(v.Snapshot).Services(v.Snapshot, a)) > 0
		if v.services == nil {
			v.services = map[netip.Prefix]bool{}
		}
		v.services[block] = is
	}
	return is
}
