package cilium

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/probe/model"
)

// mapDir has the maps, below the root.
const mapDir = "sys/fs/bpf/tc/globals"

// Bounds of what is read of one map.
const (
	maxEntries = 65536
	maxTime    = 200 * time.Millisecond
)

// layout is a map of a known form. Numbers are the machine's, addresses and ports the network's.
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
	{"cilium_lb6_services_v2", ebpf.Hash, 24, 12, decodeService},
	// Backends are read behind services, of which they may be.
	{"cilium_lb4_backends_v3", ebpf.Hash, 4, 12, decodeBackend},
	{"cilium_lb6_backends_v3", ebpf.Hash, 4, 24, decodeBackend},
	{"cilium_metrics", ebpf.PerCPUHash, 8, 16, decodeCount},
}

// oldKnown is the map before Cilium 1.18, which may leave it behind.
const oldKnown = "cilium_ipcache"

// decoded is what the maps hold.
type decoded struct {
	local, known []model.CiliumAddress
	services     map[serviceKey]*service
	backends     map[backendKey]netip.AddrPort
	counts       map[model.CiliumCount]uint64
}

func newDecoded() decoded {
	return decoded{
		services: map[serviceKey]*service{}, backends: map[backendKey]netip.AddrPort{}, counts: map[model.CiliumCount]uint64{},
	}
}

// readMaps reads the maps in a directory, and says how many entries each has. Of one that
// was not read whole nothing is kept.
func readMaps(ctx context.Context, dir string, c *model.Cilium) (found []string, err error) {
	var errs []error
	all := newDecoded()
	for _, l := range layouts {
		if l.name == oldKnown && len(all.known) > 0 {
			continue
		}
		d := newDecoded()
		n, err := l.read(ctx, filepath.Join(dir, l.name), &d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("map %s: %w", l.name, err))
			continue
		}
		found = append(found, fmt.Sprintf("%s %d", l.name, n))
		all.local, all.known = append(all.local, d.local...), append(all.known, d.known...)
		maps.Copy(all.services, d.services)
		maps.Copy(all.backends, d.backends)
		maps.Copy(all.counts, d.counts)
	}
	c.Local, c.Known, c.Services = all.local, all.known, all.joined()
	for k, n := range all.counts {
		k.Packets = n
		c.Counts = append(c.Counts, k)
	}
	for _, list := range [][]model.CiliumAddress{c.Local, c.Known} {
		slices.SortFunc(list, func(a, b model.CiliumAddress) int { return a.Prefix.Compare(b.Prefix) })
	}
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
		return 0, fmt.Errorf("keys of %d bytes and values of %d bytes: no known version of Cilium has this layout",
			m.KeySize(), m.ValueSize())
	}
	cpus := 1
	if l.kind == ebpf.PerCPUHash {
		if cpus, err = ebpf.PossibleCPU(); err != nil {
			return 0, err
		}
	}
	keys, values := blocks(batch, l.key), blocks(batch*cpus, l.value)
	end := time.Now().Add(maxTime)
	var cursor ebpf.MapBatchCursor
	next := func() (int, error) { return m.BatchLookup(&cursor, keys.Interface(), values.Interface(), nil) }
	for more := true; more; {
		if n >= maxEntries || time.Now().After(end) || ctx.Err() != nil {
			return n, fmt.Errorf("too many entries: lasthop reads at most %d, for at most %v", maxEntries, maxTime)
		}
		got, err := next()
		if errors.Is(err, ebpf.ErrNotSupported) {
			// LPM tries before Linux 5.13.
			next = oneByOne(m, keys.Index(0), values.Index(0))
			got, err = next()
		}
		if more = err == nil; err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return n, err
		}
		for i := range got {
			for cpu := range cpus {
				l.decode(d, keys.Index(i).Bytes(), values.Index(i*cpus+cpu).Bytes())
			}
		}
		n += got
	}
	return n, nil
}

// oneByOne reads the next entry of a map each time.
func oneByOne(m *ebpf.Map, key, value reflect.Value) func() (int, error) {
	entries := m.Iterate()
	return func() (int, error) {
		if entries.Next(key.Addr().Interface(), value.Addr().Interface()) {
			return 1, nil
		}
		return 0, cmp.Or(entries.Err(), ebpf.ErrKeyNotExist)
	}
}

// batch is how many entries are read at once: one by one takes ten times as long. No bucket of
// a hash table has as many.
const batch = 4096

// blocks is a slice of arrays of so many bytes.
func blocks(n int, size uint32) reflect.Value {
	t := reflect.SliceOf(reflect.ArrayOf(int(size), reflect.TypeFor[byte]()))
	return reflect.MakeSlice(t, n, n)
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
