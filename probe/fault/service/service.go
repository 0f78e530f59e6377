// Package service finds services whose endpoints are gone.
package service

import (
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
)

// unserved reports whether Cilium refuses what is sent to the name server, since it has no backend.
func unserved(v *node.Index, server netip.Addr) bool {
	services := v.NamesOfCilium(server)
	return len(services) > 0 && !slices.ContainsFunc(services, func(s *model.CiliumService) bool { return len(s.Backends) > 0 })
}
