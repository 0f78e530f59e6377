//go:build cluster

package clustertest

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Services of the namespace many, and what of them is asked.
const (
	services = 1000
	echo     = "10.96.1.10"
	itself   = "10.96.1.20"
	changing = "10.96.1.30"
	empty    = "10.96.1.40"
	retired  = "10.96.1.50"
)

// asking are pods that ask services: of another node, of the endpoint's node, and a pod
// that is the one endpoint of its service.
const asking = `
apiVersion: v1
kind: Pod
metadata: {name: asks, namespace: many}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers:
  - {name: echo, image: "pod:dev", args: [get, "http://` + echo + `:80/"]}
  - {name: changing, image: "pod:dev", args: [get, "http://` + changing + `:80/"]}
---
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: many}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "pod:dev", args: [get, "http://` + echo + `:80/"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: itself, namespace: many}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers:
  - {name: server, image: "pod:dev", args: [serve, ":8080"]}
  - {name: client, image: "pod:dev", args: [get, "http://` + itself + `:80/"]}
`

const asksEmpty = `
apiVersion: v1
kind: Pod
metadata: {name: asks-empty, namespace: many}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "pod:dev", args: [get, "http://` + empty + `:80/"]}]
`

type object map[string]any

// service is one of the namespace many with these endpoints: nothing else makes its slice.
func service(name, address string, endpoints ...string) []object {
	port := object{"name": "http", "port": 80, "protocol": "TCP"}
	list := []object{{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": name, "namespace": "many"},
		"spec": object{"clusterIP": address, "ports": []object{port}}}}
	if len(endpoints) == 0 {
		return list
	}
	return append(list, object{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": object{"name": name, "namespace": "many", "labels": object{"kubernetes.io/service-name": name}},
		"ports":    []object{{"name": "http", "port": 8080, "protocol": "TCP"}}, "endpoints": ends(endpoints)})
}

// ends are ready endpoints. Without their nodes a kube-proxy knows none of them as its own.
func ends(addresses []string) []object {
	out := []object{}
	for _, a := range addresses {
		node := "node1"
		if strings.HasPrefix(a, "10.244.2.") {
			node = "node2"
		}
		out = append(out, object{"addresses": []string{a}, "nodeName": node, "conditions": object{"ready": true}})
	}
	return out
}

// kubectl runs it with objects as its input.
func kubectl(t *testing.T, input any, args ...string) string {
	t.Helper()
	cmd := command(append([]string{"kubectl"}, args...)...)
	text, isText := input.(string)
	if !isText {
		list, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": input})
		if err != nil {
			t.Fatal(err)
		}
		text = string(list)
	}
	cmd.Stdin = strings.NewReader(text)
	r := run(t, cmd)
	if r.status != 0 {
		t.Fatalf("kubectl %v: %s", args, r.stderr)
	}
	return r.stdout
}

// proxy starts the real kube-proxy, the cluster's own or another release's, on a node until the test ends, in mode iptables
// or nftables, and returns when the node has all rules.
func proxy(t *testing.T, program, node, mode string) {
	t.Helper()
	// The kernel ends it with the thread that started it.
	runtime.LockOSThread()
	cmd := exec.Command("nsenter", "--target="+fabric, "--mount", "--net", "ip", "netns", "exec", node,
		program, "--proxy-mode="+mode, "--hostname-override="+node, "--kubeconfig="+filepath.Join(dir, "kubeconfig"),
		"--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0", "--conntrack-min=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "--v=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said := watchFor(`"SyncProxyRules complete" ipFamily="IPv4"`)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // it is killed
	}()
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-ended
		inNode(t, node, program, "--cleanup")
	})
	select {
	case <-said.seen:
	case <-ended:
		t.Fatalf("kube-proxy ended: %s", said)
	}
}

// TestServices is of the real kube-proxy: in its mode iptables, and in nftables, which leads to
// each service and endpoint by maps; since Kubernetes 1.37 a service with one endpoint has none.
func TestServices(t *testing.T) {
	own, err := exec.LookPath("kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	others, _ := filepath.Glob(own + "-*")
	if len(others) != 1 {
		t.Fatalf("%q: want one kube-proxy of another release", others)
	}
	for name, run := range map[string]struct{ command, mode string }{
		"iptables": {"kube-proxy", "iptables"}, "nftables": {"kube-proxy", "nftables"},
		"nftables of another release": {filepath.Base(others[0]), "nftables"},
	} {
		t.Run(name, func(t *testing.T) { testServices(t, run.command, run.mode) })
	}
}

// testServices has the services of a kube-proxy in a mode.
func testServices(t *testing.T, proxyCommand, mode string) {
	kubectl(t, "", "create", "namespace", "many")
	kubectl(t, "", "wait", "--for=create", "serviceaccount/default", "-n", "many", "--timeout=60s")
	t.Cleanup(func() { kubectl(t, "", "delete", "namespace", "many") })
	ip := func(namespace, pod string) string {
		return kubectl(t, "", "get", "pod", "-n", namespace, pod, "-o", "jsonpath={.status.podIP}")
	}
	web, other := ip("shop", "web"), ip("shop", "other")
	list := slices.Concat(service("echo", echo, web), service("changing", changing, web, other), service("empty", empty), service("retired", retired, web))
	for i := range services - 5 {
		list = append(list, service(fmt.Sprint("quiet", i), fmt.Sprintf("10.96.%d.%d", 16+i/250, 1+i%250), web, other)...)
	}
	kubectl(t, list, "create", "-f", "-")
	proxy(t, proxyCommand, "node1", mode)
	proxy(t, proxyCommand, "node2", mode)
	// What asks before there are rules keeps an entry of connection tracking without them.
	kubectl(t, asking, "apply", "-f", "-")
	kubectl(t, "", "wait", "-n", "many", "--for=condition=Ready", "pod", "--all", "--timeout=120s")
	kubectl(t, service("itself", itself, ip("many", "itself")), "create", "-f", "-")
	kubectl(t, "", "delete", "service", "-n", "many", "retired")

	t.Run("explain", func(t *testing.T) {
		r := lasthop(t, "explain", "-n", "many", "pod/near", "--to", "svc/echo", "--for", "3s")
		if r.status != 0 || !strings.Contains(r.stdout, echo+":80 becomes shop/web") || !strings.Contains(r.stdout, "("+web+":8080)") {
			t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
		}
		removed(t)
	})
	t.Run("healthy", func(t *testing.T) {
		stop := make(chan struct{})
		stopped := make(chan int)
		go func() {
			times := 0
			defer func() { stopped <- times }()
			for ; ; times++ {
				all := []string{web, other}
				for name, endpoints := range map[string][]string{"changing": all[times%2:], "quiet0": all[:times%2]} {
					patch, _ := json.Marshal(object{"endpoints": ends(endpoints)})
					if err := trouble(command("kubectl", "patch", "endpointslice", "-n", "many", name, "--type=merge", "-p", string(patch))); err != nil {
						t.Error(err)
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		r := lasthop(t, "check", "--all", "--for", "6s", "-o", "json")
		close(stop)
		t.Logf("endpoints changed %d times", <-stopped)
		if d := parse(t, r); r.status != 0 || len(d.Findings) > 0 || len(d.Nodes) != 2 {
			t.Errorf("status %d, %+v: %s%s", r.status, d, r.stdout, r.stderr)
		}
		removed(t)
	})
	t.Run("without endpoints", func(t *testing.T) {
		kubectl(t, asksEmpty, "apply", "-f", "-")
		kubectl(t, "", "wait", "-n", "many", "--for=condition=Ready", "pod/asks-empty", "--timeout=120s")
		r := lasthop(t, "check", "node2", "--for", "3s", "-o", "json")
		d := parse(t, r)
		if r.status != 1 || len(d.Findings) != 1 || d.Findings[0].Code != "PolicyDrop" || d.Findings[0].Title != "service many/empty has no endpoints" ||
			len(d.Findings[0].Steps) == 0 || strings.Contains(strings.Join(d.Findings[0].Steps, "\n"), "nft") {
			t.Errorf("status %d, %+v: %s", r.status, d.Findings, r.stderr)
		}
		removed(t)
	})
}
