//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
)

// pretended is the variable that makes the test a lasthop, which ends with this status,
// or when it is asked to.
const pretended = "LASTHOP_TEST_STATUS"

// completing is the variable that makes the test the plugin itself.
const completing = "LASTHOP_TEST_COMPLETE"

// asPlugin is the variable that makes the test the plugin, with its own command line.
const asPlugin = "LASTHOP_TEST_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(completing) != "" && filepath.Base(os.Args[0]) == completer {
		main()
	}
	if os.Getenv(asPlugin) != "" {
		main()
	}
	if status := os.Getenv(pretended); status != "" && os.Args[1] != "-test.run" {
		os.Exit(pretend(status, os.Args[1:]))
	}
	quiet()
	os.Exit(m.Run())
}

// pretend prints its command line, and the files that it is given.
func pretend(status string, args []string) int {
	if states := os.Getenv(observed); states != "" && args[0] == "record" {
		return pretendRecording(states, args)
	}
	if slices.Contains(args, "--output=mcp") {
		doc := map[string]any{"apiVersion": "lasthop/v1alpha1", "kind": "Doctor", "engine": strings.Join(args, " ")}
		//nolint:errcheck // the test looks for it
		json.NewEncoder(os.Stdout).Encode(map[string]any{"text": strings.Join(args, " ") + "\n", "document": doc})
		return exitClean
	}
	fmt.Println(strings.Join(args, " "))
	for _, arg := range args {
		flag, file, _ := strings.Cut(arg, "=")
		// In the test Dir is the current directory.
		file = filepath.Base(file)
		switch flag {
		case "--nodes", "--routes":
			text, err := os.ReadFile(file)
			fmt.Printf("%s has %s %v\n", flag, text, err)
		case "--pcap":
			os.WriteFile(file, []byte("samples"), 0o600) //nolint:errcheck // the test looks for it
			os.WriteFile(".bashrc", []byte("x"), 0o600)  //nolint:errcheck // the same
		case "--report":
			os.WriteFile(file, []byte("verdict "+filepath.Ext(file)), 0o600) //nolint:errcheck // the same
		case "--github":
			file := filepath.Base(os.Getenv(flags.SummaryVariable))
			os.WriteFile(file, []byte("of a node\n"), 0o600) //nolint:errcheck // the same
		}
	}
	if status == "wait" {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM)
		fmt.Fprintln(os.Stderr, "watching")
		<-asked
		fmt.Fprintln(os.Stderr, "interrupted")
		return exitInterrupted
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		return -1
	}
	return code
}

func TestStatus(t *testing.T) {
	for _, status := range []int{exitClean, exitFindings, exitUsage, exitCannot, exitIncomplete} {
		a := newAPI(t)
		t.Setenv(pretended, strconv.Itoa(status))
		r := plugin(t, "check", "node1", "--for", "3s", "-o", "json")
		if r.status != status || !strings.HasPrefix(r.stdout, "check --for=3s --output=json --nodes=nodes.json") {
			t.Errorf("status %d, want %d: %s%s", r.status, status, r.stdout, r.stderr)
		}
		if !strings.Contains(r.stdout, `"podCIDR":"10.244.2.0/24"`) {
			t.Errorf("the nodes are missing: %s", r.stdout)
		}
		a.removed()
	}
}

func TestPod(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	r := plugin(t, "explain", "-n", "shop", "pod/cart-2", "--to", "10.244.1.7:80/tcp")
	if r.status != 0 || !strings.Contains(r.stdout, " --to=10.244.1.7:80/tcp 10.244.2.7\n") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	job := a.made[0]
	spec := job.Spec.Template.Spec
	switch c := spec.Containers[0]; {
	case job.Namespace != "shop" && job.Namespace != "":
		t.Errorf("namespace %q", job.Namespace)
	case spec.NodeName != "node2" || !spec.HostNetwork || !spec.HostPID || spec.RestartPolicy != corev1.RestartPolicyNever:
		t.Errorf("the pod: %+v", spec)
	case c.Image != "lasthop:test" || !c.Stdin || c.SecurityContext.Privileged != nil || !c.VolumeMounts[0].ReadOnly:
		t.Errorf("the container: %+v", c)
	case *job.Spec.ActiveDeadlineSeconds != 3600 || *job.Spec.BackoffLimit != 0:
		t.Errorf("the job: %+v", job.Spec)
	case job.Labels["app.kubernetes.io/managed-by"] != session.ManagedBy:
		t.Errorf("labels %v", job.Labels)
	}
	a.removed()
}

// TestProfile compares the rights with those that the documentation says suffice.
func TestProfile(t *testing.T) {
	text, err := os.ReadFile("../../docs/rights.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```json\n")
	block, _, _ = strings.Cut(block, "```")
	var want corev1.Container
	if err := json.Unmarshal([]byte(block), &want); err != nil {
		t.Fatalf("the profile in docs/rights.md: %v", err)
	}
	a := newAPI(t)
	t.Setenv(pretended, "0")
	plugin(t, "doctor", "node1")
	plugin(t, "doctor", "node1", "--profile", "sysadmin", "--debug-namespace", "kube-system", "--deadline", "5m")
	least, all := a.made[0].Spec.Template.Spec.Containers[0].SecurityContext, a.made[1].Spec.Template.Spec.Containers[0].SecurityContext
	if got := least.Capabilities; !slices.Equal(got.Add, want.SecurityContext.Capabilities.Add) || !slices.Equal(got.Drop, want.SecurityContext.Capabilities.Drop) ||
		*least.AppArmorProfile != *want.SecurityContext.AppArmorProfile {
		t.Errorf("the rights are %+v, the documentation's %+v", least, want.SecurityContext)
	}
	if all.Privileged == nil || !*all.Privileged || *a.made[1].Spec.ActiveDeadlineSeconds != 300 {
		t.Errorf("sysadmin is %+v", a.made[1])
	}
}

// TestSelector is about several nodes: what they print stays apart, the worst counts.
func TestSelector(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "1")
	r := plugin(t, "doctor", "-n", "shop", "-l", "app=cart")
	if r.status != 1 || len(a.made) != 2 {
		t.Fatalf("status %d, %d jobs: %s", r.status, len(a.made), r.stderr)
	}
	first, second, _ := strings.Cut(r.stdout, "=== node2\n")
	if !strings.HasPrefix(first, "=== node1\ndoctor\n") || second != "doctor\n" {
		t.Errorf("printed: %s", r.stdout)
	}
	a.removed()
}

// TestAudit: each node is audited by itself, for the pods that were named, with the cluster's nodes.
func TestAudit(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	r := plugin(t, "audit", "-n", "shop", "-l", "app=cart", "--skip", "PodPrefix")
	first, second, _ := strings.Cut(r.stdout, "=== node2\n")
	for _, printed := range []string{strings.TrimPrefix(first, "=== node1\n"), second} {
		if !strings.HasPrefix(printed, "audit --skip=PodPrefix ") || !strings.Contains(printed, "--nodes=") || strings.Contains(printed, "--for") ||
			!strings.Contains(printed, " 10.") {
			t.Errorf("lasthop got: %s", printed)
		}
	}
	if r.status != 0 || len(a.made) != 2 {
		t.Errorf("status %d, %d jobs: %s", r.status, len(a.made), r.stderr)
	}
	a.removed()
}

func TestWorst(t *testing.T) {
	for _, c := range []struct {
		of   []int
		want int
	}{{nil, 0}, {[]int{0, 4}, 4}, {[]int{3, 4}, 3}, {[]int{3, 1, 0}, 1}, {[]int{0, 137}, 3}, {[]int{1, 130}, 130}} {
		if got := worst(c.of...); got != c.want {
			t.Errorf("worst of %v is %d, want %d", c.of, got, c.want)
		}
	}
}

func TestFiles(t *testing.T) {
	newAPI(t)
	t.Setenv(pretended, "0")
	t.Chdir(t.TempDir())
	if err := os.WriteFile("table.json", []byte("[7]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("b", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("b/table.json", []byte("[8]"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A node knows files by the names that the user does.
	r := plugin(t, "check", "node1", "--routes", "table.json", "--routes", "b/table.json", "--pcap", "dead.pcap")
	if r.status != 0 || !strings.Contains(r.stdout, " --routes=table.json --routes=table-2.json ") ||
		!strings.Contains(r.stdout, "--routes has [7] <nil>\n--routes has [8] <nil>\n") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
	if text, err := os.ReadFile("dead.pcap"); string(text) != "samples" {
		t.Errorf("the samples are %q, %v: %s", text, err, r.stderr)
	}
	// A node does not choose which files are written here.
	if _, err := os.Lstat(".bashrc"); err == nil || !strings.Contains(r.stderr, `unexpected file ".bashrc"`) {
		t.Errorf("a file that was not asked for: %v: %s", err, r.stderr)
	}
	r = plugin(t, "check", "node1", "--pcap", "dead.pcap")
	if r.status != exitUsage || !strings.Contains(r.stderr, "does not overwrite files") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
}

// TestForCI brings back what a CI job wants of a node.
func TestForCI(t *testing.T) {
	newAPI(t)
	t.Setenv(pretended, "1")
	t.Chdir(t.TempDir())
	t.Setenv(flags.SummaryVariable, "job.md")
	if err := os.WriteFile("job.md", []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := plugin(t, "check", "node1", "--report", "junit=v.junit", "--report", "html=page", "--github")
	verdict, err := os.ReadFile("v.junit")
	page, lacking := os.ReadFile("page")
	err = errors.Join(err, lacking)
	summary, unread := os.ReadFile("job.md")
	if r.status != exitFindings || string(verdict) != "verdict .xml" || string(page) != "verdict .html" || string(summary) != "before\nof a node\n" {
		t.Errorf("status %d, verdict %q, summary %q, %v: %s", r.status, verdict, summary, errors.Join(err, unread), r.stderr)
	}
	if r := plugin(t, "check", "node1", "--report", "junit=v.junit"); r.status != exitUsage || !strings.Contains(r.stderr, "does not overwrite files") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
}

func TestRecord(t *testing.T) {
	newAPI(t)
	t.Setenv(pretended, "0")
	t.Chdir(t.TempDir())
	r := plugin(t, "record", "node.rec", "--all", "--for=1s")
	if r.status != 0 {
		t.Fatalf("status %d: %s", r.status, r.stderr)
	}
	for _, file := range []string{"node-node1.rec", "node-node2.rec"} {
		if text, err := os.ReadFile(file); !strings.HasPrefix(string(text), "record - --for=1s ") {
			t.Errorf("%s: %q, %v", file, text, err)
		}
		if !strings.Contains(r.stderr, "lasthop: "+file+": 1 KiB\n") {
			t.Errorf("nothing says that there is a %s: %s", file, r.stderr)
		}
	}
	// The packets of pods that are named are counted by pair of addresses.
	if r := plugin(t, "record", "pod.rec", "-n", "shop", "pod/cart-1"); r.status != 0 {
		t.Fatalf("status %d: %s", r.status, r.stderr)
	}
	if text, err := os.ReadFile("pod.rec"); !strings.HasPrefix(string(text), "record - --pairs=10.244.1.7 ") {
		t.Errorf("%q, %v", text, err)
	}
}

// sayer calls then at the first text.
type sayer struct {
	once sync.Once
	text string
	then func()
}

func (s *sayer) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.text) {
		s.once.Do(s.then)
	}
	return len(p), nil
}

func TestInterrupt(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "wait")
	asked, ask := context.WithCancel(t.Context())
	up := &sayer{text: "watching", then: ask}
	if r := pluginFor(t, asked, up, "watch", "node1"); r.status != exitInterrupted || !strings.HasSuffix(r.stderr, "interrupted\n") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	a.removed()
}

// TestInterruptEarly asks to end while the pod does not start.
func TestInterruptEarly(t *testing.T) {
	a := newAPI(t)
	a.status = &corev1.PodStatus{Phase: corev1.PodPending}
	asked, ask := context.WithCancel(t.Context())
	a.asked = func(request string) {
		if request == "list events" || request == "list pods" && len(a.made) > 0 {
			ask()
		}
	}
	if r := pluginFor(t, asked, io.Discard, "watch", "node1"); r.status != exitInterrupted || !strings.HasSuffix(r.stderr, "lasthop: interrupted: before lasthop ran on node1\n") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
	a.removed()
}

// TestReaderLeft watches for a reader that goes away while there is nothing to write.
func TestReaderLeft(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "wait")
	near, far, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	up := &sayer{text: "watching", then: func() { near.Close() }}
	var stderr bytes.Buffer
	status := run(t.Context(), t.Context(), []string{"watch", "node1", "--image=x"}, strings.NewReader(""), far, io.MultiWriter(&stderr, up))
	if said := stderr.String(); status != exitClean || !strings.HasSuffix(said, "watching\n") {
		t.Errorf("status %d: %s", status, said)
	}
	a.removed()
}

// TestRefusals is about what the API server does not allow: which verb or policy, and
// what to try.
func TestRefusals(t *testing.T) {
	psa := metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `pods "lasthop-x" is forbidden: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true, hostPID=true)`}
	aks := metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "pods \"lasthop-x\" is forbidden: ValidatingAdmissionPolicy " +
		"'aks-managed-baseline-privileged-containers' with binding 'aks-managed-baseline-privileged-containers-binding' denied request: Privileged containers are disallowed"}
	other := metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `pods "lasthop-x" is forbidden: ValidatingAdmissionPolicy 'no-host' with binding 'no-host' denied request: no host`}
	hook := metav1.Status{Code: 400, Reason: metav1.StatusReasonBadRequest, Message: `admission webhook "policy.example.org" denied the request: no host paths`}
	for _, c := range []struct {
		name, request string
		status        metav1.Status
		want          []string
	}{
		{"pods", "create pods", forbidden("create", "pods"), []string{`cannot create resource "pods"`, "kubectl create role lasthop -n tools"}},
		{"jobs", "create jobs", forbidden("create", "jobs"), []string{`cannot create resource "jobs"`, "kubectl auth can-i --list -n tools"}},
		{"node", "get nodes", metav1.Status{Code: 500, Reason: metav1.StatusReasonInternalError, Message: "etcd is slow"}, []string{"look up the node node1: etcd is slow"}},
		{"attach", "create pods/attach", forbidden("create", "pods/attach"), []string{"attach to the debug pod", "pods/attach"}},
		{"policy", "create pods", psa, []string{`violates PodSecurity "restricted:latest"`, "--debug-namespace", "pod-security.kubernetes.io/enforce=privileged"}},
		{"AKS Automatic", "create pods", aks, []string{"Privileged containers are disallowed", "az aks safeguards update --resource-group RESOURCE_GROUP --name CLUSTER --excluded-ns lasthop"}},
		{"a policy of somebody's", "create pods", other, []string{"'no-host'", "managed-by=kubectl-lasthop", "validatingadmissionpolicies"}},
		{"webhook", "create pods", hook, []string{"policy.example.org", "no host paths", "managed-by=kubectl-lasthop"}},
		{"delete", "delete jobs", forbidden("delete", "jobs"), []string{"remove the debug pod", "kubectl delete job -n tools lasthop-0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI(t)
			t.Setenv(pretended, "0")
			a.refuse[c.request] = c.status
			if c.name == "attach" { // it is asked for by websockets first
				a.refuse["get pods/attach"] = forbidden("get", "pods/attach")
			}
			r := plugin(t, "check", "node1")
			if r.status != exitCannot {
				t.Errorf("status %d", r.status)
			}
			for _, want := range c.want {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("the message lacks %q: %s", want, r.stderr)
				}
			}
			if len(a.made) > 0 && c.name != "delete" {
				a.removed()
			}
		})
	}
}

// TestWithoutNodes goes on when the user may not list nodes or pods.
func TestWithoutNodes(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "0")
	a.refuse["list nodes"], a.refuse["get nodes"] = forbidden("list", "nodes"), forbidden("get", "nodes")
	r := plugin(t, "check", "node1")
	if r.status != 0 || strings.Contains(r.stdout, "--nodes") || !strings.Contains(r.stderr, "without the cluster's nodes") {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}
}

// TestFates tells why a session ended that nobody here has ended.
func TestFates(t *testing.T) {
	gone := &metav1.Time{Time: time.Unix(0, 0)}
	for _, c := range []struct {
		name, pretended string
		condition       batchv1.JobCondition
		deleted         *metav1.Time
		terminated      string
		status          int
		want            string
	}{
		{"the deadline", "143", batchv1.JobCondition{Type: batchv1.JobFailureTarget, Reason: batchv1.JobReasonDeadlineExceeded}, gone, "", exitCannot, "lasthop: the session reached its deadline of 1h0m0s (--deadline)\n"},
		{"the pod is deleted", "130", batchv1.JobCondition{Type: batchv1.JobFailed}, gone, "", exitInterrupted, "lasthop: somebody, or the cluster, deleted the debug pod\n"},
		{"out of memory", "137", batchv1.JobCondition{}, nil, "OOMKilled", exitCannot, "lasthop: the container ran out of memory (OOMKilled): check `kubectl get limitrange -n tools`, or use another namespace (--debug-namespace)\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI(t)
			t.Setenv(pretended, c.pretended)
			a.reached = func(_ string, input []byte) {
				if input == nil {
					return
				}
				a.mu.Lock()
				defer a.mu.Unlock()
				a.jobs[0].Status.Conditions = []batchv1.JobCondition{c.condition}
				pod := &a.pods[len(a.pods)-1]
				pod.DeletionTimestamp = c.deleted
				if c.terminated != "" {
					pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: c.terminated}}
				}
			}
			if r := plugin(t, "check", "node1"); r.status != c.status || !strings.HasSuffix(r.stderr, c.want) {
				t.Errorf("status %d: %s", r.status, r.stderr)
			}
			a.removed()
		})
	}
}

// TestNobodyReads ends well where the reader of a report has left.
func TestNobodyReads(t *testing.T) {
	a := newAPI(t)
	t.Setenv(pretended, "1")
	near, far, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near.Close()
	if status := run(t.Context(), t.Context(), []string{"watch", "node1", "--image=x"}, strings.NewReader(""), far, io.Discard); status != exitClean {
		t.Errorf("watch: status %d", status)
	}
	for _, args := range [][]string{{"check", "node1"}, {"doctor", "node1", "node2"}} {
		var stderr bytes.Buffer
		if status := run(t.Context(), t.Context(), append(args, "--image=x"), strings.NewReader(""), far, &stderr); status != exitFindings || strings.Contains(stderr.String(), "pipe") {
			t.Errorf("%v: status %d: %s", args, status, &stderr)
		}
		a.removed()
	}
}

// farEnd is the lasthop in a debug pod: the test itself.
func (a *api) farEnd(ctx context.Context, in io.Reader, out io.Writer, dir string) error {
	_, err := remote.Serve(ctx, in, out, a.exe, dir)
	return err
}
