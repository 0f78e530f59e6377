package fabric

import (
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// silentPeers are the peers of the ranges that do not answer.
func silentPeers(list []*node.RemoteRange) []*model.Peer {
	return model.Flat(list, func(r *node.RemoteRange) []*model.Peer { return r.Silent })
}
