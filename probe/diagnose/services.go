package diagnose

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// virtualPort is a service's address, with the port where others are not meant.
type virtualPort struct {
	addr netip.Addr
	port protoPort
}

func (p virtualPort) String() string {
	if p.port.proto == 0 {
		return p.addr.String()
	}
	return fmt.Sprintf("%s for %s", p.addr, p.port)
}

// sayUntranslated tells of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
// It reports whether all of them are such: then what else may lose requests is none
// of their causes.
func (v *view) sayUntranslated(f *model.Finding, remotes []netip.Addr) (all bool) {
	var services []netip.Addr
	var names []virtualPort
	why := "though there are rules for it"
	tables := path.NewTables(v.Snapshot)
	to := map[netip.Addr][]*model.Peer{}
	for p := range model.Each(v.peers) {
		to[p.Remote] = append(to[p.Remote], p)
	}
	for _, a := range remotes {
		if v.remote(a).IsValid() || !v.elsewhere(a) {
			continue
		}
		sent, found := v.untranslated(tables, to[a])
		name := virtualPort{addr: a}
		switch {
		case len(found.Beside) > 0:
			name.port = protoPort{sent.Proto, sent.DstPort}
			why = "though rules translate the address for other protocols or ports"
			f.Evidence = append(f.Evidence, packetRuleEvidence(fmt.Sprintf("no rule translates %s, but this one translates others", name), found.Beside[0]))
		case len(found.Others) > 0:
			why = "though rules translate others of that range"
			observe(f, model.SourceNAT, "no rule translates %s, though rules translate others of its range: %s", a, addrs(found.Others))
		case len(found.Rules) > 0:
			f.Evidence = append(f.Evidence, packetRuleEvidence(fmt.Sprintf("this rule is for %s, and leads to none that translates it", a), found.Rules[0]))
		default:
			continue
		}
		services, names = append(services, a), append(names, name)
	}
	if len(services) == 0 {
		return false
	}
	what := addrs(names)
	why = fmt.Sprintf("No rule of this node translates %s, %s: a service's address that is not translated "+
		"leaves the node, and nobody beyond has it. Its service is gone, has no endpoint or port like that, or kube-proxy is behind.", what, why)
	f.Fix = append(f.Fix,
		fmt.Sprintf("kubectl get services --all-namespaces | grep -wF %s", shellWord(services[0].String())),
		"where the service is there and has endpoints, restart kube-proxy on this node; where it is gone, look who still asks for it")
	if !slices.Equal(services, remotes) {
		f.Why += " " + why
		return false
	}
	f.Title = fmt.Sprintf("no rule translates %s, and what is sent there leaves the node", what)
	f.Why = why
	f.Unseen = nil
	f.Alternatives = []string{"a program beside netfilter translates services, and has lost these", "the addresses are no services', and their machines are down"}
	return true
}

// untranslated is a packet that was sent to an address by these pairs, and why the address looks like a
// service's that no rule translates for such packets.
func (v *view) untranslated(tables *path.Tables, to []*model.Peer) (path.Packet, path.Untranslated) {
	for _, p := range to {
		for _, sent := range v.leaving(p) {
			if found := tables.Untranslated(v.Snapshot, v.routing(), sent); found.Is() {
				return sent, found
			}
		}
	}
	return path.Packet{}, path.Untranslated{}
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
