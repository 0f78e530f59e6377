//go:build cluster

package clustertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/netns"
)

// routeCodes are what a route that lacks between the nodes may be called: nothing here tells
// whether the network or the node should have it.
var routeCodes = []string{"MissingNodeRoute", "MissingUDR"}

// npdPod is node-problem-detector's pod as far as the guide describes it.
const npdPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: kube-system}
spec:
  nodeName: node2
  hostPID: true
  restartPolicy: Never
  containers:
  - name: npd
    image: registry.example.com/lasthop:1
    command: [/lasthop, npd]
    volumeMounts: [{name: ring, mountPath: /var/lib/lasthop, readOnly: true}]
  volumes: [{name: ring, hostPath: {path: /var/lib/lasthop}}]
`

// prometheusConfig has no discovery by Kubernetes: Debian's Prometheus is built without.
const prometheusConfig = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
alerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}
scrape_configs: [{job_name: pods, static_configs: [%s]}]
`

// alert is what Prometheus sends to an Alertmanager.
type alert struct {
	Labels, Annotations map[string]string
	EndsAt              time.Time
}

// background runs a command until the test ends. What it says goes to w.
func background(t *testing.T, w io.Writer, args ...string) (ended <-chan struct{}) {
	t.Helper()
	cmd := command(args...)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		cmd.Wait() //nolint:errcheck // it is ended
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		<-over
	})
	return over
}

// startPrometheus runs the real one beside the API server, with the chart's alerts.
func startPrometheus(t *testing.T) <-chan alert {
	t.Helper()
	alerts := make(chan alert, 1000)
	ns, err := netns.Open("/proc/" + fabric + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list []alert
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		for _, a := range list {
			alerts <- a
		}
	}))
	s.Listener.Close()
	if err := ns.Do(func() error {
		s.Listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Close)
	rules, err := filepath.Abs(filepath.Join(root, "charts/lasthop/files/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	where := t.TempDir()
	file := filepath.Join(where, "prometheus.yml")
	targets := kubectl(t, "", "get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/component=agent", "-o",
		`jsonpath={range .items[*]}{"{targets: ['"}{.status.podIP}:{.metadata.annotations.prometheus\.io/port}{"'], labels: {node: "}{.spec.nodeName}{"}}, "}{end}`)
	config := fmt.Sprintf(prometheusConfig, rules, s.Listener.Addr(), targets)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ready := watchFor("Server is ready")
	ended := background(t, ready, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(where, "data"), "--web.listen-address=127.0.0.1:9090")
	select {
	case <-ready.seen:
	case <-ended:
		t.Fatal(ready)
	}
	return alerts
}

// route is what became of the route: its alert of node2, firing or resolved.
func await(t *testing.T, alerts <-chan alert, resolved bool) alert {
	t.Helper()
	for a := range alerts {
		ours := slices.Contains(routeCodes, a.Labels["code"])
		switch {
		case ours && a.Labels["node"] == "node2" && a.EndsAt.Before(time.Now()) == resolved:
			return a
		case !ours && a.Labels["code"] != "":
			t.Errorf("another alert: %v", a)
		}
	}
	panic("the channel is never closed")
}

// past is a report about what the agents kept.
type past struct {
	Findings []struct {
		Code, Title    string
		Opened, Closed time.Time
		Nodes          []string
	}
	Nodes []struct{ Name, Reason string }
}

// wantRoute wants the fault, its time and its end in one finding, of what the agents kept.
func wantRoute(t *testing.T, begin, end time.Time, args ...string) {
	t.Helper()
	r := lasthop(t, append(args, "-o", "json")...)
	var p past
	if err := json.Unmarshal([]byte(r.stdout), &p); err != nil {
		t.Fatalf("%v: %v: %s%s", args, err, r.stdout, r.stderr)
	}
	if r.status != 1 || len(p.Findings) != 1 || !slices.Contains(routeCodes, p.Findings[0].Code) || !strings.Contains(p.Findings[0].Title, "10.244.1.0/24") ||
		p.Findings[0].Opened.Before(begin.Truncate(time.Second)) || p.Findings[0].Closed.Before(p.Findings[0].Opened) || p.Findings[0].Closed.After(end) ||
		slices.Contains(args, "--all") && (!slices.Contains(p.Findings[0].Nodes, "node2") || !strings.HasPrefix(p.Findings[0].Title, "on node2: ")) {
		t.Errorf("%v: status %d, %+v, from %v until %v: %s", args, r.status, p, begin, end, r.stderr)
	}
}

// agentOn is the pod of a node's agent.
func agentOn(t *testing.T, node string) string {
	t.Helper()
	return strings.TrimSpace(kubectl(t, "", "get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/component=agent",
		"--field-selector=spec.nodeName="+node, "-o", "name"))
}

// npd asks as node-problem-detector's pod does.
func npd(t *testing.T, name string, want int) {
	t.Helper()
	kubectl(t, fmt.Sprintf(npdPod, name), "apply", "-f", "-")
	defer kubectl(t, "", "delete", "pod", "-n", "kube-system", name)
	kubectl(t, "", "wait", "-n", "kube-system", "--timeout=60s", "pod/"+name,
		"--for=jsonpath={.status.containerStatuses[0].state.terminated}")
	status := kubectl(t, "", "get", "-n", "kube-system", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
	if line := kubectl(t, "", "logs", "-n", "kube-system", name); status != fmt.Sprint(want) {
		t.Errorf("npd: status %s, want %d: %s", status, want, line)
	} else {
		t.Logf("npd: %s: %s", status, line)
	}
}

// TestAgents installs the agents by the words of the guide. A route goes for a minute of its own
// and comes back: Prometheus, Events and node-problem-detector's plugin say so at that time, and
// check afterwards, also when agents were killed and updated meanwhile.
func TestAgents(t *testing.T) {
	f := &follower{T: t, env: os.Environ(), dir: root, names: strings.NewReplacer("REGISTRY", "registry.example.com", "NODE", "node2")}
	agent := func(args ...string) string { return kubectl(t, "", append([]string{"-n", "kube-system"}, args...)...) }
	ready := func() { agent("rollout", "status", "daemonset/lasthop", "--timeout=2m") }
	proxy(t, "kube-proxy", "node1", "nftables")
	proxy(t, "kube-proxy", "node2", "nftables")
	// A small disk, which is filled in the end.
	f.onNodes("mkdir -p /var/lib/lasthop && mount -t tmpfs -o size=24m none /var/lib/lasthop")
	t.Cleanup(func() {
		f.follow("helm uninstall lasthop -n kube-system --wait --ignore-not-found")
		f.onNodes("umount /var/lib/lasthop")
	})
	for _, line := range commandsIn(t, "docs/guides/always-on.md", "Install it") {
		if !strings.Contains(line, "podMonitor=true") { // there is no operator
			f.follow(line)
		}
	}
	ready()
	alerts := startPrometheus(t)
	opened, closed := watchFor("Warning node2 Missing"), watchFor("Normal node2 Missing")
	background(t, io.MultiWriter(opened, closed), "kubectl", "get", "events", "--watch-only", "--field-selector=source=lasthop",
		"-o", `jsonpath={.type} {.involvedObject.name} {.reason} {.message}{"\n"}`)
	npd(t, "npd-before", 0)

	begin := time.Now()
	inFabric(t, "route", "replace", "blackhole", "10.244.1.0/24")
	a := await(t, alerts, false)
	t.Logf("after %v: %v", time.Since(begin).Round(time.Second), a)
	if a.Annotations["command"] != "kubectl lasthop check node2 --last 20m" {
		t.Errorf("the alert's command is %q", a.Annotations["command"])
	}
	<-opened.seen
	npd(t, "npd-during", 1)
	inFabric(t, "route", "del", "blackhole", "10.244.1.0/24")
	inFabric(t, "route", "replace", "10.244.1.0/24", "via", "10.99.0.11")
	await(t, alerts, true)
	<-closed.seen
	end := time.Now()
	npd(t, "npd-after", 0)
	t.Log(opened)
	if text := kubectl(t, "", "describe", "node", "node2"); !strings.Contains(text, "lasthop") {
		t.Errorf("kubectl describe does not show the Event: %s", text)
	}

	jobs := kubectl(t, "", "get", "jobs", "-A", "-o", "name")
	all := []string{"check", "--all", "--at", begin.Format("15:04"), "--for", "5m"}
	r := lasthop(t, all...)
	t.Logf("%v: status %d\n%s%s", all, r.status, r.stdout, r.stderr)
	wantRoute(t, begin, end, all...)
	wantRoute(t, begin, end, strings.Fields(a.Annotations["command"])[2:]...)

	pod := agentOn(t, "node2")
	f.onNodes(`for c in $(ctr -n k8s.io containers ls -q 'labels."io.kubernetes.container.name"==lasthop'); do
	ctr -n k8s.io tasks kill --signal SIGKILL "$c"
done`)
	agent("wait", pod, "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=60s")
	ready()
	wantRoute(t, begin, end, all...)
	f.follow("helm upgrade lasthop charts/lasthop -n kube-system --reuse-values --set podAnnotations.updated=yes")
	ready()
	if now := agentOn(t, "node2"); now == pod {
		t.Error("the update made no new pod")
	}
	wantRoute(t, begin, end, all...)
	if now := kubectl(t, "", "get", "jobs", "-A", "-o", "name"); now != jobs {
		t.Errorf("jobs were made: %s", now)
	}
	fullDisk(t, f, agentOn(t, "node1"))
}

// fullDisk fills the disk that an agent writes to: it goes on in the room that its own recordings had.
func fullDisk(t *testing.T, f *follower, pod string) {
	t.Helper()
	failed, again := watchFor("no space left on device"), watchFor("the ring is written again")
	ended := background(t, io.MultiWriter(failed, again), "kubectl", "logs", "-n", "kube-system", "--follow", pod)
	f.onNodes("! cat /dev/zero >/var/lib/lasthop/full")
	for _, w := range []*watcher{failed, again} {
		select {
		case <-w.seen:
		case <-ended:
			t.Fatal(again)
		}
	}
	if r := lasthop(t, "check", "node1", "--last", "10s"); r.status != 0 {
		t.Errorf("with a full disk: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	f.onNodes("rm /var/lib/lasthop/full")
	kubectl(t, "", "wait", "-n", "kube-system", pod, "--for=condition=Ready", "--timeout=2m")
}
