package diagnose

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

const clusterDNS, gone = "10.0.0.10", "172.20.1.77"

// asking is a node whose first pod has name servers.
func asking(n *testNode, by model.ResolverBy, servers ...string) *testNode {
	n.Pods[0].Resolver = &model.Resolver{By: by}
	for _, s := range servers {
		n.Pods[0].Resolver.Servers = append(n.Pods[0].Resolver.Servers, addr(s))
	}
	return n
}

// ciliumService adds one of Cilium's to a node.
func (n *testNode) ciliumService(a string, backends ...string) *testNode {
	s := model.CiliumService{Addr: netip.MustParseAddrPort(a), Proto: udp, Cluster: true}
	for _, b := range backends {
		s.Backends = append(s.Backends, netip.AddrPortFrom(addr(b), s.Addr.Port()))
	}
	n.Cilium.Services = append(n.Cilium.Services, s)
	return n
}

// tell compares verdicts, and looks for words in what they say.
func tell(t *testing.T, n *testNode, want, says, not []string) {
	t.Helper()
	verdicts(t, n, want)
	said := sentences(n)
	for _, w := range says {
		if !strings.Contains(said, w) {
			t.Errorf("no %q in\n%s", w, said)
		}
	}
	for _, w := range not {
		if strings.Contains(said, w) {
			t.Errorf("%q in\n%s", w, said)
		}
	}
}

func TestNameServers(t *testing.T) {
	mute := func(n *testNode) *testNode {
		n.answered("10.50.0.4", "203.0.113.99")
		n.silent(pod5, out)
		return n
	}
	toFar := func(n *testNode) *testNode {
		for range 4 {
			n.translated(pod5, clusterDNS, far, pod5, false).Original.DstPort = dnsPort
		}
		n.silent(pod5, far)
		n.answered("10.50.0.4", "203.0.113.99")
		return n
	}
	const is, wrote = "pods: the resolv.conf of 172.20.1.5 has the name server ", "kubelet wrote it, the address of the cluster's DNS"
	for _, tt := range []struct {
		name      string
		node      *testNode
		want      []string
		says, not []string
	}{
		{"nothing is wrong", asking(kubenet(), model.ResolverCluster, clusterDNS), nil, nil, nil},
		{"not read", mute(kubenet()), []string{"NoReply likely 172.20.1.5 203.0.113.9"}, nil, []string{"resolv.conf"}},
		{"a service that leads to a silent backend", asking(toFar(kubenet()), model.ResolverCluster, clusterDNS),
			[]string{"NoReply likely 172.20.1.5 172.20.2.9"}, []string{is + clusterDNS + ", which is translated to 172.20.2.9: " + wrote}, nil},
		{"the node's own", asking(mute(kubenet()), model.ResolverNode, out), []string{"NoReply likely 172.20.1.5 203.0.113.9"},
			[]string{is + out + ": kubelet copied it from the node's resolv.conf"}, nil},
		{"another", asking(mute(kubenet()), "", "203.0.113.77", out), []string{"NoReply likely 172.20.1.5 203.0.113.9"},
			[]string{is + out + ": neither the cluster's DNS nor the node's"}, []string{is + "203.0.113.77"}},
		{"one that replies", asking(mute(kubenet()), model.ResolverCluster, clusterDNS), []string{"NoReply likely 172.20.1.5 203.0.113.9"},
			nil, []string{"resolv.conf"}},
		{"of a pod that asks others", func() *testNode {
			n := asking(kubenet(), model.ResolverNode, out)
			n.answered("10.50.0.4", "203.0.113.99")
			n.silent(pod6, out)
			return n
		}(), []string{"NoReply likely 172.20.1.6 203.0.113.9"}, nil, []string{"resolv.conf"}},
		{"one of another family", asking(mute(kubenet()), model.ResolverNode, "fd00::53"), []string{"NoReply likely 172.20.1.5 203.0.113.9"},
			nil, []string{"resolv.conf"}},
		{"a range beyond the node that holds the service's address", func() *testNode {
			n := asking(kubenet(), model.ResolverCluster, "172.20.3.10")
			n.translated(pod5, "172.20.3.10", pod6, pod5, true).Original.DstPort = dnsPort
			n.answered(pod5, far)
			n.silent(pod5, "172.20.3.9")
			n.silent(pod6, "172.20.3.11")
			return n
		}(), []string{"MissingUDR likely 172.20.1.5 172.20.1.6 172.20.3.0/24"}, nil, []string{"resolv.conf"}},
	} {
		t.Run(tt.name, func(t *testing.T) { tell(t, tt.node, tt.want, tt.says, tt.not) })
	}
}

// TestNodesOwnCache: the pods' name server is the node's own cache, which is gone.
func TestNodesOwnCache(t *testing.T) {
	n := asking(kubenet(), model.ResolverCluster, "169.254.20.10")
	n.answered("10.50.0.4", "203.0.113.99")
	n.peer(pod5, "169.254.20.10", model.PeerCount{Packets: 9, Requests: 9}, none)
	for range 9 {
		n.flow(pod5, "169.254.20.10", false)
	}
	found := sentences(n)
	if want := "name server 169.254.20.10: kubelet wrote it, the address of the node's DNS cache"; !strings.Contains(found, want) {
		t.Errorf("no %q in\n%s", want, found)
	}
}

func TestCiliumBackends(t *testing.T) {
	const empty = "DeadBackend likely 172.20.1.5 10.0.0.10"
	looping := func(n *testNode) *testNode {
		n.drop("IP_INHDR", "ip_forward", pod5, gone, 9).Reason = "SKB_DROP_REASON_IP_TTL"
		d := &n.Traffic.Drops[len(n.Traffic.Drops)-1]
		d.Cilium.Reason = 151
		return n
	}
	for _, tt := range []struct {
		name      string
		node      *testNode
		want      []string
		says, not []string
	}{
		{"healthy", asking(kubenet(), model.ResolverCluster, clusterDNS).ciliumService("10.0.0.10:53", pod6), nil, nil, nil},
		{"without a backend, for names", asking(kubenet(), model.ResolverCluster, clusterDNS).ciliumService("10.0.0.10:53"), []string{empty},
			[]string{"the name server 10.0.0.10 has no backend: pods cannot resolve names", "cilium: the service 10.0.0.10:53/udp has no backend", "EPERM", "cluster's DNS"},
			[]string{"another name server", "on this node."}},
		{"for other things", asking(kubenet(), model.ResolverCluster, clusterDNS).ciliumService("10.0.0.10:80"), nil, nil, nil},
		{"by one protocol alone", asking(kubenet(), model.ResolverCluster, clusterDNS).ciliumService("10.0.0.10:53").ciliumService("10.0.0.10:53", pod6), nil, nil, nil},
		{"and the pod has another server", asking(kubenet(), model.ResolverCluster, clusterDNS, out).ciliumService("10.0.0.10:53"), []string{empty},
			[]string{"use another name server"}, nil},
		{"no pod asks it", kubenet().ciliumService("10.0.0.10:53"), nil, nil, nil},
		{"a backend that nobody has", looping(kubenet().ciliumService("10.0.0.10:53", gone)), []string{"DeadBackend proven 172.20.1.5 10.0.0.10 172.20.1.77"},
			[]string{"10.0.0.10 leads to 172.20.1.77, which no pod has", "by Cilium, when the pods connect", "cilium: the services 10.0.0.10 have the backend 172.20.1.77"},
			[]string{"no rule translates"}},
		{"one that nobody has and nobody asks", kubenet().ciliumService("10.0.0.10:53", gone), nil, nil, nil},
		{"its flows have the backend's address", func() *testNode {
			n := kubenet().ciliumService("10.0.0.10:53", gone)
			n.flow(pod5, gone, false)
			n.flow(pod5, gone, false)
			return n
		}(), []string{"DeadBackend proven 172.20.1.5 10.0.0.10 172.20.1.77"}, []string{"172.20.1.5 to 172.20.1.77 UNREPLIED"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) { tell(t, tt.node, tt.want, tt.says, tt.not) })
	}
	n := asking(kubenet(), model.ResolverCluster, clusterDNS, out).ciliumService("10.0.0.10:53")
	if got := Diagnose(&n.Snapshot)[0].Severity; got != model.Info {
		t.Errorf("with another server: %s", got)
	}
}
