package collect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// node is a node with two bridged pods behind it, and a network with an edge
// before it.
type node struct {
	*nstest.NS
	fabric *nstest.NS
	pods   [2]*nstest.NS
}

func newNode(t *testing.T) node {
	t.Helper()
	n := node{NS: nstest.Named(t, "node"), fabric: nstest.Named(t, "fabric")}
	n.Run(
		"ip link set lo up", "sysctl -qw net.ipv4.ip_forward=1",
		"ip link add wan3 type veth peer name f1 netns "+n.fabric.Name, "ip link set wan3 address 02:00:00:00:01:01 up",
		"ip addr add 172.20.1.4/16 dev wan3", "ip route add default via 172.20.0.1 dev wan3",
		"ip link add pool0 type bridge", "ip link set pool0 address 02:00:00:00:02:01 up", "ip addr add 10.8.3.1/24 dev pool0",
	)
	n.fabric.Run("ip link set f1 up", "ip link add edge type bridge", "ip link set edge up", "ip route add default dev edge")
	for i := range n.pods {
		pod := nstest.Named(t, fmt.Sprintf("pod%d", i))
		n.Run(
			fmt.Sprintf("ip link add q%d type veth peer name net1 netns %s", i, pod.Name),
			fmt.Sprintf("ip link set q%d master pool0 up", i),
		)
		pod.Run(
			fmt.Sprintf("ip link set net1 address 02:00:00:00:03:0%d up", i), fmt.Sprintf("ip addr add 10.8.3.%d/24 dev net1", 7+i),
			"ip route add default via 10.8.3.1", "ip neigh add 10.8.3.1 lladdr 02:00:00:00:02:01 dev net1 nud permanent",
		)
		n.pods[i] = pod
	}
	n.Run(
		"iptables-nft -w -t nat -N AGENT", "iptables-nft -w -t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j AGENT",
		"iptables-nft -w -t nat -A AGENT -d 10.8.0.0/16 -j RETURN", "iptables-nft -w -t nat -A AGENT -d 172.16.0.0/12 -j RETURN",
		"iptables-nft -w -t nat -A AGENT -j MASQUERADE",
		"ebtables-nft -t filter -N AKS-DEDUP-PROMISC", "ebtables-nft -t filter -A OUTPUT -j AKS-DEDUP-PROMISC",
		"conntrack -I -p tcp -s 10.8.3.7 -d 8.8.8.8 --sport 1234 --dport 80 --state SYN_SENT -t 60",
		"conntrack -I -p udp -s 10.9.0.1 -d 10.9.0.2 --sport 1 --dport 2 -t 60",
	)
	return n
}

func open(t *testing.T, o Options) *Collector {
	t.Helper()
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestState(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	write(t, root, "var/run/azure-vnet.json", `{"Network": {"ExternalInterfaces": {"x": {"Networks": {"y": {"Endpoints": {
		"a": {"HostIfName": "q0", "IPAddresses": [{"IP": "10.8.3.7"}], "PODName": "cart", "PODNameSpace": "shop"},
		"b": {"HostIfName": "gone", "IPAddresses": [{"IP": "10.8.3.8"}], "PODName": "old", "PODNameSpace": "shop"}}}}}}}}`)
	write(t, root, "etc/kubernetes/azure.json", `{"resourceGroup": "MC_a", "vnetName": "v", "aadClientSecret": "x"}`)
	nodes := write(t, root, "nodes.json", `{"kind": "List", "items": [{"kind": "Node", "metadata": {"name": "worker-9"},
		"spec": {"podCIDR": "10.8.3.0/24"}, "status": {"addresses": [{"type": "InternalIP", "address": "172.20.1.4"}]}}]}`)
	routes := write(t, root, "routes.json", `[{"addressPrefix": "10.8.4.0/24", "name": "worker-8", "nextHopIpAddress": "172.20.1.5", "nextHopType": "VirtualAppliance"}]`)
	c := open(t, Options{NS: n.NS.NS, HostRoot: root, NodesFile: nodes, RoutesFiles: []string{routes}})
	s, err := c.State(context.Background(), Losses{})
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range s.Sources {
		if src.Status != model.OK {
			t.Errorf("source %+v", src)
		}
	}
	// On this node there is no Cilium.
	if len(s.Sources) != len(sourceOrder)-1 || s.Status(model.SourceCilium) != model.Missing {
		t.Errorf("%d sources of %d: %+v", len(s.Sources), len(sourceOrder), s.Sources)
	}
	if s.Node.Name != "worker-9" || s.Node.Netns != n.Inode() || s.Node.Plugin != "kubenet" || !slices.Equal(s.Node.Uplinks, []string{"wan3"}) {
		t.Errorf("node: %+v", s.Node)
	}
	if !slices.Equal(s.Cluster.PodCIDRs, []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16")}) || len(s.Cluster.Nodes) != 1 ||
		len(s.Cluster.Azure.Tables) != 1 || s.Cluster.Azure.Node.VNet != "v" || s.Cluster.Azure.Node.VNetResourceGroup != "MC_a" {
		t.Errorf("cluster: %+v", s.Cluster)
	}
	checkPods(t, n, s)
	// The kernel's own multicast reports are tracked too.
	ours := slices.DeleteFunc(slices.Clone(s.Flows), func(f model.Flow) bool { return f.Original.Dst.IsMulticast() })
	if len(ours) != 1 || ours[0].Original.Src != netip.MustParseAddr("10.8.3.7") || s.Conntrack.Count < 2 {
		t.Errorf("connections: %+v, %+v", s.Flows, s.Conntrack)
	}
	for name, want := range map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.conf.wan3.forwarding": "1", "net.ipv4.conf.q0.proxy_arp": "0", "net.ipv4.conf.all.rp_filter": "0"} {
		if !slices.Contains(s.Sysctls, model.Sysctl{Name: name, Value: want}) {
			t.Errorf("no setting %s = %s", name, want)
		}
	}
	if !slices.ContainsFunc(s.Routes, func(r model.Route) bool { return r.Link == "pool0" && r.Dst.String() == "10.8.3.0/24" }) {
		t.Errorf("no route to the pods: %+v", s.Routes)
	}
}

func checkPods(t *testing.T, n node, s *model.Snapshot) {
	t.Helper()
	if len(s.Pods) != 2 {
		t.Fatalf("%d pods: %+v", len(s.Pods), s.Pods)
	}
	for i, p := range s.Pods {
		l := s.Links[slices.IndexFunc(s.Links, func(l model.Link) bool { return l.Name == p.Link })]
		if p.Link != fmt.Sprintf("q%d", i) || l.Role != model.RolePodLink || p.LinkIndex != l.Index || p.LinkMAC != l.MAC ||
			p.Netns != n.pods[i].Inode() || p.NetnsName != n.pods[i].Name || p.Interface != "net1" || !p.Up ||
			p.MAC != (model.MAC{2, 0, 0, 0, 3, byte(i)}) || !slices.Equal(p.Addresses, []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 8, 3, byte(7 + i)}), 24)}) {
			t.Errorf("pod %d: %+v", i, p)
		}
		if len(p.Gateways) != 1 || p.Gateways[0].MAC != (model.MAC{2, 0, 0, 0, 2, 1}) || p.Gateways[0].State != "PERMANENT" || len(p.Routes) < 2 {
			t.Errorf("pod %d: gateways %+v, routes %+v", i, p.Gateways, p.Routes)
		}
	}
	// The file's entry for the second pod names another link: it is stale.
	if s.Pods[0].Name != "cart" || s.Pods[0].Namespace != "shop" || s.Pods[1].Name != "" {
		t.Errorf("names: %q, %q", s.Pods[0].Name, s.Pods[1].Name)
	}
}

func write(t *testing.T, root, name, text string) string {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// descriptors are the process's open files.
func descriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			out = append(out, e.Name()+" "+target)
		}
	}
	return out
}

// TestNothingStaysOpen reads again and again, with pods that go: neither the
// collector's files nor a gone pod's namespace stay.
func TestNothingStaysOpen(t *testing.T) {
	n := newNode(t)
	before := len(descriptors(t))
	c, err := Open(Options{NS: n.NS.NS, HostRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	// The first reading opens the sockets of what is there.
	if _, err := c.State(context.Background(), Losses{}); err != nil {
		t.Fatal(err)
	}
	opened := len(descriptors(t))
	for range 5 {
		if _, err := c.State(context.Background(), Losses{}); err != nil {
			t.Fatal(err)
		}
	}
	if now := descriptors(t); len(now) != opened {
		t.Errorf("%d files open after reading, %d before: %v", len(now), opened, now)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changes, err := c.Follow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range changes {
	}
	if now := descriptors(t); len(now) != before {
		t.Errorf("%d files open after closing, %d before: %v", len(now), before, now)
	}
}

// TestFollow adds and removes a pod and reads it when told.
func TestFollow(t *testing.T) {
	n := newNode(t)
	c := open(t, Options{NS: n.NS.NS, HostRoot: t.TempDir()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	changes, err := c.Follow(ctx)
	if err != nil {
		t.Fatal(err)
	}
	await := func(what string, want func([]model.Link, []model.Pod) bool) {
		t.Helper()
		for {
			links, list, err := c.Quick(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if want(links, list) {
				return
			}
			select {
			case <-changes:
			case <-t.Context().Done():
				t.Fatalf("not told of %s", what)
			}
		}
	}
	await("the first pods", func(_ []model.Link, list []model.Pod) bool { return len(list) == 2 })
	pod := nstest.Named(t, "new")
	n.Run("ip link add q9 type veth peer name net1 netns "+pod.Name, "ip link set q9 master pool0 up")
	pod.Run("ip link set net1 up", "ip addr add 10.8.3.99/24 dev net1", "ip route add default via 10.8.3.1")
	await("the new pod", func(links []model.Link, list []model.Pod) bool {
		return slices.ContainsFunc(list, func(p model.Pod) bool { return p.Link == "q9" && p.Has(netip.MustParseAddr("10.8.3.99")) }) &&
			slices.ContainsFunc(links, func(l model.Link) bool { return l.Name == "q9" && l.Role == model.RolePodLink })
	})
	n.Run("ip link del q9")
	await("the end of the pod", func(_ []model.Link, list []model.Pod) bool { return len(list) == 2 })
	cancel()
	for range changes {
	}
}

func TestOpenErrors(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	if _, err := Open(Options{NS: n.NS.NS, HostRoot: root, Uplinks: []string{"nic9"}}); err == nil ||
		!strings.Contains(err.Error(), `"nic9"`) || !strings.Contains(err.Error(), "wan3") {
		t.Errorf("unknown uplink: %v", err)
	}
	var bad *FileError
	broken := write(t, root, "nodes.json", "{\n oops")
	if _, err := Open(Options{NS: n.NS.NS, HostRoot: root, NodesFile: broken}); !errors.As(err, &bad) || bad.Line != 2 || bad.Column != 2 {
		t.Errorf("broken nodes file: %v", err)
	}
	if _, err := Open(Options{NS: n.NS.NS, HostRoot: root, RoutesFiles: []string{broken}}); !errors.As(err, &bad) || bad.Line != 2 || bad.Column != 2 {
		t.Errorf("error %v", err)
	}
	if _, err := Open(Options{NS: n.NS.NS, HostRoot: root, NodesFile: root + "/absent"}); !errors.As(err, &bad) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent nodes file: %v", err)
	}
}

// TestGivenUplink overrules what the routes tell.
func TestGivenUplink(t *testing.T) {
	n := newNode(t)
	c := open(t, Options{NS: n.NS.NS, HostRoot: t.TempDir(), Uplinks: []string{"q1"}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}})
	s, err := c.State(context.Background(), Losses{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.Node.Uplinks, []string{"q1"}) || len(s.Pods) != 1 || s.Pods[0].Link != "q0" {
		t.Errorf("uplinks %v, pods %+v", s.Node.Uplinks, s.Pods)
	}
	if !slices.Equal(s.Cluster.PodCIDRs, []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}) {
		t.Errorf("pod ranges %v", s.Cluster.PodCIDRs)
	}
}

// TestEndedContext wants no snapshot that is not whole.
func TestEndedContext(t *testing.T) {
	n := newNode(t)
	c := open(t, Options{NS: n.NS.NS, HostRoot: t.TempDir()})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if s, err := c.State(ctx, Losses{}); !errors.Is(err, context.Canceled) || s != nil {
		t.Errorf("snapshot %v, error %v", s, err)
	}
}
