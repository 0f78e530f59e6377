package session

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
)

// API is a client of the resources that a session needs. The typed clients of client-go
// know all groups of Kubernetes: with them the binary is half as large again.
type API struct{ core, batch rest.Interface }

// known are the types that the client decodes.
var known = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(corev1.AddToScheme(s))
	utilruntime.Must(batchv1.AddToScheme(s))
	return s
}()

// Parameters encodes the options of a request.
var Parameters = runtime.NewParameterCodec(known)

// NewAPI is a client for a cluster.
func NewAPI(config *rest.Config) (*API, error) {
	client := func(path string, group schema.GroupVersion) (rest.Interface, error) {
		c := rest.CopyConfig(config)
		c.APIPath, c.GroupVersion, c.NegotiatedSerializer = path, &group, serializer.NewCodecFactory(known).WithoutConversion()
		return rest.RESTClientFor(c)
	}
	core, err := client("/api", corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	batch, err := client("/apis", batchv1.SchemeGroupVersion)
	return &API{core, batch}, err
}

// Nodes are the cluster's.
func (a *API) Nodes() Resource[*corev1.Node, *corev1.NodeList] {
	return Resource[*corev1.Node, *corev1.NodeList]{a.core, "nodes", "", func() *corev1.Node { return &corev1.Node{} }, func() *corev1.NodeList { return &corev1.NodeList{} }}
}

// Pods are those of a namespace, or of all if it is empty.
func (a *API) Pods(namespace string) Resource[*corev1.Pod, *corev1.PodList] {
	return Resource[*corev1.Pod, *corev1.PodList]{a.core, "pods", namespace, func() *corev1.Pod { return &corev1.Pod{} }, func() *corev1.PodList { return &corev1.PodList{} }}
}

// Services are those of a namespace.
func (a *API) Services(namespace string) Resource[*corev1.Service, *corev1.ServiceList] {
	return Resource[*corev1.Service, *corev1.ServiceList]{a.core, "services", namespace, func() *corev1.Service { return &corev1.Service{} }, func() *corev1.ServiceList { return &corev1.ServiceList{} }}
}

// Attach is a request to attach to a container of a pod.
func (a *API) Attach(namespace, pod, container string) *rest.Request {
	return a.core.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: container, Stdin: true, Stdout: true, Stderr: true}, Parameters)
}

// Exec is a request to run a command in a container of a pod.
func (a *API) Exec(namespace, pod, container string, command []string) *rest.Request {
	return a.core.Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: true, Stdout: true, Stderr: true}, Parameters)
}

func (a *API) events(namespace string) Resource[*corev1.Event, *corev1.EventList] {
	return Resource[*corev1.Event, *corev1.EventList]{a.core, "events", namespace, func() *corev1.Event { return &corev1.Event{} }, func() *corev1.EventList { return &corev1.EventList{} }}
}

func (a *API) jobs(namespace string) Resource[*batchv1.Job, *batchv1.JobList] {
	return Resource[*batchv1.Job, *batchv1.JobList]{a.batch, "jobs", namespace, func() *batchv1.Job { return &batchv1.Job{} }, func() *batchv1.JobList { return &batchv1.JobList{} }}
}

// Resource are objects of one kind.
type Resource[T, L runtime.Object] struct {
	client          rest.Interface
	name, namespace string
	object          func() T
	list            func() L
}

// Get returns an object.
func (r Resource[T, L]) Get(ctx context.Context, name string) (T, error) {
	o := r.object()
	return o, r.on(r.client.Get()).Name(name).Do(ctx).Into(o)
}

// List returns a page of the objects.
func (r Resource[T, L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	l := r.list()
	return l, r.on(r.client.Get()).VersionedParams(&options, Parameters).Do(ctx).Into(l)
}

// Each lists the objects, page by page, and calls take with each.
func (r Resource[T, L]) Each(ctx context.Context, options metav1.ListOptions, take func(T)) error {
	page := func(options metav1.ListOptions) (runtime.Object, error) { return r.List(ctx, options) }
	return pager.New(pager.SimplePageFunc(page)).EachListItem(ctx, options, func(o runtime.Object) error {
		take(o.(T))
		return nil
	})
}

func (r Resource[T, L]) create(ctx context.Context, made T, options metav1.CreateOptions) (T, error) {
	o := r.object()
	return o, r.on(r.client.Post()).VersionedParams(&options, Parameters).Body(made).Do(ctx).Into(o)
}

func (r Resource[T, L]) remove(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return r.on(r.client.Delete()).Name(name).Body(&options).Do(ctx).Error()
}

func (r Resource[T, L]) on(q *rest.Request) *rest.Request {
	return q.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name)
}
