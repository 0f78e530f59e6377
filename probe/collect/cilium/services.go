package cilium

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/lasthop/lasthop/probe/model"
)

// serviceKey is of the entries of one service: its scope is 0 for who asks from outside, or
// from anywhere where both have the same backends.
type serviceKey struct {
	addr         netip.AddrPort
	proto, scope uint8
}

// service are the entries: that of slot 0 counts the others, each of which names a backend.
type service struct {
	frontend bool
	count    uint16
	flags    [2]uint8
	slots    map[uint16]uint32
}

// backendKey is a backend's number, which each family has of its own.
type backendKey struct {
	id  uint32
	is6 bool
}

// Flags of services, in their first and second byte. Versions only add some.
const (
	forOthers   = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 // external, NodePort, HostPort, LoadBalancer, routable
	byProxy     = 1 << 2                           // L7_LOADBALANCER
	insideLocal = 1 << 4                           // INT_LOCAL_SCOPE
	twoScopes   = 1 << 5
	insideScope = 1
)

// decodeService decodes an entry of cilium_lb4_services_v2 or cilium_lb6_services_v2. Those without a port, since 1.19,
// stand for all other ports of their address, and drop what comes from other machines: not what pods send.
func decodeService(d *decoded, f [][]byte) {
	a, port, slot := addressOf(f[0]), binary.BigEndian.Uint16(f[1]), binary.NativeEndian.Uint16(f[2])
	if port == 0 {
		return
	}
	k := serviceKey{netip.AddrPortFrom(a, port), f[3][0], f[4][0]}
	s := d.services[k]
	if s == nil {
		s = &service{slots: map[uint16]uint32{}}
		d.services[k] = s
	}
	if slot > 0 {
		s.slots[slot] = binary.NativeEndian.Uint32(f[5])
		return
	}
	s.frontend, s.count, s.flags = true, binary.NativeEndian.Uint16(f[6]), [2]uint8{f[7][0], f[8][0]}
}

// addressOf is an address in the network's order.
func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// decodeBackend decodes an entry of cilium_lb4_backends_v3 or cilium_lb6_backends_v3.
func decodeBackend(d *decoded, f [][]byte) {
	id, a, port := f[0], addressOf(f[1]), f[2]
	d.backends[backendKey{binary.NativeEndian.Uint32(id), a.Is6()}] = netip.AddrPortFrom(a, binary.BigEndian.Uint16(port))
}

// joined are the services with their backends, as a pod's process meets them. Left out are
// those that a proxy serves, and those of which a backend was not read.
func (d *decoded) joined() []model.CiliumService {
	var out []model.CiliumService
	for k, s := range d.services {
		if k.scope != 0 || !s.frontend {
			continue
		}
		if s.flags[1]&twoScopes != 0 {
			if s = d.services[serviceKey{k.addr, k.proto, insideScope}]; s == nil || !s.frontend {
				continue
			}
		}
		x := model.CiliumService{
			Addr: k.addr, Proto: k.proto, Local: s.flags[1]&insideLocal != 0,
			Cluster: s.flags[0]&forOthers == 0 && !k.addr.Addr().IsUnspecified(),
		}
		for slot := uint16(1); slot <= s.count && slot != 0; slot++ {
			if b, ok := d.backends[backendKey{s.slots[slot], k.addr.Addr().Is6()}]; ok {
				x.Backends = append(x.Backends, b)
			}
		}
		if len(x.Backends) == int(s.count) && s.flags[1]&byProxy == 0 {
			slices.SortFunc(x.Backends, netip.AddrPort.Compare)
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b model.CiliumService) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto))
	})
	return out
}
