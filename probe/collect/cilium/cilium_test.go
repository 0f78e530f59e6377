package cilium

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

func file(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var cart = model.CiliumEndpoint{
	ID: 2559, Identity: 5375, Labels: []string{"app=cart"}, Namespace: "default", Name: "cart", IfIndex: 6,
	Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.2")},
}

func TestEndpoint(t *testing.T) {
	got, err := decodeEndpoint(file(t, "pod.json"), time.Time{})
	if err != nil || !reflect.DeepEqual(got, cart) {
		t.Errorf("%+v, %v", got, err)
	}
	host, err := decodeEndpoint(file(t, "host.json"), time.Time{})
	if err != nil || host.ID != 109 || host.Identity != 1 || len(host.Labels)+len(host.Addresses) > 0 || host.Name != "" {
		t.Errorf("the node's: %+v, %v", host, err)
	}
	quiet, err := decodeEndpoint([]byte(strings.Replace(string(file(t, "pod.json")), `"DropNotification":1`, `"DropNotification":0`, 1)), time.Time{})
	if err != nil || !quiet.Quiet {
		t.Errorf("without notifications: %+v, %v", quiet, err)
	}
	for name, text := range map[string]string{"no JSON": "{", "no number": "{}", "no address": `{"ID":1,"IPv4":"10.0.0"}`, "a text": `"ID"`} {
		if e, err := decodeEndpoint([]byte(text), time.Time{}); err == nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
	// A name that none could be is no name.
	odd, err := decodeEndpoint([]byte("{\"ID\":1,\"K8sNamespace\":\"a\",\"K8sPodName\":\"\\u001b[2J\"}"), time.Time{})
	if err != nil || odd.Name != "" {
		t.Errorf("%+v, %v", odd, err)
	}
	if got := labels([]byte(`["k8s:app=cart","k8s:io.kubernetes.pod.namespace=x","reserved:host","container:b="]`)); !slices.Equal(got, []string{"app=cart", "b"}) {
		t.Errorf("labels %q", got)
	}
}

// node is a root with an agent's endpoints and, in a file system of its own, maps.
func node(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string][]byte{
		"2559/ep_config.json": file(t, "pod.json"), "109/ep_config.json": file(t, "host.json"), "77/ep_config.json": []byte("{"), "8_next/ep_config.json": []byte("{"),
		"78/template.txt": nil, "templates/x": nil,
	} {
		path := filepath.Join(root, stateDirs[0], name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bpffs := filepath.Join(root, "sys/fs/bpf")
	if err := os.MkdirAll(bpffs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bpf", bpffs, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bpffs, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(filepath.Join(root, mapDir), 0o700); err != nil {
		t.Fatal(err)
	}
	return root
}

// pin pins a map with entries.
func pin(t testing.TB, root string, l layout, entries map[string]any) {
	t.Helper()
	spec := &ebpf.MapSpec{Type: l.kind, KeySize: l.key.size, ValueSize: l.value.size, MaxEntries: uint32(max(64, len(entries)))}
	if l.kind == ebpf.LPMTrie {
		spec.Flags = unix.BPF_F_NO_PREALLOC
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for k, v := range entries {
		if err := m.Put([]byte(k), v); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Pin(filepath.Join(root, mapDir, l.name)); err != nil {
		t.Fatal(err)
	}
}

// words puts numbers at offsets of so many bytes: those of 8, 16 or 32 bits.
func words(size int, at map[int]any) []byte {
	b := make([]byte, size)
	for i, v := range at {
		switch v := v.(type) {
		case uint8:
			b[i] = v
		case uint16:
			binary.NativeEndian.PutUint16(b[i:], v)
		case uint32:
			binary.NativeEndian.PutUint32(b[i:], v)
		case string:
			copy(b[i:], netip.MustParseAddr(v).AsSlice())
		}
	}
	return b
}

// by is the layout of a map.
func by(name string) layout {
	return layouts[slices.IndexFunc(layouts, func(l layout) bool { return l.name == name })]
}

// pinServices pins services: one without backends, one with two, and a slot more that is not
// in use; one that both outside and inside have backends of their own; one of IPv6. And such
// as are none: one that a proxy serves, one of which a backend is not there, the other ports of one.
func pinServices(t testing.TB, root string) {
	t.Helper()
	key4 := func(a string, port uint8, slot uint16, scope uint8) string {
		return string(words(12, map[int]any{0: a, 5: port, 6: slot, 8: uint8(6), 9: scope}))
	}
	key6 := func(slot uint16) string {
		return string(words(24, map[int]any{0: "fd00:96::11", 17: uint8(53), 18: slot, 20: uint8(17)}))
	}
	front := func(count uint16, flags, more uint8) []byte {
		return words(12, map[int]any{4: count, 8: flags, 9: more})
	}
	backend := func(id uint32) []byte { return words(12, map[int]any{0: id}) }
	pin(t, root, by("cilium_lb4_services_v2"), map[string]any{
		key4("10.96.0.10", 80, 0, 0): front(0, 0, 0),
		key4("10.96.0.11", 80, 0, 0): front(2, 1<<4, 0),
		key4("10.96.0.11", 80, 1, 0): backend(5),
		key4("10.96.0.11", 80, 2, 0): backend(4),
		key4("10.96.0.11", 80, 3, 0): backend(6),
		key4("10.96.0.11", 0, 0, 0):  front(0, 0, 0),
		key4("10.96.0.12", 80, 0, 0): front(0, 0, 1<<2),
		key4("10.96.0.13", 80, 0, 0): front(1, 1<<5|1<<6, 1<<5),
		key4("10.96.0.13", 80, 1, 0): backend(5),
		key4("10.96.0.13", 80, 0, 1): front(0, 1<<5|1<<6, 1<<5|1<<4),
		key4("10.96.0.14", 80, 0, 0): front(1, 0, 0),
		key4("10.96.0.14", 80, 1, 0): backend(99),
	})
	pin(t, root, by("cilium_lb6_services_v2"), map[string]any{key6(0): front(1, 0, 0), key6(1): backend(5)})
	id := func(n uint32) string { return string(words(4, map[int]any{0: n})) }
	port := binary.BigEndian.AppendUint16(nil, 8080)
	to := func(a string) []byte { return words(12, map[int]any{0: a, 4: port[0], 5: port[1]}) }
	pin(t, root, by("cilium_lb4_backends_v3"), map[string]any{id(4): to("10.244.2.2"), id(5): to("10.244.2.3"), id(6): to("10.244.2.4")})
	port = binary.BigEndian.AppendUint16(nil, 5353)
	pin(t, root, by("cilium_lb6_backends_v3"), map[string]any{id(5): words(24, map[int]any{0: "fd00::9", 16: port[0], 17: port[1]})})
}

func TestRead(t *testing.T) {
	root := node(t)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	counted := make([][]byte, cpus)
	for i := range counted {
		counted[i] = words(16, map[int]any{0: uint32(2)})
	}
	pin(t, root, by("cilium_lxc"), map[string]any{
		string(words(20, map[int]any{0: "10.244.1.2", 16: uint8(1)})): words(48, map[int]any{0: uint32(6), 6: uint16(2559), 32: uint32(5375)}),
		string(words(20, map[int]any{0: "10.98.0.11", 16: uint8(1)})): words(48, map[int]any{8: uint32(1), 32: uint32(1)}),
		string(words(20, map[int]any{0: "fd00::2", 16: uint8(2)})):    words(48, map[int]any{0: uint32(6), 6: uint16(2559), 32: uint32(5375)}),
		string(words(20, map[int]any{0: "10.244.1.9", 16: uint8(9)})): words(48, nil),
	})
	known := map[string]any{
		string(words(24, map[int]any{0: uint32(64), 7: uint8(1), 8: "10.244.2.2"})):               words(24, map[int]any{0: uint32(28631), 4: "10.98.0.12"}),
		string(words(24, map[int]any{0: uint32(32), 7: uint8(1)})):                                words(24, map[int]any{0: uint32(2)}),
		string(words(24, map[int]any{0: uint32(160), 7: uint8(2), 8: "fd00::9"})):                 words(24, map[int]any{0: uint32(9)}),
		string(words(24, map[int]any{0: uint32(64), 4: uint16(3), 7: uint8(1), 8: "10.244.9.9"})): words(24, map[int]any{0: uint32(9)}),
	}
	pin(t, root, by("cilium_ipcache_v2"), known)
	pinServices(t, root)
	pin(t, root, by("cilium_metrics"), map[string]any{
		string(words(8, map[int]any{0: uint8(133), 1: uint8(1), 2: uint16(2205), 4: uint8(2)})): counted,
		string(words(8, map[int]any{0: uint8(133), 1: uint8(1), 2: uint16(1), 4: uint8(2)})):    counted,
		string(words(8, map[int]any{0: uint8(0), 1: uint8(2)})):                                 counted,
	})
	pin(t, root, by(oldKnown), map[string]any{string(words(24, map[int]any{0: uint32(64), 7: uint8(1), 8: "10.244.3.3"})): words(12, nil)})

	var r Reader
	got, detail, err := r.Read(t.Context(), root)
	want := model.Cilium{
		Local: []model.CiliumAddress{
			{Prefix: netip.MustParsePrefix("10.244.1.2/32"), Identity: 5375, Endpoint: 2559, IfIndex: 6},
			{Prefix: netip.MustParsePrefix("fd00::2/128"), Identity: 5375, Endpoint: 2559, IfIndex: 6},
		},
		Known: []model.CiliumAddress{
			{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Identity: 2}, {Prefix: netip.MustParsePrefix("10.244.2.2/32"), Identity: 28631},
			{Prefix: netip.MustParsePrefix("fd00::9/128"), Identity: 9},
		},
		Services: []model.CiliumService{
			{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Proto: 6, Cluster: true},
			{Addr: netip.MustParseAddrPort("10.96.0.11:80"), Proto: 6, Cluster: true, Backends: []netip.AddrPort{
				netip.MustParseAddrPort("10.244.2.2:8080"), netip.MustParseAddrPort("10.244.2.3:8080")}},
			{Addr: netip.MustParseAddrPort("10.96.0.13:80"), Proto: 6, Local: true},
			{Addr: netip.MustParseAddrPort("[fd00:96::11]:53"), Proto: 17, Cluster: true, Backends: []netip.AddrPort{netip.MustParseAddrPort("[fd00::9]:5353")}},
		},
		Counts: []model.CiliumCount{{Reason: 133, Direction: model.Ingress, Packets: uint64(4 * cpus)}},
	}
	endpoints := got.Endpoints
	got.Endpoints = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if len(endpoints) != 2 || !reflect.DeepEqual(endpoints[1], cart) {
		t.Errorf("endpoints %+v", endpoints)
	}
	if !strings.Contains(detail, "2 endpoints from /run/cilium/state, cilium_lxc 4") {
		t.Error(detail)
	}
	if err == nil || !strings.Contains(err.Error(), "endpoint 77") || strings.Contains(err.Error(), "map") {
		t.Errorf("error: %v", err)
	}
	// A file that the agent has replaced is read again.
	path := filepath.Join(root, stateDirs[0], "2559")
	if err := os.WriteFile(path+"/new", []byte(strings.ReplaceAll(string(file(t, "pod.json")), `"K8sPodName":"cart"`, `"K8sPodName":"shop"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"/new", path+"/ep_config.json"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(root, stateDirs[0], "109/ep_config.json")); err != nil {
		t.Fatal(err)
	}
	if got, _, _ = r.Read(t.Context(), root); len(got.Endpoints) != 1 || got.Endpoints[0].Name != "shop" {
		t.Errorf("of changed files: %+v", got.Endpoints)
	}
	// What backends cannot be read of is not known to have none.
	other := node(t)
	odd := by("cilium_lb4_backends_v3")
	odd.value.size = 8
	pin(t, other, odd, nil)
	pin(t, other, by("cilium_lb4_services_v2"), map[string]any{
		string(words(12, map[int]any{0: "10.96.0.11", 5: uint8(80)})):               words(12, map[int]any{4: uint16(1)}),
		string(words(12, map[int]any{0: "10.96.0.11", 5: uint8(80), 6: uint16(1)})): words(12, map[int]any{0: uint32(5)}),
	})
	if got, _, err = r.Read(t.Context(), other); err == nil || !strings.Contains(err.Error(), "cilium_lb4_backends_v3: keys of 4 bytes and values of 8 bytes") || got.Services != nil {
		t.Errorf("backends of another form: %+v, %v", got.Services, err)
	}
	other = node(t)
	unknown := by(oldKnown)
	unknown.value.size = 16
	pin(t, other, unknown, nil)
	got, _, err = r.Read(t.Context(), other)
	if err == nil || !strings.Contains(err.Error(), "cilium_ipcache: keys of 24 bytes and values of 16 bytes") || got.Known != nil || len(got.Endpoints) != 2 {
		t.Errorf("a map of another form: %+v, %v", got, err)
	}
	if _, _, err := r.Read(t.Context(), t.TempDir()); !errors.Is(err, ErrNone) {
		t.Errorf("without Cilium: %v", err)
	}
}

// TestBTF reads maps whose BTF says where fields are: other places than in any version so far. A field that is not there, or
// is of another size, makes the map one that is not understood.
func TestBTF(t *testing.T) {
	number := func(size uint32) btf.Type { return &btf.Int{Name: fmt.Sprint("u", 8*size), Size: size} }
	bytes := func(size uint32) btf.Type {
		return &btf.Array{Index: number(4), Type: number(1), Nelems: size}
	}
	// structure has members of these sizes; those whose name begins with an address are of a union.
	structure := func(name string, members ...field) *btf.Struct {
		s := &btf.Struct{Name: name}
		for _, m := range members {
			x := btf.Member{Name: m.name, Type: number(m.size), Offset: btf.Bits(8 * s.Size)}
			if m.size > 8 {
				x.Name, x.Type = "", &btf.Union{Size: m.size, Members: []btf.Member{{Name: "ip4", Type: number(4)}, {Name: m.name, Type: bytes(m.size)}}}
			}
			s.Members, s.Size = append(s.Members, x), s.Size+m.size
		}
		return s
	}
	family, ip := field{"family", 0, 1}, field{"ip6", 0, 16}
	key := structure("endpoint_key", family, field{"pad", 0, 1}, field{"pad2", 0, 2}, ip)
	moved := structure("endpoint_info", field{"sec_id", 0, 4}, field{"flags", 0, 4}, field{"rt_info", 0, 4}, field{"lxc_id", 0, 2}, field{"pad", 0, 2}, field{"ifindex", 0, 4})
	for name, tt := range map[string]struct {
		value *btf.Struct
		err   string
	}{
		"moved":        {moved, ""},
		"renamed":      {structure("endpoint_info", field{"identity", 0, 4}, field{"flags", 0, 4}, field{"lxc_id", 0, 2}, field{"pad", 0, 2}, field{"ifindex", 0, 4}), "no endpoint_info.sec_id of 4 bytes"},
		"wider":        {structure("endpoint_info", field{"sec_id", 0, 8}, field{"flags", 0, 4}, field{"lxc_id", 0, 2}, field{"pad", 0, 2}, field{"ifindex", 0, 4}), "no endpoint_info.sec_id of 4 bytes"},
		"another name": {structure("endpoint_facts", field{"ifindex", 0, 4}), "no struct endpoint_info"},
	} {
		root := node(t)
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: key.Size, ValueSize: tt.value.Size, MaxEntries: 4, Key: key, Value: tt.value})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		value := words(int(tt.value.Size), nil)
		if name == "moved" {
			value = words(int(tt.value.Size), map[int]any{0: uint32(5375), 12: uint16(2559), 16: uint32(6)})
		}
		if err := m.Put(words(20, map[int]any{0: uint8(1), 4: "10.244.1.2"}), value); err != nil {
			t.Fatal(err)
		}
		if err := m.Pin(filepath.Join(root, mapDir, "cilium_lxc")); err != nil {
			t.Fatal(err)
		}
		var r Reader
		got, _, err := r.Read(t.Context(), root)
		var want []model.CiliumAddress
		if tt.err == "" {
			want = []model.CiliumAddress{{Prefix: netip.MustParsePrefix("10.244.1.2/32"), Identity: 5375, Endpoint: 2559, IfIndex: 6}}
		}
		if !reflect.DeepEqual(got.Local, want) || tt.err != "" && !strings.Contains(err.Error(), "map cilium_lxc: its BTF has "+tt.err) ||
			tt.err == "" && strings.Contains(err.Error(), "map") {
			t.Errorf("%s: %+v, %v", name, got.Local, err)
		}
	}
}

// TestOneByOne reads a map of a type of which this kernel reads no batches either.
func TestOneByOne(t *testing.T) {
	root := node(t)
	four := form{"", 4, []field{{"", 0, 4}}}
	l := layout{"of links", ebpf.DevMapHash, four, four, nil}
	one := words(4, map[int]any{0: uint32(1)})
	pin(t, root, l, map[string]any{"abcd": one, "efgh": one})
	var got []string
	l.decode = func(_ *decoded, f [][]byte) {
		if slices.Equal(f[1], one) {
			got = append(got, string(f[0]))
		}
	}
	n, err := l.read(t.Context(), filepath.Join(root, mapDir, l.name), nil)
	slices.Sort(got)
	if n != 2 || err != nil || !slices.Equal(got, []string{"abcd", "efgh"}) {
		t.Errorf("%d entries %q, %v", n, got, err)
	}
}

func FuzzDecodeEndpoint(f *testing.F) {
	f.Add(file(f, "pod.json"))
	f.Add(file(f, "host.json"))
	f.Add([]byte(`{"ID":1,"SecLabel":{"id":-1,"labels":["k8s:a"]},"Options":{"map":null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if e, err := decodeEndpoint(text, time.Time{}); err == nil && (e.ID == 0 || len(e.Labels) > maxLabels || len(e.Addresses) > 2) {
			t.Errorf("%+v", e)
		}
	})
}

// TestReadConfig: the agent's configuration, or AKS's maps, say that netfilter is passed by, and what is not masqueraded.
func TestReadConfig(t *testing.T) {
	for name, want := range map[string]struct {
		file, text string
		passes     bool
		as         []int
	}{
		"nothing":              {},
		"before 1.18":          {stateDirs[0] + "/agent-runtime-config.json", `{"EnableHostLegacyRouting": false, "EnableIPv4": true}`, true, nil},
		"since 1.18":           {stateDirs[1] + "/agent-runtime-config.json", `{"UnsafeDaemonConfigOption": {"EnableHostLegacyRouting": false}}`, true, nil},
		"by the kernel":        {stateDirs[0] + "/agent-runtime-config.json", `{"UnsafeDaemonConfigOption": {"EnableHostLegacyRouting": true}}`, false, nil},
		"another version's":    {stateDirs[0] + "/agent-runtime-config.json", `{"EnableIPv4": true}`, false, nil},
		"no file of the agent": {stateDirs[0] + "/agent-runtime-config.json", `[`, false, nil},
		"AKS refuses rules":    {"sys/fs/bpf/block-iptables/event_counter", "", true, nil},
		"no masquerade":        {stateDirs[0] + "/agent-runtime-config.json", `{"EnableIPv4Masquerade": false, "EnableIPv6Masquerade": true}`, false, []int{4}},
		"none since 1.18": {stateDirs[0] + "/agent-runtime-config.json",
			`{"UnsafeDaemonConfigOption": {"EnableIPv4Masquerade": true, "EnableIPv6Masquerade": false}}`, false, []int{6}},
	} {
		root := t.TempDir()
		if want.file != "" {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, want.file)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, want.file), []byte(want.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := ReadConfig(root); got.PassesBy != want.passes || !slices.Equal(got.Untranslated, want.as) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func FuzzDecodeMap(f *testing.F) {
	f.Add(0, make([]byte, 20), make([]byte, 48))
	f.Add(1, words(24, map[int]any{0: uint32(64), 7: uint8(1)}), make([]byte, 24))
	f.Add(7, words(8, map[int]any{0: uint8(133), 1: uint8(7)}), make([]byte, 16))
	f.Fuzz(func(t *testing.T, which int, key, value []byte) {
		l := layouts[uint(which)%uint(len(layouts))]
		d := newDecoded()
		key, value = append(key, make([]byte, l.key.size)...), append(value, make([]byte, l.value.size)...)
		l.decode(&d, l.value.of(l.key.of(nil, key), value))
		for _, x := range append(d.local, d.known...) {
			if !x.Prefix.IsValid() {
				t.Errorf("%+v", x)
			}
		}
	})
}

// BenchmarkRead reads what a large node of a large cluster has: 250 endpoints and 5,000 services
// of three backends.
func BenchmarkRead(b *testing.B) {
	const endpoints, services, each = 250, 5000, 3
	root := node(b)
	for i := range endpoints {
		dir := filepath.Join(root, stateDirs[0], strconv.Itoa(1000+i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "ep_config.json"), file(b, "pod.json"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	front, backends, known := map[string]any{}, map[string]any{}, map[string]any{}
	for i := range services {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		front[string(words(12, map[int]any{0: a, 5: uint8(80), 8: uint8(6)}))] = words(12, map[int]any{4: uint16(each)})
		for s := range each {
			id := uint32(i*each + s)
			front[string(words(12, map[int]any{0: a, 5: uint8(80), 6: uint16(s + 1), 8: uint8(6)}))] = words(12, map[int]any{0: id})
			to := netip.AddrFrom4([4]byte{10, 244, byte(id >> 8), byte(id)}).String()
			backends[string(words(4, map[int]any{0: id}))] = words(12, map[int]any{0: to, 4: uint8(80)})
			known[string(words(24, map[int]any{0: uint32(64), 7: uint8(1), 8: to}))] = words(24, map[int]any{0: uint32(28631)})
		}
	}
	pin(b, root, by("cilium_lb4_services_v2"), front)
	pin(b, root, by("cilium_lb4_backends_v3"), backends)
	pin(b, root, by("cilium_ipcache_v2"), known)
	var r Reader
	for b.Loop() {
		// The endpoint 77 of this root is none.
		if c, _, err := r.Read(b.Context(), root); len(c.Endpoints) != endpoints+2 || len(c.Services) != services || len(c.Known) != services*each {
			b.Fatalf("%d endpoints, %d services, %d addresses: %v", len(c.Endpoints), len(c.Services), len(c.Known), err)
		}
	}
}
