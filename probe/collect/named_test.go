package collect

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestNames names one pod by libcni's cache and one by its cgroup, and takes labels and
// the pods of other nodes from the API's file.
func TestNames(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	const uid = "3f0e8b8e-5a3c-4b59-9d55-0d3f4a9e7c11"
	write(t, root, "var/lib/cni/results/pods-5a1c-net1", fmt.Sprintf(`{"kind":"cniCacheV1","ifName":"net1","netns":"/run/netns/%s",
		"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart"]],"result":{"cniVersion":"1.0.0",
		"interfaces":[{"name":"q0"},{"name":"net1","mac":"02:00:00:00:03:00","sandbox":"/run/netns/x"}],"ips":[{"address":"10.8.3.7/24","interface":1}]}}`, n.pods[0].Name))
	write(t, root, "proc/17/cgroup", "0::/kubepods/pod"+uid+"/5a1c\n")
	write(t, root, "var/log/pods/shop_till_"+uid+"/till/0.log", "")
	if err := os.MkdirAll(filepath.Join(root, "proc/17/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(fmt.Sprintf("net:[%d]", n.pods[1].Inode()), filepath.Join(root, "proc/17/ns/net")); err != nil {
		t.Fatal(err)
	}
	given := `{"kind": "List", "items": [
		{"kind": "Pod", "metadata": {"namespace": "shop", "name": "cart", "uid": "u-1", "labels": {"app": "cart"}}, "status": {"podIP": "10.8.3.7"}},
		{"kind": "Pod", "metadata": {"namespace": "shop", "name": "till", "uid": "another-one", "labels": {"app": "till"}}, "status": {"podIP": "10.8.3.8"}},
		{"kind": "Pod", "metadata": {"namespace": "shop", "name": "db"}, "status": {"podIP": "10.8.4.2"}},
		{"kind": "Pod", "metadata": {"namespace": "shop", "name": "one"}, "status": {"podIP": "10.8.4.3"}},
		{"kind": "Pod", "metadata": {"namespace": "shop", "name": "other"}, "status": {"podIP": "10.8.4.3"}}]}`
	c := open(t, Options{NS: n.NS.NS, HostRoot: root, PodsFile: "-", Stdin: strings.NewReader(given)})
	s, err := c.State(context.Background(), Losses{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(pods []model.Pod) {
		t.Helper()
		if len(pods) != 2 || pods[0].Namespace != "shop" || pods[0].Name != "cart" || pods[0].UID != "u-1" || !reflect.DeepEqual(pods[0].Labels, map[string]string{"app": "cart"}) {
			t.Errorf("by its file: %+v", pods[0])
		}
		// A pod of the same name was replaced: the labels may be others.
		if pods[1].Namespace != "shop" || pods[1].Name != "till" || pods[1].UID != uid || pods[1].Labels != nil {
			t.Errorf("by its cgroup: %+v", pods[1])
		}
	}
	check(s.Pods)
	want := model.Source{Name: model.SourceNames, Status: model.OK, Detail: "2 of 2 pods: 1 from /var/lib/cni/results, 1 from cgroups and /var/log/pods"}
	if !slices.Contains(s.Sources, want) {
		t.Errorf("sources %+v", s.Sources)
	}
	if !reflect.DeepEqual(s.Cluster.Pods, []model.ClusterPod{{Namespace: "shop", Name: "db", Addresses: []netip.Addr{netip.MustParseAddr("10.8.4.2")}}}) {
		t.Errorf("pods elsewhere: %+v", s.Cluster.Pods)
	}
	_, pods, err := c.Quick(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	check(pods)
}

// TestNoNames says what would help.
func TestNoNames(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	given := write(t, root, "pods.json", `{"kind": "PodList", "items": [{"metadata": {"namespace": "shop", "name": "till"}, "status": {"podIP": "10.8.3.8"}}]}`)
	c := open(t, Options{NS: n.NS.NS, HostRoot: root, PodsFile: given})
	s, err := c.State(context.Background(), Losses{})
	if err != nil {
		t.Fatal(err)
	}
	want := model.Source{
		Name: model.SourceNames, Status: model.OK,
		Detail: "1 of 2 pods: 1 from " + given + "; unnamed: 10.8.3.7 (their processes are not visible, as in a container without hostPID); no /var/lib/cni/results",
	}
	if !slices.Contains(s.Sources, want) || s.Pods[1].Name != "till" {
		t.Errorf("sources %+v", s.Sources)
	}
}

// TestCiliumNames names a pod by its endpoint, where its link is the endpoint's.
func TestCiliumNames(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	var links []int
	s, err := open(t, Options{NS: n.NS.NS, HostRoot: root}).State(context.Background(), Losses{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Status(model.SourceCilium) != model.Missing || len(s.Cilium.Endpoints) > 0 {
		t.Errorf("without Cilium: %+v", s.Cilium)
	}
	for _, p := range s.Pods {
		links = append(links, p.LinkIndex)
	}
	write(t, root, "run/cilium/state/871/ep_config.json", fmt.Sprintf(`{"ID":871,"IfIndex":%d,"IPv4":"10.8.3.7","K8sPodName":"cart","K8sNamespace":"shop",
		"SecLabel":{"id":4711,"labels":{"app":{"key":"app","value":"cart","source":"k8s"}}}}`, links[0]))
	write(t, root, "run/cilium/state/872/ep_config.json", fmt.Sprintf(`{"ID":872,"IfIndex":%d,"IPv4":"10.8.3.8","K8sPodName":"earlier","K8sNamespace":"shop"}`, links[0]))
	s, err = open(t, Options{NS: n.NS.NS, HostRoot: root}).State(context.Background(), Losses{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Pods[0].Name != "cart" || s.Pods[1].Name != "" {
		t.Errorf("pods %q and %q", s.Pods[0].Name, s.Pods[1].Name)
	}
	if s.Status(model.SourceCilium) != model.OK || len(s.Cilium.Endpoints) != 2 || s.Cilium.Endpoints[0].Identity != 4711 {
		t.Errorf("%+v", s.Cilium)
	}
}
