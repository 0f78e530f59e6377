//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/redact"
)

// observed is the variable that says what the pretended lasthop of each node records,
// such as node1=full,node2=well.
const observed = "LASTHOP_TEST_OBSERVED"

// pretendRecording writes a recording to the standard output.
func pretendRecording(states string, args []string) int {
	dir, err := os.Getwd()
	if err != nil {
		return -1
	}
	node, _, _ := strings.Cut(filepath.Base(dir), ".")
	fmt.Fprintln(os.Stderr, "records with", strings.Join(args, " "))
	state := ""
	for _, s := range strings.Split(states, ",") {
		if name, what, _ := strings.Cut(s, "="); name == node {
			state = what
		}
	}
	if state == "blind" {
		fmt.Fprintln(os.Stderr, "lasthop: cannot observe: missing capabilities")
		return exitCannot
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
	s := &model.Snapshot{
		Node:      model.Node{Name: node, Plugin: "kubenet", Engine: "tc", Attach: "tcx", Uplinks: []string{"eth0"}},
		Window:    model.Window{Start: time.Unix(1800000000, 0), End: time.Unix(1800000010, 0)},
		Sources:   []model.Source{{Name: model.SourceTC, Status: model.OK}, {Name: model.SourceConntrack, Status: model.OK}},
		Conntrack: model.Conntrack{Count: 1, Max: 1000},
		Links:     []model.Link{{Index: 2, Name: "eth0", Up: true, Carrier: true, Role: model.RoleUplink}},
	}
	switch state {
	case "full":
		s.Conntrack = model.Conntrack{Count: 990, Max: 1000, EarlyDrop: 40}
	case "partial":
		s.Sources[1] = model.Source{Name: model.SourceConntrack, Status: model.Partial, Detail: "half of it"}
	}
	var had []model.Tracked
	if state == "had" {
		had = []model.Tracked{{
			ID: 1, First: s.Window.Start.Add(2 * time.Second), Last: s.Window.Start.Add(5 * time.Second), Closed: true,
			Finding: model.Finding{Code: "MissingUDR", Severity: model.Critical, Title: "no reply"},
		}}
	}
	if slices.Contains(args, "--redact=true") {
		s = redact.New(os.Getenv(flags.RedactKey)).Snapshot(s)
	}
	w, err := record.NewWriter(os.Stdout, record.Head{Node: s.Node.Name})
	if err == nil {
		err = w.Write(model.Reading{At: s.Window.End, Findings: had, Point: model.Point{Snapshot: s, Whole: true, Ready: s.Window.End}})
	}
	if err != nil {
		return -1
	}
	switch state {
	case "waits":
		fmt.Fprintln(os.Stderr, "watching")
		<-asked
		return exitInterrupted
	case "killed":
		return 137
	}
	if w.Close() != nil {
		return -1
	}
	return exitClean
}

// agents gives each node the pod of an agent.
func (a *api) agents() {
	for _, n := range a.nodes {
		a.pods = append(a.pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "lasthop-" + n.Name, Namespace: "kube-system", Labels: map[string]string{
				"app.kubernetes.io/name": "lasthop", "app.kubernetes.io/component": "agent",
			}},
			Spec: corev1.PodSpec{NodeName: n.Name, HostNetwork: true},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}},
		})
	}
}

// TestPast asks the nodes' agents, and makes no pod.
func TestPast(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "1")
	if r := plugin(t, "check", "node1", "--last", "20m"); r.status != exitCannot || !strings.Contains(r.stderr, "no agent runs on node1") {
		t.Errorf("without an agent: status %d: %s", r.status, r.stderr)
	}
	a.agents()
	if r := plugin(t, "check", "node1", "--last", "20m"); r.status != exitFindings || r.stdout != "check --last=20m0s\n" || r.stderr != "" {
		t.Errorf("status %d: %q, %q", r.status, r.stdout, r.stderr)
	}
	if r := plugin(t, "past", "node1"); r.stdout != "past\n" || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	if r := plugin(t, "past", "node1", "--for", "5m"); r.status != exitUsage || !strings.Contains(r.stderr, "past takes no --for") {
		t.Errorf("%+v", r)
	}
	if r := plugin(t, "watch", "node1", "--last", "20m"); r.status != exitUsage {
		t.Errorf("watch: status %d: %s", r.status, r.stderr)
	}
	t.Setenv(pretended, "0")
	t.Setenv(observed, "node1=well,node2=had")
	r := plugin(t, "check", "--all", "--at", "2027-01-15T08:00", "--for", "5m", "-o", "json")
	j := r.jointly(t)
	if r.status != exitFindings || len(j.Findings) != 1 || j.Findings[0].Code != "MissingUDR" || len(j.Nodes) != 2 {
		t.Errorf("status %d: %+v: %s", r.status, j, r.stderr)
	}
	at := time.Date(2027, 1, 15, 8, 0, 0, 0, time.Local).Format(time.RFC3339)
	if !strings.Contains(r.stderr, "records with record - --at="+at+" --for=5m0s\n") {
		t.Errorf("not that time: %s", r.stderr)
	}
	if len(a.made) > 0 {
		t.Errorf("%d jobs were made", len(a.made))
	}
}

// jointly is as much of a report about several nodes as the tests read.
type jointly struct {
	Nodes    []seen
	Findings []struct{ Code string }
}

type seen struct {
	Name, Reason string
	Node         *struct{ Plugin string }
}

func (r result) jointly(t *testing.T) (j jointly) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), &j); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	return j
}

// TestTogether judges the recordings of several nodes in one report.
func TestTogether(t *testing.T) {
	for _, c := range []struct {
		name, observed string
		args           []string
		status         int
		findings       string
		// reasons are why nothing is concluded from the silence of node1 and node2.
		reasons [2]string
	}{
		{"healthy", "node1=well,node2=well", nil, exitClean, "[]", [2]string{}},
		{"a finding", "node1=well,node2=full", nil, exitFindings, "[ConntrackFull]", [2]string{}},
		{"not that finding", "node1=well,node2=full", []string{"--skip=conntrackfull"}, exitClean, "[]", [2]string{}},
		{"another finding", "node1=well,node2=full", []string{"--only=MissingUDR"}, exitClean, "[]", [2]string{}},
		{"below the limit", "node1=well,node2=full", []string{"--fail-on=critical", "--skip=ConntrackFull"}, exitClean, "[]", [2]string{}},
		{"one node cannot observe", "node1=well,node2=blind", nil, exitCannot, "[]", [2]string{"", "cannot observe: missing capabilities"}},
		{"a finding, and one node cannot observe", "node1=full,node2=blind", nil, exitFindings, "[ConntrackFull]", [2]string{"", "cannot observe: missing capabilities"}},
		{"cut off", "node1=killed,node2=well", nil, exitCannot, "[]", [2]string{"lasthop on node1 was killed by signal 9 (killed)", ""}},
		{"incomplete", "node1=well,node2=partial", []string{"--strict"}, exitIncomplete, "[]", [2]string{}},
		{"incomplete, without --strict", "node1=well,node2=partial", nil, exitClean, "[]", [2]string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI(t)
			t.Setenv(pretended, "0")
			t.Setenv(observed, c.observed)
			r := plugin(t, append([]string{"check", "--all", "-o", "json", "--uplink=eth9"}, c.args...)...)
			j := r.jointly(t)
			var codes []string
			for _, f := range j.Findings {
				codes = append(codes, f.Code)
			}
			if got := fmt.Sprint(codes); r.status != c.status || got != c.findings || len(j.Nodes) != 2 {
				t.Fatalf("status %d, want %d; findings %s, want %s; nodes %v: %s", r.status, c.status, got, c.findings, j.Nodes, r.stderr)
			}
			for i, want := range c.reasons {
				if got := j.Nodes[slices.IndexFunc(j.Nodes, func(n seen) bool { return n.Name == fmt.Sprintf("node%d", i+1) })].Reason; got != want && (want == "" || !strings.HasPrefix(got, want)) {
					t.Errorf("nothing is concluded from node%d: %q, want %q", i+1, got, want)
				}
			}
			if !strings.Contains(r.stderr, "node1: records with record - --for=10s --uplink=eth9 --nodes=nodes.json --pods=pods.json\n") {
				t.Errorf("the nodes are asked for something else: %s", r.stderr)
			}
			a.removed()
		})
	}
}

// TestTogetherForCI writes the verdict on several nodes for a CI job, with other names.
func TestTogetherForCI(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	t.Setenv(observed, "node1=full,node2=blind")
	t.Setenv(flags.RedactKey, "of the job")
	t.Setenv(flags.SummaryVariable, "job.md")
	t.Chdir(t.TempDir())
	r := plugin(t, "check", "--all", "--redact", "--report", "junit=v.xml", "--report", "html=v.html", "--github", "-o", "json")
	shown := redact.New("of the job").Node("node1")
	if j := r.jointly(t); r.status != exitFindings || len(j.Findings) != 1 || !slices.ContainsFunc(j.Nodes, func(n seen) bool { return n.Name == shown && n.Node != nil }) {
		t.Errorf("status %d, %+v: %s", r.status, j, r.stderr)
	}
	verdict, err := os.ReadFile("v.xml")
	summary, unread := os.ReadFile("job.md")
	page, unsaved := os.ReadFile("v.html")
	err = errors.Join(err, unsaved)
	for what, text := range map[string]string{"verdict": string(verdict), "summary": string(summary), "report": r.stdout, "page": string(page)} {
		if !strings.Contains(text, "ConntrackFull") || !strings.Contains(text, shown) || strings.Contains(text, "node1") || strings.Contains(text, "node2") {
			t.Errorf("%s %q, %v", what, text, errors.Join(err, unread))
		}
	}
	if !strings.Contains(r.stderr, "\n::") {
		t.Errorf("no annotation: %s", r.stderr)
	}
	r = plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", "pod/cart-2", "--report", "junit=path.xml")
	if text, err := os.ReadFile("path.xml"); r.status != exitCannot || err == nil {
		t.Errorf("explain without the far node: status %d, %s", r.status, text)
	}
	t.Setenv(observed, "node1=full,node2=well")
	r = plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", "pod/cart-2", "--report", "junit=path.xml")
	if text, err := os.ReadFile("path.xml"); !strings.Contains(string(text), "10.244.2.7") || err != nil {
		t.Errorf("explain: status %d, %s, %v: %s", r.status, text, err, r.stderr)
	}
	a.removed()
}

// TestTogetherFailed goes on without a node whose pod does not start, and gives no
// verdict if none does.
func TestTogetherFailed(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	t.Setenv(observed, "node1=full,node2=full")
	pull := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "not there"}}}}}
	a.podStatus = func(node string) *corev1.PodStatus {
		if node == "node2" {
			return pull
		}
		return nil
	}
	r := plugin(t, "check", "--all", "-o", "json")
	j := r.jointly(t)
	if r.status != exitFindings || len(j.Findings) != 1 || len(j.Nodes) != 2 || !strings.Contains(r.stderr, "node2: start the debug pod on node2: ErrImagePull: not there") {
		t.Errorf("status %d, %+v: %s", r.status, j, r.stderr)
	}
	if i := slices.IndexFunc(j.Nodes, func(n seen) bool { return n.Node == nil }); i < 0 || j.Nodes[i].Reason != "start the debug pod on node2: ErrImagePull: not there" {
		t.Errorf("node2 is %+v", j.Nodes)
	}
	a.removed()
	a.podStatus = func(string) *corev1.PodStatus { return pull }
	if r := plugin(t, "check", "--all", "-o", "json"); r.status != exitCannot || r.stdout != "" {
		t.Errorf("no node: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	a.removed()
}

// TestSameWindow starts no node before the last is there.
func TestSameWindow(t *testing.T) {
	for _, atOnce := range []string{"1", "2"} {
		t.Run(atOnce, func(t *testing.T) {
			a := newAPI(t)
			t.Setenv(pretended, "0")
			t.Setenv(observed, "node1=well,node2=well")
			var mu sync.Mutex
			var events []string
			there, once := make(chan struct{}), sync.Once{}
			a.reached = func(node string, input []byte) {
				mu.Lock()
				defer mu.Unlock()
				if input == nil {
					events = append(events, "there")
					once.Do(func() { close(there) })
				} else if !slices.Contains(events, "begins "+node) {
					events = append(events, "begins "+node)
				}
			}
			// The pod of the other node starts once that of the first is there.
			var first string
			a.podStatus = func(node string) *corev1.PodStatus {
				if first == "" {
					first = node
				}
				select {
				case <-there:
				default:
					if node != first {
						return &corev1.PodStatus{Phase: corev1.PodPending}
					}
				}
				return nil
			}
			if r := plugin(t, "check", "--all", "--at-once", atOnce); r.status != exitClean || !strings.Contains(r.stderr, "2 of 2 nodes are ready") {
				t.Errorf("status %d: %s", r.status, r.stderr)
			}
			if len(events) != 4 || events[0] != "there" || events[1] != "there" {
				t.Errorf("%v: a node began before all were there", events)
			}
			a.removed()
		})
	}
}

// TestTogetherInterrupted gives no verdict, and leaves nothing.
func TestTogetherInterrupted(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	t.Setenv(observed, "node1=waits,node2=waits")
	asked, ask := context.WithCancel(t.Context())
	up := &sayer{text: "node2: watching", then: ask}
	if r := pluginFor(t, asked, up, "check", "--all"); r.status != exitInterrupted || r.stdout != "" {
		t.Errorf("watching: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	a.removed()
	// While one of them does not start.
	asked, ask = context.WithCancel(t.Context())
	a.podStatus = func(node string) *corev1.PodStatus {
		if node == "node1" {
			return nil
		}
		return &corev1.PodStatus{Phase: corev1.PodPending}
	}
	a.reached = func(string, []byte) { ask() }
	if r := pluginFor(t, asked, io.Discard, "check", "--all"); r.status != exitInterrupted || r.stdout != "" {
		t.Errorf("starting: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	a.removed()
}

// TestLate: the others do not wait for a node that does not end.
func TestLate(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	t.Setenv(observed, "node1=full,node2=waits")
	r := plugin(t, "check", "--all", "-o", "json", "--for", "100ms", "--start-within", "2s")
	j := r.jointly(t)
	i := slices.IndexFunc(j.Nodes, func(n seen) bool { return n.Reason != "" })
	if r.status != exitFindings || len(j.Findings) != 1 || i < 0 || !strings.Contains(j.Nodes[i].Reason, "it did not end within 2s of the window") {
		t.Errorf("status %d, %+v: %s", r.status, j, r.stderr)
	}
	a.removed()
}

func TestPending(t *testing.T) {
	p := &pending{nodes: []string{"a", "b", "c", "d", "e"}}
	for _, want := range []string{"0 of 5 nodes are done", "1 of 5 nodes are done", "2 of 5 nodes are done, all but c and d and e", "3 of 5 nodes are done, all but d and e"} {
		if got := p.text(5); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		p.done(p.nodes[0])
	}
}

// TestBothEnds is about the nodes of a pod and of the one that it talks to.
func TestBothEnds(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	t.Setenv(observed, "node1=full,node2=well")
	r := plugin(t, "check", "-n", "shop", "pod/cart-1", "--to", "pod/cart-2", "-o", "json")
	if j := r.jointly(t); r.status != exitFindings || len(j.Nodes) != 2 || len(j.Findings) != 1 {
		t.Errorf("status %d, %+v: %s", r.status, j, r.stderr)
	}
	// Each node sees its half of the path, which is printed as one.
	r = plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", "pod/cart-2:80/tcp")
	if r.status != 0 || !strings.HasPrefix(r.stdout, "Path 10.244.1.7 > 10.244.2.7") || !strings.Contains(r.stdout, "between the nodes") || !strings.Contains(r.stdout, "left node1") {
		t.Errorf("explain: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	// Each counts the packets of its own pod by pair of addresses.
	for node, pod := range map[string]string{"node1": "10.244.1.7", "node2": "10.244.2.7"} {
		if want := node + ": records with record - --pairs=" + pod + " "; !strings.Contains(r.stderr, want) {
			t.Errorf("explain: want %q in %s", want, r.stderr)
		}
	}
	a.removed()
	t.Setenv(observed, "node1=well,node2=blind")
	r = plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", "pod/cart-2")
	if r.status != exitCannot || r.stdout != "" || !strings.Contains(r.stderr, "node2: cannot observe: missing capabilities") {
		t.Errorf("explain without the far node: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	for _, to := range []string{"pod/cart-2:http", "pod/cart-2:0", "pod/cart-2/tpc"} {
		if r := plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", to); r.status != exitUsage || !strings.Contains(r.stderr, "want ") {
			t.Errorf("--to %s: status %d: %s", to, r.status, r.stderr)
		}
	}
	// Two pods of one node need no second one.
	a.pods[1].Spec.NodeName = "node1"
	r = plugin(t, "check", "-n", "shop", "pod/cart-1", "--to", "pod/cart-2")
	if r.status != 0 || !strings.Contains(r.stdout, " 10.244.1.7 10.244.2.7\n") || len(a.made) != 7 {
		t.Errorf("one node: status %d, %d jobs: %s%s", r.status, len(a.made), r.stdout, r.stderr)
	}
}

func TestServiceDestination(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	service := func(name, address string, ports ...int32) {
		s := corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"}, Spec: corev1.ServiceSpec{ClusterIP: address}}
		for _, p := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: p})
		}
		a.services = append(a.services, s)
	}
	service("web", "10.96.0.7", 80)
	service("six", "fd00::7", 80)
	service("two", "10.96.0.8", 80, 443)
	service("headless", "None", 80)
	for to, want := range map[string]string{
		"svc/web": "10.96.0.7:80/tcp", "svc/web:81": "10.96.0.7:81", "svc/six": "[fd00::7]:80/tcp", "svc/two": "10.96.0.8",
		"service/two:443/tcp": "10.96.0.8:443/tcp",
	} {
		if r := plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", to); r.status != 0 || !strings.Contains(r.stdout, " --to="+want+" 10.244.1.7\n") {
			t.Errorf("%s: status %d, want %s: %s%s", to, r.status, want, r.stdout, r.stderr)
		}
	}
	if r := plugin(t, "explain", "-n", "shop", "pod/cart-1", "--to", "svc/headless"); r.status != exitUsage || !strings.Contains(r.stderr, "no cluster IP") {
		t.Errorf("headless: status %d: %s", r.status, r.stderr)
	}
}
