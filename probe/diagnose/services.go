package diagnose

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
)

// untranslatedServices are those of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
type untranslatedServices struct {
	List []untranslatedService
	// Except: the rules there are, of the last of List.
	Except string
	// All: no destination is another. Then what else may lose requests is none of their
	// causes.
	All bool
}

// untranslatedService is a service's address, with the port where others are not meant: a rule
// translates Beside it for these, or Others of its range, or Rule is for it and leads to none
// that does.
type untranslatedService struct {
	Addr         netip.Addr
	port         protoPort
	Beside, Rule *model.PacketRule
	Others       []netip.Addr
}

func (s untranslatedService) String() string {
	if s.port.proto == 0 {
		return s.Addr.String()
	}
	return fmt.Sprintf("%s for %s", s.Addr, s.port)
}

func (v *view) untranslatedServices(remotes []netip.Addr) *untranslatedServices {
	u := untranslatedServices{Except: "whole"}
	to := map[netip.Addr][]*model.Peer{}
	for p := range model.Each(v.peers) {
		to[p.Remote] = append(to[p.Remote], p)
	}
	for _, a := range remotes {
		if v.remote(a).IsValid() || !v.elsewhere(a) {
			continue
		}
		sent, found := v.untranslated(to[a])
		s := untranslatedService{Addr: a}
		switch {
		case len(found.Beside) > 0:
			s.port, s.Beside, u.Except = protoPort{sent.Proto, sent.DstPort}, found.Beside[0], "beside"
		case len(found.Others) > 0:
			s.Others, u.Except = found.Others, "others"
		case len(found.Rules) > 0:
			s.Rule = found.Rules[0]
		default:
			continue
		}
		u.List = append(u.List, s)
	}
	if len(u.List) == 0 {
		return nil
	}
	u.All = len(u.List) == len(remotes)
	return &u
}

// untranslated is a packet that was sent to an address by these pairs, and why the address looks like a
// service's that no rule translates for such packets.
func (v *view) untranslated(to []*model.Peer) (path.Packet, path.Untranslated) {
	for _, p := range to {
		for _, sent := range v.leaving(p) {
			if found := v.Tables().Untranslated(sent); found.Is() {
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
		is = len(v.Tables().Services(a)) > 0
		v.services[block] = is
	}
	return is
}
