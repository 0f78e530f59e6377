package main

// These tests need no far end, which only runs on Unix.

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// result is what the plugin gave.
type result struct {
	status         int
	stdout, stderr string
}

// plugin runs the plugin, with an image.
func plugin(t *testing.T, args ...string) result {
	t.Helper()
	return pluginFor(t, t.Context(), io.Discard, args...)
}

func pluginFor(t *testing.T, asked context.Context, alsoErrors io.Writer, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), asked, append(args, "--image=lasthop:test"), strings.NewReader(""), &stdout, io.MultiWriter(&stderr, alsoErrors))
	return result{status, stdout.String(), stderr.String()}
}

// pluginWithout runs the plugin without an image.
func pluginWithout(t *testing.T, args ...string) result {
	t.Helper()
	t.Setenv(imageVariable, "")
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), t.Context(), args, strings.NewReader(""), &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

// removed checks that nothing of the plugin's is left.
func (a *api) removed() {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.jobs) > 0 || len(a.made) == 0 {
		a.t.Errorf("jobs %v are left of %d", a.jobs, len(a.made))
	}
}

func TestUsage(t *testing.T) {
	a := newAPI(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"check"}, "want a NODE, pod/NAME, -l SELECTOR or --all"},
		{[]string{"check", "node3"}, "no node node3: `kubectl get nodes` lists them"},
		{[]string{"check", "pod/none"}, "no pod none in the namespace tools"},
		{[]string{"check", "shop/cart-1"}, "want a NODE or pod/NAME"},
		{[]string{"check", "-l", "app=none"}, "no running pod with these labels"},
		{[]string{"explain", "node1"}, "want one pod/NAME"},
		{[]string{"explain", "--all"}, "want one pod/NAME"},
		{[]string{"explain", "-n", "shop", "-l", "app=cart"}, "want one pod/NAME"},
		{[]string{"screen", "--all"}, "must be a terminal"},
		{[]string{"record", "-", "--all"}, "want one node, not 2"},
		{[]string{"check", "--all", "--active"}, "--active true: not possible for several nodes"},
		{[]string{"check", "--all", "--report", "x.xml"}, "want html=FILE or junit=FILE"},
		{[]string{"check", "--all", "--report", "junit="}, "want html=FILE or junit=FILE"},
		{[]string{"watch", "node1", "--report", "junit=x.xml"}, "--report is for check and explain"},
		{[]string{"check", "--all", "--only", "Nonsense"}, "no finding \"Nonsense\": `lasthop findings` lists them"},
		{[]string{"check", "node1", "--skip", "MissingURD"}, "did you mean MissingUDR?"},
		{[]string{"check", "node1", "-o", "xml"}, "want one of text, wide"},
		{[]string{"check", "node1", "--for", "10"}, "want a number with a unit"},
		{[]string{"check", "node1", "--for", "25h"}, "want at most 24h"},
		{[]string{"check", "node1", "--deadline", "soon"}, "invalid duration"},
		{[]string{"check", "node1", "--fail-on", "fatal"}, "want one of critical, warning, info"},
		{[]string{"check", "node1", "--engine", "xdp"}, "want one of auto, tc, state"},
		{[]string{"check", "node1", "--pod-cidr", "10.0.0.1/8"}, "did you mean 10.0.0.0/8?"},
		{[]string{"check", "node1", "--uplink", ""}, "want a value, got an empty one"},
		{[]string{"check", "node1", "--strict=maybe"}, "invalid argument"},
		{[]string{"check", "node1", "--report", "junit=none/v.xml"}, "no directory none"},
		{[]string{"record", "none/node.rec", "node1"}, "no directory none"},
		{[]string{"findings", "NoReply"}, "needs no cluster: run `lasthop findings`"},
		{[]string{"completion", "bash"}, "needs no cluster: run `lasthop completion`"},
		{[]string{"chek", "node1"}, "chek is taken for a node: did you mean the command check?"},
		{[]string{"chekc", "node1", "--image="}, "did you mean the command check?"},
		{[]string{"chekc", "node1", "--context=none"}, "did you mean the command check?"},
		{[]string{"check", "chec"}, "did you mean the command check?"},
		{[]string{"check", "node1", "--kubeconfig=none"}, "find the cluster: "},
		{[]string{"check", "--all", "--at-once", "0"}, "--at-once 0: want at least one"},
		{[]string{"check", "-n", "shop", "pod/cart-1", "--to", "10.0.0.1"}, "want pod/NAME"},
		{[]string{"check", "-n", "shop", "pod/cart-1", "--to", "pod/none"}, "no pod none"},
		{[]string{"explain", "-n", "shop", "pod/cart-1", "--to", "svc/none"}, "no service none in the namespace shop"},
		{[]string{"watch", "node1", "--to", "pod/cart-1"}, "--to is for check and explain"},
		{[]string{"record"}, "want a FILE"},
		{[]string{"doctor", "node1", "--for", "3s", "--nodes", "x"}, "doctor takes no --for and no --nodes"},
		{[]string{"doctor", "node1", "-o", "yaml"}, "doctor: -o yaml: want text, json or mcp"},
		{[]string{"audit", "node1", "--for", "3s", "--active"}, "audit takes no --for and no --active"},
		{[]string{"audit", "node1", "-o", "yaml"}, "audit: -o yaml: want text or json"},
		{[]string{"audit", "node1", "--last", "5m"}, "audit takes no --last and no --at"},
		{[]string{"record", "x.rec", "node1", "--only", "MissingUDR"}, "record takes no --only"},
		{[]string{"watch", "node1", "--strict"}, "watch takes no --strict"},
		{[]string{"screen", "node1"}, "must be a terminal"},
		{[]string{"check", "node1", "--all"}, "exclude each other"},
		{[]string{"check", "node1", "--frist"}, "unknown flag: --frist"},
		{[]string{"check", "node1", "--profile=root"}, "want one of least, sysadmin"},
		{[]string{"check", "node1", "--routes=none.json"}, "--routes: none.json: no such file"},
		{[]string{"check", "node1", "--context=none"}, `context "none" does not exist`},
	} {
		if r := plugin(t, c.args...); r.status != exitUsage || !strings.Contains(r.stderr, c.want) {
			t.Errorf("%v: status %d, want %q: %s", c.args, r.status, c.want, r.stderr)
		}
	}
	if len(a.made) > 0 {
		t.Errorf("%d debug pods were made for mistakes", len(a.made))
	}
	if r := plugin(t, "check", "node3"); strings.Contains(r.stderr, "did you mean") {
		t.Errorf("a node that is like no command: %s", r.stderr)
	}
	if r := plugin(t, "help", "check"); r.status != exitClean || !strings.Contains(r.stdout, "Examples:") {
		t.Errorf("help: status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	if r := (result{status: run(t.Context(), t.Context(), []string{"check", "node1", "--image="}, nil, io.Discard, io.Discard)}); r.status != exitUsage {
		t.Errorf("without an image: status %d", r.status)
	}
}

// TestLookupRefused is about what may not be looked up: no role in the namespace of the
// debug pod would give that.
func TestLookupRefused(t *testing.T) {
	for _, c := range []struct {
		request string
		refused metav1.Status
		args    []string
	}{
		{"list nodes", forbidden("list", "nodes"), []string{"check", "--all"}},
		{"get pods", forbidden("get", "pods"), []string{"check", "pod/cart-1"}},
		{"list pods", forbidden("list", "pods"), []string{"check", "-l", "app=cart"}},
		{"get services", forbidden("get", "services"), []string{"explain", "-n", "shop", "pod/cart-1", "--to", "svc/cart"}},
	} {
		a := newAPI(t)
		a.refuse[c.request] = c.refused
		r := plugin(t, c.args...)
		if r.status != exitCannot || !strings.Contains(r.stderr, "kubectl create clusterrole lasthop-reader") || strings.Contains(r.stderr, "create role ") {
			t.Errorf("%v: status %d: %s", c.args, r.status, r.stderr)
		}
	}
}

// TestNoStart is about pods that never run.
func TestNoStart(t *testing.T) {
	waiting := func(reason string) *corev1.PodStatus {
		return &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "not there"}}}}}
	}
	for _, c := range []struct {
		name   string
		status *corev1.PodStatus
		event  string
		want   string
	}{
		{"image", waiting("ErrImagePull"), "", "(--image)"},
		{"container", waiting("CreateContainerError"), "", "CreateContainerError: not there"},
		{"node", &corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "too many"}, "", "node1 does not admit the debug pod: OutOfpods too many"},
		{"old", &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}}}}}, "", "is it as new as this plugin?"},
		{"event", nil, `pods "x" is forbidden: exceeded quota: few`, "kubectl describe resourcequota -n tools"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI(t)
			a.status = c.status
			if c.event != "" {
				a.events = []corev1.Event{{Reason: "FailedCreate", Message: c.event}}
			}
			if r := plugin(t, "check", "node1"); r.status != exitCannot || !strings.Contains(r.stderr, c.want) {
				t.Errorf("status %d, want %q: %s", r.status, c.want, r.stderr)
			}
			a.removed()
		})
	}
}

// TestFirstMinute: who waits learns what for, and in the end why in vain.
func TestFirstMinute(t *testing.T) {
	creating := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}}
	mount := corev1.Event{Reason: "FailedMount", Message: "no such \x1b[2Jdisk"}
	for name, c := range map[string]struct {
		set  func(a *api)
		want []string
	}{
		"no job controller": {func(a *api) { a.noPods = true }, []string{"waits for the job controller, which has made no pod", "has not started in ", "is kube-controller-manager up?"}},
		"a queue":           {func(a *api) { a.noPods, a.suspend = true, true }, []string{"the job was suspended as it was made"}},
		"a volume": {func(a *api) { a.status, a.events = creating, []corev1.Event{mount} }, []string{
			`the debug pod on node1 waits for ContainerCreating (FailedMount: no such \x1b[2Jdisk)`, "has not started in ", "kubectl describe node node1"}},
		"a slow image": {func(a *api) { a.status, a.events = creating, []corev1.Event{{Reason: "Pulling", Message: "image"}} }, []string{
			"node1 still pulls the image lasthop:test", "it waits for ContainerCreating (Pulling: image)"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			c.set(a)
			r := plugin(t, "check", "node1", "--start-within", "300ms")
			for _, want := range c.want {
				if r.status != exitCannot || !strings.Contains(r.stderr, want) {
					t.Errorf("status %d, want %q: %s", r.status, want, r.stderr)
				}
			}
			a.removed()
		})
	}
	if r := pluginWithout(t, "check", "node1"); r.status != exitUsage || !strings.Contains(r.stderr, "export LASTHOP_IMAGE=REGISTRY/lasthop:1") || !strings.Contains(r.stderr, "ctr -n k8s.io images import") {
		t.Errorf("without an image: status %d: %s", r.status, r.stderr)
	}
}

// TestDeafNode does not wait for a node whose kubelet the cluster has given up.
func TestDeafNode(t *testing.T) {
	a := newAPI(t)
	a.nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting\x1b[2J node status."}}
	a.status = &corev1.PodStatus{Phase: corev1.PodPending}
	if r := plugin(t, "check", "node1"); r.status != exitCannot || !strings.HasSuffix(r.stderr, "lasthop: the node does not start pods: Kubelet stopped posting\\x1b[2J node status.\n") {
		t.Errorf("status %d: %q", r.status, r.stderr)
	}
	a.removed()
}

// TestAbandon ends at once, when the user does not want to wait.
func TestAbandon(t *testing.T) {
	a := newAPI(t)
	hello := make(chan struct{})
	a.attached = func(in io.Reader, _ io.Writer) {
		close(hello)
		io.Copy(io.Discard, in) //nolint:errcheck // it never answers
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hello
		cancel()
	}()
	var stdout, stderr bytes.Buffer
	if status := run(ctx, context.Background(), []string{"check", "node1", "--image=x"}, strings.NewReader(""), &stdout, &stderr); status != exitInterrupted {
		t.Errorf("status %d: %s", status, &stderr)
	}
	a.removed()
}

func TestLost(t *testing.T) {
	a := newAPI(t)
	a.attached = func(io.Reader, io.Writer) {}
	if r := plugin(t, "check", "node1"); r.status != exitCannot || !strings.Contains(r.stderr, "the connection ended before the command did") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	a.removed()
}

// TestInterruptedCreating removes the job that the cluster makes while the user leaves.
func TestInterruptedCreating(t *testing.T) {
	a := newAPI(t)
	asked, ask := context.WithCancel(t.Context())
	a.asked = func(request string) {
		if request == "create jobs" {
			ask()
		}
	}
	if r := pluginFor(t, asked, io.Discard, "check", "node1"); r.status != exitInterrupted || r.stdout != "" {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	a.removed()
}
