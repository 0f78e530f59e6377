//go:build cluster

// Package clustertest runs the plugin, and kubectl debug, on a real Kubernetes of two
// nodes in namespaces of this machine: make test-cluster.
package clustertest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"
)

// The test's cluster. Its kubectl finds the plugin on PATH.
var (
	// fabric is the process whose network namespace has the API server.
	fabric string
	dir    string
)

// work are servers on one node, which clients on the other ask.
const work = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "pod:dev", args: [serve, ":8080"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: shop, labels: {app: other}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "pod:dev", args: [serve, ":8080"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: None, selector: {app: web}}
`

const client = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: client, namespace: shop}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      nodeName: node2
      terminationGracePeriodSeconds: 1
      containers: [{name: client, image: "pod:dev", args: [get, "http://%s:8080/"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: asks-other, namespace: shop}
spec:
  nodeName: node2
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "pod:dev", args: [get, "http://%s:8080/"]}]
`

func TestMain(m *testing.M) { os.Exit(withCluster(m)) }

func withCluster(m *testing.M) int {
	tmp, err := os.MkdirTemp("", "lasthop-cluster-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(tmp)
	dir = filepath.Join(tmp, "cluster")
	images := strings.Fields(os.Getenv("LASTHOP_IMAGES"))
	if len(images) == 0 {
		return fail(errors.New("LASTHOP_IMAGES names no archives: run make test-cluster"))
	}
	run := exec.Command("../../../tools/cluster/run", append([]string{dir}, images...)...)
	run.Stderr = os.Stderr
	stdin, err := run.StdinPipe()
	if err != nil {
		return fail(err)
	}
	stdout, err := run.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	if err := run.Start(); err != nil {
		return fail(err)
	}
	// It removes everything when its input ends, which is so even if the test crashes.
	defer run.Wait() //nolint:errcheck // what it says is on the standard error
	defer stdin.Close()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return fail(fmt.Errorf("the cluster did not come up: %w", err))
	}
	fabric = strings.TrimSpace(line)
	if err := start(); err != nil {
		return fail(err)
	}
	return m.Run()
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// start starts the pods.
func start() error {
	apply := func(manifest string) error {
		cmd := command("kubectl", "apply", "-f", "-")
		cmd.Stdin = strings.NewReader(manifest)
		return trouble(cmd)
	}
	// A namespace takes no pods before it has a service account.
	for _, args := range [][]string{{"create", "namespace", "shop"}, {"wait", "--for=create", "serviceaccount/default", "-n", "shop", "--timeout=60s"}} {
		if err := trouble(command(append([]string{"kubectl"}, args...)...)); err != nil {
			return err
		}
	}
	if err := apply(work); err != nil {
		return err
	}
	var addresses []any
	for _, pod := range []string{"web", "other"} {
		if err := trouble(command("kubectl", "wait", "-n", "shop", "--for=condition=Ready", "pod/"+pod, "--timeout=120s")); err != nil {
			return err
		}
		address, err := command("kubectl", "get", "pod", "-n", "shop", pod, "-o", "jsonpath={.status.podIP}").Output()
		if err != nil {
			return err
		}
		addresses = append(addresses, string(address))
	}
	if err := apply(fmt.Sprintf(client, addresses...)); err != nil {
		return err
	}
	if err := trouble(command("kubectl", "wait", "-n", "shop", "--for=condition=Ready", "pod/asks-other", "--timeout=120s")); err != nil {
		return err
	}
	return trouble(command("kubectl", "rollout", "status", "-n", "shop", "deployment/client", "--timeout=120s"))
}

func trouble(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return nil
}

// command is one on the fabric, as the cluster's administrator.
func command(command ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--net=/proc/" + fabric + "/ns/net"}, command...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(dir, "kubeconfig"), "LASTHOP_IMAGE=docker.io/library/lasthop:dev")
	return cmd
}

// as makes a command that of another user.
func as(user string, cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(cmd.Env, "KUBECONFIG="+filepath.Join(dir, "kubeconfig-"+user))
	return cmd
}

// onNode changes something on a node.
func onNode(t *testing.T, node string, args ...string) {
	t.Helper()
	// The names of the nodes' namespaces are in the mount namespace of the cluster.
	in := []string{"--target=" + fabric, "--mount", "--net", "ip", "-n", node}
	if out, err := exec.Command("nsenter", append(in, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %v: %s", node, args, err, out)
	}
}

// result is what a command gave.
type result struct {
	status         int
	stdout, stderr string
}

func run(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// lasthop runs the plugin.
func lasthop(t *testing.T, args ...string) result {
	t.Helper()
	return run(t, command(append([]string{"kubectl", "lasthop"}, args...)...))
}

// watcher passes output on, and closes a channel once a text was in it.
type watcher struct {
	mu    sync.Mutex
	all   bytes.Buffer
	text  string
	seen  chan struct{}
	found bool
}

func watchFor(text string) *watcher { return &watcher{text: text, seen: make(chan struct{})} }

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if !w.found && strings.Contains(w.all.String(), w.text) {
		w.found = true
		close(w.seen)
	}
	return len(p), nil
}

func (w *watcher) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// step is what is typed once a text was shown.
type step struct{ shown, typed string }

// onTerminal runs a command on a terminal of 24 rows and 80 columns.
func onTerminal(t *testing.T, cmd *exec.Cmd, steps ...step) (status int, shown string) {
	t.Helper()
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	var watchers []*watcher
	all := []io.Writer{}
	for _, s := range steps {
		w := watchFor(s.shown)
		watchers, all = append(watchers, w), append(all, w)
	}
	var text bytes.Buffer
	drawn := make(chan struct{})
	go func() {
		defer close(drawn)
		io.Copy(io.MultiWriter(append(all, &text)...), terminal) //nolint:errcheck // a terminal ends with an error
	}()
	for i, s := range steps {
		select {
		case <-watchers[i].seen:
			io.WriteString(terminal, s.typed) //nolint:errcheck // it shows in the status
		case <-drawn:
		}
	}
	<-drawn
	cmd.Wait() //nolint:errcheck // the status says it
	return cmd.ProcessState.ExitCode(), text.String()
}

// removed waits until no job or pod of the plugin's is left.
func removed(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"jobs", "pods"} {
		r := run(t, command("kubectl", "wait", kind, "-A", "--for=delete", "-l", "app.kubernetes.io/managed-by=kubectl-lasthop", "--timeout=120s"))
		if r.status != 0 && !strings.Contains(r.stderr, "no matching resources found") {
			t.Errorf("%s are left: %s%s", kind, r.stdout, r.stderr)
		}
	}
}

// signalWhen sends a signal to a running command once its text was seen.
func signalWhen(t *testing.T, cmd *exec.Cmd, text string, s syscall.Signal) result {
	t.Helper()
	return actWhen(t, cmd, text, func() {
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	})
}

// actWhen does something that ends a running command once its text was seen.
func actWhen(t *testing.T, cmd *exec.Cmd, text string, act func()) result {
	t.Helper()
	out, errs := watchFor(text), watchFor(text)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // the status says it
	}()
	select {
	case <-out.seen:
	case <-errs.seen:
	case <-ended:
		t.Fatalf("it ended early: %s%s", out, errs)
	}
	act()
	<-ended
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}
