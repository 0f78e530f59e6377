package names

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// bridged is what libcni 1.3 wrote for a pod of the plugins bridge and portmap, as
// containerd calls them.
const bridged = `{"kind":"cniCacheV1","containerId":"5a1c","config":"eyJuYW1lIjogInBvZHMifQo=","ifName":"eth0","networkName":"pods",
"netns":"/var/run/netns/cni-0a1b","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart-7d9f"],
["K8S_POD_INFRA_CONTAINER_ID","5a1c"],["K8S_POD_UID","3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11"]],"capabilityArgs":{"portMappings":[]},
"result":{"cniVersion":"1.0.0","interfaces":[{"mac":"ee:69:40:0e:39:65","name":"cni0"},{"mac":"ae:ef:cb:a7:27:ed","name":"veth0ac016f8"},
{"mac":"0e:69:64:9f:7e:43","name":"eth0","sandbox":"/var/run/netns/cni-0a1b"}],
"ips":[{"address":"10.244.0.2/24","gateway":"10.244.0.1","interface":2},{"address":"fd00::2/64","interface":2}],"routes":[{"dst":"0.0.0.0/0"}]}}`

// bridgedMAC is that of the pod's interface.
var bridgedMAC = model.MAC{0x0e, 0x69, 0x64, 0x9f, 0x7e, 0x43}

func edited(from, to string) string { return strings.ReplaceAll(bridged, from, to) }

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestDecode(t *testing.T) {
	whole := record{
		owner: owner{"shop", "cart-7d9f", "3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11"}, netns: "cni-0a1b", iface: "eth0",
		mac: bridgedMAC, addresses: addrs("10.244.0.2", "fd00::2"), hostLinks: []string{"cni0", "veth0ac016f8"},
	}
	second := whole
	second.iface, second.mac, second.addresses = "net1", model.MAC{2, 1}, addrs("192.168.9.4")
	for _, tt := range []struct {
		name, text string
		want       record
		err        string
	}{
		{"a pod", bridged, whole, ""},
		{"an older libcni, by the sandbox", edited(`"netns":"/var/run/netns/cni-0a1b",`, ""), whole, ""},
		{
			"a second network", `{"kind":"cniCacheV1","ifName":"net1","netns":"/run/netns/cni-0a1b","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart-7d9f"],
			["K8S_POD_UID","3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11"]],"result":{"interfaces":[{"name":"cni0"},{"name":"veth0ac016f8"},
			{"name":"eth0","mac":"02:00:00:00:00:09","sandbox":"/x"},{"name":"net1","mac":"02:01:00:00:00:00","sandbox":"/x"}],
			"ips":[{"address":"10.244.0.2/24","interface":2},{"address":"192.168.9.4/24","interface":3}]}}`, second, "",
		},
		{
			"a result of version 0.2.0", `{"kind":"cniCacheV1","ifName":"eth0","netns":"/proc/17/ns/net","cniArgs":[["K8S_POD_NAMESPACE","a"],["K8S_POD_NAME","b"]],
			"result":{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.7/16"},"ip6":{"ip":"fd00::7/64"}}}`,
			record{owner: owner{"a", "b", ""}, iface: "eth0", addresses: addrs("10.1.0.7", "fd00::7")}, "",
		},
		{"an interface without Ethernet", edited("0e:69:64:9f:7e:43", "00:01"), func() record { r := whole; r.mac = model.MAC{}; return r }(), ""},
		{"the loopback device", edited(`"ifName":"eth0"`, `"ifName":"lo"`), record{}, "names no pod"},
		{"no container of Kubernetes", edited("K8S_POD_NAME\"", "OTHER\""), record{}, "names no pod"},
		{"a result alone, as old versions wrote", `{"cniVersion":"0.3.1","ips":[]}`, record{}, "names no pod"},
		{"half of it", bridged[:len(bridged)/2], record{}, "unexpected end of JSON"},
		{"nothing", "", record{}, "unexpected end of JSON"},
		{"escape codes", edited("cart-7d9f", `\u001b[2J`), record{}, `"\x1b[2J" is not a valid pod name`},
		{"a name that is too long", edited("cart-7d9f", strings.Repeat("a", 254)), record{}, "is not a valid pod name"},
		{"a namespace that leads elsewhere", edited(`"shop"`, `"../shop"`), record{}, "is not a valid namespace name"},
		{"a UID with a path", edited("3f0e8b8e", "../3f0e8"), record{}, "is not a valid UID"},
		{"no address", edited("10.244.0.2/24", "10.244.0.256/24"), record{}, "10.244.0.256"},
		{"another type", edited(`"ips":[`, `"ips":["10.244.0.9",`), record{}, "cannot unmarshal string"},
		{"deep nesting", `{"kind":"cniCacheV1","result":` + strings.Repeat("[", 20000), record{}, "exceeded max depth"},
		{"many addresses", edited(`"ips":[`, `"ips":[`+strings.Repeat(`{"address":"10.0.0.1/24"},`, maxAttached)), record{}, "more than 64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decode([]byte(tt.text))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

// TestChoose wants a name only where nothing contradicts it, and one pod alone is
// meant.
func TestChoose(t *testing.T) {
	now := time.Unix(1e9, 0)
	mac := func(b byte) model.MAC { return model.MAC{2, 0, 0, 0, 0, b} }
	pod := func(netns uint32, name string, b byte, list ...string) model.Pod {
		p := model.Pod{Netns: netns, NetnsName: name, Interface: "eth0", MAC: mac(b), Link: fmt.Sprint("veth", b)}
		for _, a := range addrs(list...) {
			p.Addresses = append(p.Addresses, netip.PrefixFrom(a, a.BitLen()))
		}
		return p
	}
	rec := func(name, netns string, b byte, list ...string) record {
		r := record{owner: owner{"shop", name, ""}, netns: netns, iface: "eth0", addresses: addrs(list...), written: now}
		if b != 0 {
			r.mac = mac(b)
		}
		return r
	}
	at := func(r record, d time.Duration) record { r.written = now.Add(d); return r }
	of := func(r record, uid string) record { r.uid = uid; return r }
	behind := func(r record, links ...string) record { r.hostLinks = links; return r }
	lost := pod(1, "a", 1)
	lost.Given = addrs("10.0.0.1")
	second := pod(1, "a", 2, "192.168.0.1")
	second.Interface = "net1"
	for _, tt := range []struct {
		name    string
		pods    []model.Pod
		records []record
		uids    map[uint32]string
		want    []string
	}{
		{"by its address", []model.Pod{pod(1, "", 1, "10.0.0.1", "fd00::1")}, []record{rec("cart", "", 0, "fd00::1")}, nil, []string{"cart"}},
		{"a pod of which there is nothing", []model.Pod{pod(1, "", 1, "10.0.0.1")}, []record{rec("cart", "", 0, "10.0.0.2")}, nil, []string{""}},
		{"another MAC", []model.Pod{pod(1, "", 1, "10.0.0.1")}, []record{rec("old", "", 9, "10.0.0.1")}, nil, []string{""}},
		{"another namespace", []model.Pod{pod(1, "a", 1, "10.0.0.1")}, []record{rec("old", "b", 1, "10.0.0.1")}, nil, []string{""}},
		{"a namespace known by a process", []model.Pod{pod(1, "/proc/7/ns/net", 1, "10.0.0.1")}, []record{rec("cart", "b", 1, "10.0.0.1")}, nil, []string{"cart"}},
		{"a second name of its namespace", []model.Pod{pod(1, "a", 1, "10.0.0.1")}, []record{rec("cart", "alias", 0, "10.0.0.1")}, nil, []string{"cart"}},
		{"a name that is another namespace's", []model.Pod{pod(1, "/proc/7/ns/net", 1, "10.0.0.1")}, []record{rec("old", "other", 1, "10.0.0.1")}, nil, []string{""}},
		{"another UID by its cgroup", []model.Pod{pod(1, "", 1, "10.0.0.1")}, []record{of(rec("lie", "", 1, "10.0.0.1"), "u1")}, map[uint32]string{1: "u2"}, []string{""}},
		{"an address that the pod lost", []model.Pod{lost}, []record{rec("cart", "", 1, "10.0.0.1")}, nil, []string{"cart"}},
		{"other addresses with its MAC", []model.Pod{pod(1, "", 1, "10.0.0.1")}, []record{rec("old", "", 1, "10.0.0.7")}, nil, []string{""}},
		{
			"a file that a crash left",
			[]model.Pod{pod(1, "", 1, "10.0.0.1")},
			[]record{at(rec("old", "", 0, "10.0.0.1"), -time.Hour), rec("cart", "", 0, "10.0.0.1")}, nil, []string{"cart"},
		},
		{
			"one that is newer, of another namespace",
			[]model.Pod{pod(1, "a", 1, "10.0.0.1")},
			[]record{at(rec("other", "b", 1, "10.0.0.1"), time.Hour), rec("cart", "a", 1, "10.0.0.1")}, nil, []string{"cart"},
		},
		{
			"two of one time",
			[]model.Pod{pod(1, "", 1, "10.0.0.1")},
			[]record{rec("cart", "", 0, "10.0.0.1"), rec("till", "", 0, "10.0.0.1")}, nil, []string{""},
		},
		{
			"two of one time, one with the MAC",
			[]model.Pod{pod(1, "", 1, "10.0.0.1")},
			[]record{rec("cart", "", 1, "10.0.0.1"), rec("till", "", 0, "10.0.0.1")}, nil, []string{"cart"},
		},
		{
			"two networks of one pod", []model.Pod{pod(1, "a", 1, "10.0.0.1"), second},
			[]record{rec("cart", "a", 1, "10.0.0.1"), func() record { r := rec("cart", "a", 2, "192.168.0.1"); r.iface = "net1"; return r }()}, nil, []string{"cart", "cart"},
		},
		{"a second network without a file", []model.Pod{pod(1, "a", 1, "10.0.0.1"), second}, []record{rec("cart", "a", 1, "10.0.0.1")}, nil, []string{"cart", "cart"}},
		{
			"two names for one namespace", []model.Pod{pod(1, "", 1, "10.0.0.1"), second},
			[]record{rec("cart", "", 1, "10.0.0.1"), func() record { r := rec("till", "", 2, "192.168.0.1"); r.iface = "net1"; return r }()}, nil, []string{"", ""},
		},
		{
			"one address twice, told apart by MAC", []model.Pod{pod(1, "", 1, "10.0.0.1"), pod(2, "", 2, "10.0.0.1")},
			[]record{rec("cart", "", 1, "10.0.0.1"), rec("till", "", 2, "10.0.0.1")}, nil, []string{"cart", "till"},
		},
		{
			"one address twice, told apart by the host's link", []model.Pod{pod(1, "", 1, "10.0.0.1"), pod(2, "", 2, "10.0.0.1")},
			[]record{behind(rec("cart", "", 0, "10.0.0.1"), "veth1"), behind(at(rec("till", "", 0, "10.0.0.1"), 1), "veth2")}, nil, []string{"cart", "till"},
		},
		{
			"one address twice, not told apart", []model.Pod{pod(1, "", 1, "10.0.0.1"), pod(2, "", 2, "10.0.0.1")},
			[]record{rec("cart", "", 0, "10.0.0.1"), at(rec("till", "", 0, "10.0.0.1"), 1)}, nil, []string{"", ""},
		},
		{
			"one file for two pods, one of them proven", []model.Pod{pod(1, "", 1, "10.0.0.1"), pod(2, "", 0, "10.0.0.1")},
			[]record{rec("cart", "", 1, "10.0.0.1")}, nil, []string{"cart", ""},
		},
		{"namespaces that were not entered", []model.Pod{pod(0, "", 1, "10.0.0.1"), pod(0, "", 2, "10.0.0.2")}, []record{rec("cart", "", 1, "10.0.0.1")}, nil, []string{"cart", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := choose(tt.pods, tt.records, tt.uids, func(name string) uint32 { return map[string]uint32{"alias": 1, "other": 9}[name] })
			for i, want := range tt.want {
				if got[i].name != want {
					t.Errorf("pod %d is %q, want %q", i, got[i].name, want)
				}
			}
		})
	}
}

// put writes a file below root.
func put(t testing.TB, root, name, text string) string {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// cart is the pod that bridged is about.
func cart() []model.Pod {
	return []model.Pod{{
		Netns: 17, NetnsName: "cni-0a1b", Interface: "eth0", Link: "veth0ac016f8", MAC: bridgedMAC,
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
	}}
}

// TestBadFiles: what is wrong in some files is counted, and costs no other file's
// name.
func TestBadFiles(t *testing.T) {
	root := t.TempDir()
	dir := cacheDirs[0]
	put(t, root, dir+"/pods-5a1c-eth0", bridged)
	put(t, root, dir+"/pods-5a1c-lo", "no JSON, and never read")
	put(t, root, dir+"/pods-half-eth0", bridged[:700])
	put(t, root, dir+"/pods-huge-eth0", bridged+strings.Repeat(" ", maxCached))
	put(t, root, dir+"/pods-of-nobody-eth0", `{"kind":"cniCacheV1","ifName":"eth0"}`)
	elsewhere := put(t, root, "elsewhere", edited("cart-7d9f", "lie"))
	if err := errors.Join(
		os.Symlink(elsewhere, filepath.Join(root, dir, "pods-link-eth0")), unix.Mkfifo(filepath.Join(root, dir, "pods-pipe-eth0"), 0o600),
		os.Mkdir(filepath.Join(root, dir, "pods-dir-eth0"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	f := New(root)
	for range 2 {
		pods := cart()
		r := f.Pods(pods, nil)
		if pods[0].Namespace != "shop" || pods[0].Name != "cart-7d9f" || pods[0].UID != "3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11" || r.Cached != 1 {
			t.Errorf("pod %+v, %+v", pods[0], r)
		}
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), "and 4 more") {
			t.Errorf("losses: %v", err)
		}
	}
}

// TestChanges: a file that changed is read again, one that is gone is forgotten.
func TestChanges(t *testing.T) {
	root := t.TempDir()
	f := New(root)
	name := func() string {
		pods := cart()
		f.Pods(pods, nil)
		return pods[0].Name
	}
	if got := name(); got != "" {
		t.Errorf("without files: %q", got)
	}
	path := put(t, root, cacheDirs[2]+"/pods-5a1c-eth0", bridged[:400])
	if got := name(); got != "" {
		t.Errorf("half a file: %q", got)
	}
	put(t, root, cacheDirs[2]+"/pods-5a1c-eth0", bridged)
	if got := name(); got != "cart-7d9f" {
		t.Errorf("the whole file: %q", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := name(); got != "" {
		t.Errorf("without the file: %q", got)
	}
}

func TestManyFiles(t *testing.T) {
	root := t.TempDir()
	first := put(t, root, cacheDirs[0]+"/pods-lo", "")
	for i := range maxFiles {
		if err := os.Link(first, fmt.Sprintf("%s-%d-lo", first, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := New(root).Pods(cart(), nil).Err(); err == nil || !strings.Contains(err.Error(), "more than 4096 files") {
		t.Errorf("losses: %v", err)
	}
}

func TestUIDOf(t *testing.T) {
	const uid = "3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11"
	under := strings.ReplaceAll(uid, "-", "_")
	for _, tt := range []struct{ name, text, want string }{
		{"version 2, systemd, containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice/cri-containerd-5a1c.scope\n", uid},
		{"version 2, systemd, CRI-O", "0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-5a1c.scope\n", uid},
		{"version 2, cgroupfs", "0::/kubepods/besteffort/pod" + uid + "/5a1c\n", uid},
		{"version 2, from another cgroup namespace", "0::/../../pod" + uid + "/5a1c\n", uid},
		{"version 1", "12:memory:/kubepods/pod" + uid + "/5a1c\n11:cpu,cpuacct:/kubepods/pod" + uid + "/5a1c\n1:name=systemd:/kubepods/pod" + uid + "/5a1c\n0::/\n", uid},
		{"version 1, the drivers differ", "4:cpu:/system.slice/containerd.service/kubepods-besteffort-pod" + under + ".slice:cri-containerd:5a1c\n", uid},
		{"a pod that the kubelet has from a file", "0::/kubepods/burstable/podd2a1c5d1c0a8f6e0b3a7b9c1d2e3f4a5/5a1c\n", "d2a1c5d1c0a8f6e0b3a7b9c1d2e3f4a5"},
		{"a node that is a container", "0::/docker/aa/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + under + ".slice/cri-containerd-5.scope\n", uid},
		{"a node that is a pod's container", "0::/kubepods/pod11111111-2222-3333-4444-555555555555/aa/kubelet/kubepods/pod" + uid + "/5a1c\n", uid},
		{"hierarchies that differ", "2:cpu:/kubepods/pod" + uid + "/a\n1:memory:/kubepods/pod11111111-2222-3333-4444-555555555555/b\n", ""},
		{"no pod", "0::/user.slice/user-0.slice/session-1.scope\n", ""},
		{"nothing", "", ""},
		{"no such format", "podxyz\n:::\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := uidOf(tt.text); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// process makes what /proc has of a process.
func process(t *testing.T, proc string, pid int, netns uint32, uid string) string {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	text := "0::/user.slice\n"
	if uid != "" {
		text = "0::/kubepods/burstable/pod" + uid + "/5a1c\n"
	}
	put(t, dir, "cgroup", text)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "ns"), 0o755), os.Symlink(fmt.Sprintf("net:[%d]", netns), filepath.Join(dir, "ns/net"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCgroups: without a file of libcni's, processes tell the pod.
func TestCgroups(t *testing.T) {
	root, proc := t.TempDir(), t.TempDir()
	const a, b = "aaaaaaaa-2222-3333-4444-555555555555", "bbbbbbbb-2222-3333-4444-555555555555"
	for _, folder := range []string{"shop_cart-7d9f_" + a, "shop_till_" + b, "shop_other_" + b, "notes", "Shop_X_" + a} {
		if err := os.MkdirAll(filepath.Join(root, logDir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inPod, shell := process(t, proc, 1, 17, a), process(t, proc, 2, 17, "")
	reused, two := process(t, proc, 3, 18, a), process(t, proc, 4, 17, b)
	for _, tt := range []struct {
		name      string
		processes []string
		want      string
		unseen    bool
	}{
		{"a pod's process", []string{inPod}, "cart-7d9f", false},
		{"beside a shell", []string{shell, inPod}, "cart-7d9f", false},
		{"one whose number another has now", []string{reused}, "", false},
		{"processes of two pods", []string{inPod, two}, "", false},
		{"a UID with two folders", []string{two}, "", false},
		{"none that is visible", nil, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pods := cart()
			r := New(root).Pods(pods, map[uint32][]string{17: tt.processes})
			if pods[0].Name != tt.want || (r.Grouped == 1) != (tt.want != "") || strings.Contains(r.Lack(), "hostPID") != tt.unseen {
				t.Errorf("named %q, want %q; %+v%s", pods[0].Name, tt.want, r, r.Lack())
			}
		})
	}
	// A file that names another pod than the cgroup lies.
	put(t, root, cacheDirs[0]+"/pods-5a1c-eth0", edited("cart-7d9f", "lie"))
	pods := cart()
	if New(root).Pods(pods, map[uint32][]string{17: {inPod}}); pods[0].Name != "cart-7d9f" || pods[0].UID != a {
		t.Errorf("named %s, %s", pods[0].Name, pods[0].UID)
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte(bridged))
	f.Add([]byte(`{"kind":"cniCacheV1","ifName":"net1","cniArgs":[["K8S_POD_NAMESPACE","a"],["K8S_POD_NAME","b"]],"result":{"ip4":{"ip":"10.1.0.7/16"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text)
		if err != nil {
			return
		}
		if err := r.check(); err != nil || r.iface == "lo" || len(r.addresses) > maxAttached+2 || len(r.hostLinks) > maxAttached {
			t.Errorf("accepted: %+v, %v", r, err)
		}
	})
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod3f0e8b8e_5a3c_4b59_9d55_0d3f4a9e7c11.slice/cri-containerd-5a1c.scope\n")
	f.Add("12:memory:/kubepods/pod3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11/5a1c\n0::/\n")
	f.Fuzz(func(t *testing.T, text string) {
		if uid := uidOf(text); uid != "" && !uidForm.MatchString(uid) {
			t.Errorf("accepted %q", uid)
		}
	})
}

// BenchmarkCache is what the names of 100 pods cost the first time, and when no file
// changed, beside reading the files alone.
func BenchmarkCache(b *testing.B) {
	const pods = 100
	root := b.TempDir()
	var paths []string
	for i := range pods {
		paths = append(paths, put(b, root, fmt.Sprintf("%s/pods-%d-eth0", cacheDirs[0], i), edited("10.244.0.2", fmt.Sprintf("10.244.0.%d", i+1))))
	}
	perFile := func(b *testing.B) { b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/pods, "ns/file") }
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			for _, path := range paths {
				if _, err := os.ReadFile(path); err != nil {
					b.Fatal(err)
				}
			}
		}
		perFile(b)
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			if r := New(root).Pods(cart(), nil); r.Cached != 1 {
				b.Fatal(r)
			}
		}
		perFile(b)
	})
	b.Run("unchanged", func(b *testing.B) {
		f := New(root)
		f.Pods(cart(), nil)
		for b.Loop() {
			if r := f.Pods(cart(), nil); r.Cached != 1 {
				b.Fatal(r)
			}
		}
		perFile(b)
	})
}
