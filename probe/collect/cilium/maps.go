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
	"github.com/cilium/ebpf/btf"

	"github.com/lasthop/lasthop/probe/model"
)

// mapDir has the maps, below the root.
const mapDir = "sys/fs/bpf/tc/globals"

// Bounds of what is read of one map.
const (
	maxEntries = 65536
	maxTime    = 200 * time.Millisecond
)

// layout is a map and what is read of its entries. Numbers are the machine's, addresses and ports the network's.
type layout struct {
	name       string
	kind       ebpf.MapType
	key, value form
	// decode takes the fields of an entry, the key's first. Of a map by CPU it gets the value of one.
	decode func(d *decoded, fields [][]byte)
}

// form is a struct of Cilium's. Where a map's BTF has it, its fields are found there by their names. Maps of most
// versions have no BTF, or none that may be read (CAP_SYS_ADMIN): then they are as in 1.14 to 1.20, if the sizes are.
type form struct {
	name   string
	size   uint32
	fields []field
}

type field struct {
	name     string
	at, size uint32
}

var (
	endpointKey  = form{"endpoint_key", 20, []field{{"ip6", 0, 16}, {"family", 16, 1}}}
	endpointInfo = form{"endpoint_info", 48, []field{{"ifindex", 0, 4}, {"lxc_id", 6, 2}, {"flags", 8, 4}, {"sec_id", 32, 4}}}
	ipcacheKey   = form{"ipcache_key", 24, []field{{"lpm_key", 0, 4}, {"cluster_id", 4, 2}, {"family", 7, 1}, {"ip6", 8, 16}}}
	identity     = []field{{"sec_identity", 0, 4}}
	service4Key  = form{"lb4_key", 12, []field{{"address", 0, 4}, {"dport", 4, 2}, {"backend_slot", 6, 2}, {"proto", 8, 1}, {"scope", 9, 1}}}
	service6Key  = form{"lb6_key", 24, []field{{"address", 0, 16}, {"dport", 16, 2}, {"backend_slot", 18, 2}, {"proto", 20, 1}, {"scope", 21, 1}}}
	serviceOf    = []field{{"backend_id", 0, 4}, {"count", 4, 2}, {"flags", 8, 1}, {"flags2", 9, 1}}
	backendID    = form{"", 4, []field{{"", 0, 4}}}
)

var layouts = []layout{
	{"cilium_lxc", ebpf.Hash, endpointKey, endpointInfo, decodeLocal},
	{"cilium_ipcache_v2", ebpf.LPMTrie, ipcacheKey, form{"remote_endpoint_info", 24, identity}, decodeKnown},
	{oldKnown, ebpf.LPMTrie, ipcacheKey, form{"remote_endpoint_info", 12, identity}, decodeKnown},
	{"cilium_lb4_services_v2", ebpf.Hash, service4Key, form{"lb4_service", 12, serviceOf}, decodeService},
	{"cilium_lb6_services_v2", ebpf.Hash, service6Key, form{"lb6_service", 12, serviceOf}, decodeService},
	// Backends are read behind services, of which they may be.
	{"cilium_lb4_backends_v3", ebpf.Hash, backendID, form{"lb4_backend", 12, []field{{"address", 0, 4}, {"port", 4, 2}}}, decodeBackend},
	{"cilium_lb6_backends_v3", ebpf.Hash, backendID, form{"lb6_backend", 24, []field{{"address", 0, 16}, {"port", 16, 2}}}, decodeBackend},
	{"cilium_metrics", ebpf.PerCPUHash, form{"metrics_key", 8, []field{{"reason", 0, 1}, {"dir", 1, 1}}},
		form{"metrics_value", 16, []field{{"count", 0, 8}}}, decodeCount},
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
	return decoded{services: map[serviceKey]*service{}, backends: map[backendKey]netip.AddrPort{}, counts: map[model.CiliumCount]uint64{}}
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

// found are the layout's keys and values where their fields are by the map's BTF, or the known ones if it has none.
func (l *layout) found(m *ebpf.Map) (key, value form, err error) {
	key, value = l.key, l.value
	info, err := m.Info()
	if err != nil {
		return key, value, err
	}
	if id, ok := info.BTFID(); ok {
		if h, err := btf.NewHandleFromID(id); err == nil {
			types, err := h.Spec(nil)
			err = errors.Join(err, h.Close())
			for _, f := range []*form{&key, &value} {
				if err == nil {
					*f, err = f.by(types)
				}
			}
			if err != nil {
				return key, value, err
			}
		}
	}
	if m.Type() != l.kind || m.KeySize() != key.size || m.ValueSize() != value.size {
		err = fmt.Errorf("keys of %d bytes and values of %d bytes: no version of Cilium that lasthop knows has this layout",
			m.KeySize(), m.ValueSize())
	}
	return key, value, err
}

// by is the struct with its fields as BTF has them.
func (f form) by(types *btf.Spec) (form, error) {
	if f.name == "" {
		return f, nil
	}
	var s *btf.Struct
	if err := types.TypeByName(f.name, &s); err != nil {
		return f, fmt.Errorf("its BTF has no struct %s", f.name)
	}
	f.size, f.fields = s.Size, slices.Clone(f.fields)
	for i, want := range f.fields {
		at, size, ok := member(s.Members, want.name)
		if !ok || size != want.size || at+size > s.Size {
			return f, fmt.Errorf("its BTF has no %s.%s of %d bytes", f.name, want.name, want.size)
		}
		f.fields[i].at = at
	}
	return f, nil
}

// member finds a member by its name, also in unions and structs without one.
func member(list []btf.Member, name string) (at, size uint32, ok bool) {
	for _, m := range list {
		if m.Name == name && m.Offset%8 == 0 {
			n, err := btf.Sizeof(m.Type)
			return m.Offset.Bytes(), uint32(n), err == nil
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if at, size, ok = member(inner, name); ok && m.Name == "" {
			return m.Offset.Bytes() + at, size, true
		}
	}
	return 0, 0, false
}

// of appends the fields that a struct's bytes have.
func (f form) of(out [][]byte, b []byte) [][]byte {
	for _, x := range f.fields {
		out = append(out, b[x.at:x.at+x.size])
	}
	return out
}

// read reads a map, and returns its number of entries.
func (l *layout) read(ctx context.Context, path string, d *decoded) (n int, err error) {
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	keyForm, valueForm, err := l.found(m)
	if err != nil {
		return 0, err
	}
	var fields [][]byte
	cpus := 1
	if l.kind == ebpf.PerCPUHash {
		if cpus, err = ebpf.PossibleCPU(); err != nil {
			return 0, err
		}
	}
	keys, values := blocks(batch, keyForm.size), blocks(batch*cpus, valueForm.size)
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
				fields = valueForm.of(keyForm.of(fields[:0], keys.Index(i).Bytes()), values.Index(i*cpus+cpu).Bytes())
				l.decode(d, fields)
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

// decodeLocal decodes an entry of cilium_lxc. Those of the node's own addresses are of no pod.
func decodeLocal(d *decoded, f [][]byte) {
	const host = 1 // ENDPOINT_F_HOST
	ip, family, ifindex, id, flags, identity := f[0], f[1], f[2], f[3], f[4], f[5]
	a, ok := address(family[0], ip)
	if !ok || binary.NativeEndian.Uint32(flags)&host != 0 {
		return
	}
	d.local = append(d.local, model.CiliumAddress{
		Prefix: netip.PrefixFrom(a, a.BitLen()), IfIndex: int(binary.NativeEndian.Uint32(ifindex)),
		Endpoint: binary.NativeEndian.Uint16(id), Identity: model.CiliumIdentity(binary.NativeEndian.Uint32(identity)),
	})
}

// decodeKnown decodes an entry of cilium_ipcache. Its prefix is behind 32 bits of others. Those of other clusters of a mesh
// are left out.
func decodeKnown(d *decoded, f [][]byte) {
	length, cluster, family, ip, identity := f[0], f[1], f[2], f[3], f[4]
	a, ok := address(family[0], ip)
	bits := int(binary.NativeEndian.Uint32(length)) - 32
	if !ok || bits < 0 || bits > a.BitLen() || binary.NativeEndian.Uint16(cluster) != 0 {
		return
	}
	d.known = append(d.known, model.CiliumAddress{
		Prefix: netip.PrefixFrom(a, bits), Identity: model.CiliumIdentity(binary.NativeEndian.Uint32(identity)),
	})
}

// decodeCount decodes an entry of cilium_metrics, of one CPU. Reasons below the first are of packets that were not dropped.
func decodeCount(d *decoded, f [][]byte) {
	const firstReason = 130
	reason, direction, count := f[0][0], f[1][0], f[2]
	if reason < firstReason {
		return
	}
	directions := map[byte]model.Direction{1: model.Ingress, 2: model.Egress}
	x := model.CiliumCount{Reason: model.CiliumReason(reason), Direction: directions[direction&3]}
	d.counts[x] += binary.NativeEndian.Uint64(count)
}
