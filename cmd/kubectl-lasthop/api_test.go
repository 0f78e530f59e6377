package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/remote"
)

// api is as much of an API server, with a job controller and kubelets, as the plugin
// talks to.
type api struct {
	t testing.TB

	mu       sync.Mutex
	nodes    []corev1.Node
	pods     []corev1.Pod
	services []corev1.Service
	jobs     []batchv1.Job
	// made are all jobs that there ever were.
	made   []batchv1.Job
	events []corev1.Event
	// noPods: nobody makes the pods of jobs, which are suspended if suspend is set.
	noPods, suspend bool
	// refuse answers a request, by its verb and resource, with an error.
	refuse map[string]metav1.Status
	// status is that of the pods that jobs get; nil for a container that runs.
	status *corev1.PodStatus
	// podStatus is that of the pod on a node; nil for status.
	podStatus func(node string) *corev1.PodStatus
	// asked is called at each request, with its verb and resource.
	asked func(request string)
	// attached runs instead of the far end.
	attached func(in io.Reader, out io.Writer)
	// reached is called when something comes in for the container on a node: nil for
	// the attachment itself, else what is written to its standard input.
	reached func(node string, input []byte)
	dir     string
	// exe is what the far ends run; the test itself by default.
	exe string
}

// newAPI is a server with two nodes and two pods, which the plugin finds by itself.
func newAPI(t testing.TB) *api {
	a := &api{t: t, refuse: map[string]metav1.Status{}, dir: t.TempDir(), exe: "/proc/self/exe"}
	for i, name := range []string{"node1", "node2"} {
		a.nodes = append(a.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.244.%d.0/24", i+1)}})
		a.pods = append(a.pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cart-%d", i+1), Namespace: "shop", Labels: map[string]string{"app": "cart"}},
			Spec:       corev1.PodSpec{NodeName: name},
			Status:     corev1.PodStatus{PodIP: fmt.Sprintf("10.244.%d.7", i+1), Phase: corev1.PodRunning},
		})
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	config := filepath.Join(a.dir, "kubeconfig")
	text := `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "c", "cluster": {"server": "` + s.URL + `"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "namespace": "tools"}}]}`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", config)
	return a
}

// forbidden is how RBAC refuses.
func forbidden(verb, resource string) metav1.Status {
	return metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: fmt.Sprintf("%s is forbidden: User \"ann\" cannot %s resource %q in API group \"\" in the namespace \"tools\"", resource, verb, resource)}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// /api/v1/namespaces/NS/RESOURCE[/NAME[/SUB]] or /apis/batch/v1/…, or without a
	// namespace.
	path := strings.Split(strings.Trim(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1"), "/apis/batch/v1"), "/"), "/")
	namespace := ""
	if path[0] == "namespaces" && len(path) > 2 {
		namespace, path = path[1], path[2:]
	}
	resource, name := path[0], ""
	if len(path) > 1 {
		name = path[1]
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodDelete: "delete", http.MethodGet: "list"}[r.Method]
	if name != "" && verb == "list" {
		verb = "get"
	}
	if len(path) > 2 {
		resource += "/" + path[2]
	}
	a.mu.Lock()
	refusal, refused := a.refuse[verb+" "+resource]
	a.mu.Unlock()
	if a.asked != nil {
		a.asked(verb + " " + resource)
	}
	if refused {
		a.fail(w, refusal)
		return
	}
	if command := r.URL.Query()["command"]; resource == "pods/exec" && !slices.Equal(command, []string{"/lasthop", remote.Command}) {
		a.t.Errorf("exec of %q", command)
	}
	if resource == "pods/attach" || resource == "pods/exec" {
		a.attach(w, r, name)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.answer(verb, resource, namespace, name, r)
	if answer == nil {
		a.fail(w, metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: resource + " " + name + " not found"})
		return
	}
	a.write(w, http.StatusOK, answer)
}

func (a *api) write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		a.t.Error(err)
	}
}

func (a *api) fail(w http.ResponseWriter, s metav1.Status) {
	s.TypeMeta, s.Status = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, metav1.StatusFailure
	a.write(w, int(s.Code), s)
}

// answer is the object that a request gets, nil for none.
func (a *api) answer(verb, resource, namespace, name string, r *http.Request) any {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		a.t.Error(err)
	}
	switch verb + " " + resource {
	case "list nodes":
		list := corev1.NodeList{}
		list.Items, list.Continue = page(a.nodes, r)
		return list
	case "get nodes":
		if i := slices.IndexFunc(a.nodes, func(n corev1.Node) bool { return n.Name == name }); i >= 0 {
			return a.nodes[i]
		}
	case "get services":
		if i := slices.IndexFunc(a.services, func(s corev1.Service) bool { return s.Name == name && s.Namespace == namespace }); i >= 0 {
			return a.services[i]
		}
	case "list services":
		var list corev1.ServiceList
		list.Items, list.Continue = page(slices.DeleteFunc(slices.Clone(a.services), func(s corev1.Service) bool { return s.Namespace != namespace }), r)
		return list
	case "list pods":
		var list corev1.PodList
		on, chosen := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")
		for _, p := range a.pods {
			if (!chosen || p.Spec.NodeName == on) && (namespace == "" || p.Namespace == namespace) && selector.Matches(labels.Set(p.Labels)) {
				if a.podStatus != nil && p.Labels[batchv1.JobNameLabel] != "" {
					if s := a.podStatus(p.Spec.NodeName); s != nil {
						p.Status = *s
					}
				}
				list.Items = append(list.Items, p)
			}
		}
		list.Items, list.Continue = page(list.Items, r)
		return list
	case "get pods":
		if i := slices.IndexFunc(a.pods, func(p corev1.Pod) bool { return p.Name == name && p.Namespace == namespace }); i >= 0 {
			return a.pods[i]
		}
	case "create pods":
		if r.URL.Query().Get("dryRun") != metav1.DryRunAll {
			a.t.Error("the plugin makes a bare pod")
		}
		return corev1.Pod{}
	case "list events":
		return corev1.EventList{Items: a.events}
	case "create jobs":
		return a.create(namespace, r)
	case "get jobs":
		if i := slices.IndexFunc(a.jobs, func(j batchv1.Job) bool { return j.Name == name }); i >= 0 {
			return a.jobs[i]
		}
	case "delete jobs":
		a.jobs = slices.DeleteFunc(a.jobs, func(j batchv1.Job) bool { return j.Name == name })
		a.pods = slices.DeleteFunc(a.pods, func(p corev1.Pod) bool { return p.Labels[batchv1.JobNameLabel] == name })
		return metav1.Status{Status: metav1.StatusSuccess}
	}
	return nil
}

// page is the part of a list that a request gets, one object at a time, and how the
// list continues. Who names no limit gets all.
func page[T any](all []T, r *http.Request) (part []T, next string) {
	q := r.URL.Query()
	if q.Get("limit") == "" {
		return all, ""
	}
	n, _ := strconv.Atoi(q.Get("continue"))
	if n+1 < len(all) {
		next = strconv.Itoa(n + 1)
	}
	return all[n:min(n+1, len(all))], next
}

// create makes a job with its pod.
func (a *api) create(namespace string, r *http.Request) any {
	var job batchv1.Job
	if err := json.NewDecoder(r.Body).Decode(&job); err != nil {
		a.t.Error(err)
	}
	job.Name = fmt.Sprintf("%s%d", job.GenerateName, len(a.made))
	job.UID = types.UID(job.Name)
	a.jobs, a.made = append(a.jobs, job), append(a.made, job)
	if a.suspend {
		job.Spec.Suspend = new(bool)
		*job.Spec.Suspend = true
	}
	if a.noPods || slices.ContainsFunc(a.events, func(e corev1.Event) bool { return e.Reason == "FailedCreate" }) {
		return job
	}
	pod := corev1.Pod{ObjectMeta: job.Spec.Template.ObjectMeta, Spec: job.Spec.Template.Spec}
	pod.Name, pod.Namespace = job.Name+"-pod", namespace
	pod.Labels = map[string]string{batchv1.JobNameLabel: job.Name}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	if a.status != nil {
		pod.Status = *a.status
	}
	a.pods = append(a.pods, pod)
	return job
}

// attach serves an attachment by websockets: the first byte of a message is its stream.
func (a *api) attach(w http.ResponseWriter, r *http.Request, pod string) {
	a.mu.Lock()
	node := a.pods[slices.IndexFunc(a.pods, func(p corev1.Pod) bool { return p.Name == pod })].Spec.NodeName
	a.mu.Unlock()
	reached := func([]byte) {}
	if a.reached != nil {
		reached = func(input []byte) { a.reached(node, input) }
		reached(nil)
	}
	up := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	c, err := up.Upgrade(w, r, nil)
	if err != nil {
		a.t.Error(err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(a.t.Context())
	defer cancel()
	in, toIn := io.Pipe()
	go func() {
		for {
			_, message, err := c.ReadMessage()
			if err != nil {
				toIn.CloseWithError(io.EOF) //nolint:errcheck // it never fails
				return
			}
			if len(message) > 0 && message[0] == 0 {
				reached(message[1:])
				toIn.Write(message[1:]) //nolint:errcheck // the far end may have ended
			}
		}
	}()
	out := channel{c, 1}
	if a.attached != nil {
		a.attached(in, out)
		return
	}
	// The pretended lasthop knows its node by the name of its directory.
	dir, err := os.MkdirTemp(a.dir, node+".")
	if err != nil {
		a.t.Error(err)
	}
	if err := a.farEnd(ctx, in, out, dir); err != nil {
		fmt.Fprintf(channel{c, 2}, "serve: %v\n", err)
	}
	channel{c, 3}.Write([]byte(`{"metadata":{},"status":"Success"}`))                                          //nolint:errcheck // the plugin may have left
	c.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, "ends")) //nolint:errcheck // the same
}

// channel is a stream of an attachment.
type channel struct {
	c  *websocket.Conn
	id byte
}

func (c channel) Write(p []byte) (int, error) {
	return len(p), c.c.WriteMessage(websocket.BinaryMessage, append([]byte{c.id}, p...))
}
