package cilium

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/probe/model"
)

// mapDir has the maps, below the root.
const mapDir = "sys/fs/bpf/tc/globals"

// Bounds of what is read of one map.
const (
	maxEntries = 16384
	maxTime    = 200 * time.Millisecond
)

// layout is a map of a known form. Numbers are the machine's, addresses and ports the
// network's.
type layout struct {
	name       string
	kind       ebpf.MapType
	key, value uint32
	// decode takes an entry. Of a map by CPU it gets the value of one.
	decode func(d *decoded, key, value []byte)
}

// layouts are those of Cilium 1.14 to 1.18.
var layouts = []layout{
	{"cilium_lxc", ebpf.Hash, 20, 48, decodeLocal},
	{"cilium_ipcache_v2", ebpf.LPMTrie, 24, 24, decodeKnown},
	{oldKnown, ebpf.LPMTrie, 24, 12, decodeKnown},
	{"cilium_lb4_services_v2", ebpf.Hash, 12, 12, decodeService},
	{"cilium_metrics", ebpf.PerCPUHash, 8, 16, decodeCount},
}

// oldKnown is the map before Cilium 1.18, which may leave it behind.
const oldKnown = "cilium_ipcache"

// decoded is what the maps hold.
type decoded struct {
	local, known []model.CiliumAddress
	services     []model.CiliumService
	counts       map[model.CiliumCount]uint64
}

// readMaps reads the maps in a directory, and says how many entries each has. Of one that
// was not read whole nothing is kept.
func readMaps(ctx context.Context, dir string, c *model.Cilium) (found []string, err error) {
	var errs []error
	for _, l := range layouts {
		if l.name == oldKnown && len(c.Known) > 0 {
			continue
		}
		d := decoded{counts: map[model.CiliumCount]uint64{}}
		n, err := l.read(ctx, filepath.Join(dir, l.name), &d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("map %s: %w", l.name, err))
			continue
		}
		found = append(found, fmt.Sprintf("%s %d", l.name, n))
		c.Local, c.Known = append(c.Local, d.local...), append(c.Known, d.known...)
		c.Services = append(c.Services, d.services...)
		for k, n := range d.counts {
			k.Packets = n
			c.Counts = append(c.Counts, k)
		}
	}
	for _, list := range [][]model.CiliumAddress{c.Local, c.Known} {
		slices.SortFunc(list, func(a, b model.CiliumAddress) int { return a.Prefix.Compare(b.Prefix) })
	}
	slices.SortFunc(c.Services, func(a, b model.CiliumService) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Proto, b.Proto))
	})
	slices.SortFunc(c.Counts, func(a, b model.CiliumCount) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Direction, b.Direction))
	})
	return found, errors.Join(errs...)
}

// read reads a map whose form is the layout's, and returns its number of entries.
func (l *layout) read(ctx context.Context, path string, d *decoded) (n int, err error) {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if m.Type() != l.kind || m.KeySize() != l.key || m.ValueSize() != l.value {
		return 0, fmt.Errorf("keys of %d and values of %d bytes are of no version of Cilium that is known",
			m.KeySize(), m.ValueSize())
	}
	key, value := make([]byte, l.key), make([]byte, l.value)
	var each [][]byte
	into := any(&value)
	if l.kind == ebpf.PerCPUHash {
		into = &each
	}
	end := time.Now().Add(maxTime)
	entries := m.Iterate()
	for ; entries.Next(&key, into); n++ {
		if n == maxEntries || time.Now().After(end) || ctx.Err() != nil {
			return n, fmt.Errorf("it has more entries than are read: %d in %v", maxEntries, maxTime)
		}
		if l.kind != ebpf.PerCPUHash {
			each = [][]byte{value}
		}
		for _, v := range each {
			l.decode(d, key, v)
		}
	}
	return n, entries.Err()
}

// Families of addresses in keys.
const (
	family4 = 1
	family6 = 2
)

// address decodes an IPv4 or IPv6 address.
func address(family byte, b []byte) (netip.Addr, bool) {
	switch family {
	case family4:
		return netip.AddrFrom4([4]byte(b[:4])), true
	case family6:
		return netip.AddrFrom16([16]byte(b[:16])), true
	}
	return netip.Addr{}, false
}

// decodeLocal decodes an entry of cilium_lxc: struct endpoint_key and endpoint_info. Those
// of the node's own addresses are of no pod.
func decodeLocal(d *decoded, key, value []byte) {
	const host = 1 // ENDPOINT_F_HOST
	a, ok := address(key[16], key)
	if !ok || binary.NativeEndian.Uint32(value[8:])&host != 0 {
		return
	}
	d.local = append(d.local, model.CiliumAddress{
		Prefix: netip.PrefixFrom(a, a.BitLen()), IfIndex: int(binary.NativeEndian.Uint32(value)),
		Endpoint: binary.NativeEndian.Uint16(value[6:]),
		Identity: model.CiliumIdentity(binary.NativeEndian.Uint32(value[32:])),
	})
}

// decodeKnown decodes an entry of cilium_ipcache: struct ipcache_key and remote_endpoint_info.
// Its prefix is behind 32 bits of others. Those of other clusters of a mesh are left out.
func decodeKnown(d *decoded, key, value []byte) {
	a, ok := address(key[7], key[8:])
	bits := int(binary.NativeEndian.Uint32(key)) - 32
	if !ok || bits < 0 || bits > a.BitLen() || binary.NativeEndian.Uint16(key[4:]) != 0 {
		return
	}
	d.known = append(d.known, model.CiliumAddress{
		Prefix: netip.PrefixFrom(a, bits), Identity: model.CiliumIdentity(binary.NativeEndian.Uint32(value)),
	})
}

// decodeService decodes an entry of cilium_lb4_services_v2: struct lb4_key and lb4_service.
// That of slot 0 has how many backends there are.
func decodeService(d *decoded, key, value []byte) {
	slot, backends := binary.NativeEndian.Uint16(key[6:]), binary.NativeEndian.Uint16(value[4:])
	if slot != 0 || backends != 0 || key[9] != 0 {
		return
	}
	a := netip.AddrPortFrom(netip.AddrFrom4([4]byte(key[:4])), binary.BigEndian.Uint16(key[4:]))
	if a.Port() != 0 {
		d.services = append(d.services, model.CiliumService{Addr: a, Proto: key[8]})
	}
}

// decodeCount decodes an entry of cilium_metrics, of one CPU: struct metrics_key and
// metrics_value. Reasons below the first are of packets that were not dropped.
func decodeCount(d *decoded, key, value []byte) {
	const firstReason = 130
	if key[0] < firstReason {
		return
	}
	directions := map[byte]model.Direction{1: model.Ingress, 2: model.Egress}
	x := model.CiliumCount{Reason: model.CiliumReason(key[0]), Direction: directions[key[1]&3]}
	d.counts[x] += binary.NativeEndian.Uint64(value)
}
