package diagnose

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/words"
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

// untranslatedServices are those of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
type untranslatedServices struct {
	// First is the first of Names, with Except: the rules there are, of the last.
	First  netip.Addr
	Names  []virtualPort
	Except string
	// All: no destination is another. Then what else may lose requests is none of their
	// causes.
	All  bool
	Seen []model.Evidence
}

func (v *view) untranslatedServices(remotes []netip.Addr) *untranslatedServices {
	u := untranslatedServices{Except: "whole"}
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
			u.Except = "beside"
			u.Seen = append(u.Seen, packetRuleEvidence(fmt.Sprintf("no rule translates %s, but this one translates others", name), found.Beside[0]))
		case len(found.Others) > 0:
			u.Except = "others"
			u.Seen = append(u.Seen, seen(model.SourceNAT, "no rule translates %s, though rules translate others of its range: %s", a, words.Addrs(found.Others)))
		case len(found.Rules) > 0:
			u.Seen = append(u.Seen, packetRuleEvidence(fmt.Sprintf("this rule is for %s, and leads to none that translates it", a), found.Rules[0]))
		default:
			continue
		}
		if len(u.Names) == 0 {
			u.First = a
		}
		u.Names = append(u.Names, name)
	}
	if len(u.Names) == 0 {
		return nil
	}
	u.All = len(u.Names) == len(remotes)
	return &u
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
