package silence

import (
	"net/netip"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/path"
)

// untranslatedServices are those of silent destinations that seem to be services' addresses
// and that no rule translates: their packets leave the node, where nobody has them.
type untranslatedServices struct {
	List []node.UntranslatedService
	// Except: the rules there are, of the last of List.
	Except string
	// All: no destination is another. Then what else may lose requests is none of their causes.
	All bool
}

func findUntranslated(v *node.Index, remotes []netip.Addr) *untranslatedServices {
	u := untranslatedServices{Except: "whole"}
	to := map[netip.Addr][]*model.Peer{}
	for p := range model.Each(v.Peers) {
		to[p.Remote] = append(to[p.Remote], p)
	}
	for _, a := range remotes {
		if v.Remote(a).IsValid() || !v.Elsewhere(a) {
			continue
		}
		sent, found := untranslated(v, to[a])
		s := node.UntranslatedService{Addr: a}
		switch {
		case len(found.Beside) > 0:
			s.Port, s.Beside, u.Except = node.ProtoPort{Proto: sent.Proto, Number: sent.DstPort}, found.Beside[0], "beside"
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
func untranslated(v *node.Index, to []*model.Peer) (path.Packet, path.Untranslated) {
	for _, p := range to {
		for _, sent := range v.Leaving(p) {
			if found := v.Tables().Untranslated(sent); found.Is() {
				return sent, found
			}
		}
	}
	return path.Packet{}, path.Untranslated{}
}
