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

// decodeService decodes an entry of cilium_lb4_services_v2 or cilium_lb6_services_v2: struct lb4_key and
// lb4_service, or those of lb6. Those without a port stand for all other ports of their address, and drop.
func decodeService(d *decoded, key, value []byte) {
	const rest = 8 // bytes behind the address: port, slot, protocol, scope
	a, key := addressOf(key[:len(key)-rest]), key[len(key)-rest:]
	port := binary.BigEndian.Uint16(key)
	if port == 0 {
		return
	}
	k := serviceKey{netip.AddrPortFrom(a, port), key[4], key[5]}
	s := d.services[k]
	if s == nil {
		s = &service{slots: map[uint16]uint32{}}
		d.services[k] = s
	}
	if slot := binary.NativeEndian.Uint16(key[2:]); slot > 0 {
		s.slots[slot] = binary.NativeEndian.Uint32(value)
		return
	}
	s.frontend, s.count, s.flags = true, binary.NativeEndian.Uint16(value[4:]), [2]uint8(value[8:])
}

// addressOf is an address in the network's order.
func addressOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// decodeBackend decodes an entry of cilium_lb4_backends_v3 or cilium_lb6_backends_v3: struct
// lb4_backend or lb6_backend, by its number.
func decodeBackend(d *decoded, key, value []byte) {
	const rest = 8 // bytes behind the address: port, protocol, state, cluster, zone
	a, value := addressOf(value[:len(value)-rest]), value[len(value)-rest:]
	d.backends[backendKey{binary.NativeEndian.Uint32(key), a.Is6()}] = netip.AddrPortFrom(a, binary.BigEndian.Uint16(value))
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
