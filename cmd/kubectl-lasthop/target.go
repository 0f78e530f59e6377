package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/words"
)

// target is a node, with the addresses of the pods on it that were named.
type target struct {
	node string
	pods []string
	// to is the destination of explain.
	to string
}

// finder looks up nodes and pods.
type finder struct {
	api       *session.API
	namespace string
	targets   []target
}

// find looks up what the command line names.
func (f *finder) find(ctx context.Context, o *options, p plan) error {
	switch {
	case o.all:
		err := f.api.Nodes().Each(ctx, metav1.ListOptions{}, func(n *corev1.Node) { f.add(n.Name) })
		if err != nil {
			return session.ExplainLookup(err, "list the nodes", f.namespace)
		}
	case !o.Selector.Empty():
		return f.selected(ctx, o)
	}
	for _, word := range p.words {
		kind, name, found := strings.Cut(word, "/")
		var err error
		switch {
		case !found:
			err = f.addNode(ctx, word)
		case slices.Contains([]string{"node", "nodes", "no"}, kind):
			err = f.addNode(ctx, name)
		case slices.Contains([]string{"pod", "pods", "po"}, kind):
			err = f.addPod(ctx, name)
		default:
			err = usagef("%s: want a NODE or pod/NAME; --namespace selects the pod's namespace", word)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case o.to == "":
		return nil
	case p.command == "check":
		return f.otherEnd(ctx, o.to)
	}
	return f.explained(ctx, o.to)
}

// otherEnd adds the pod that is --to of check.
func (f *finder) otherEnd(ctx context.Context, to string) error {
	name, found := strings.CutPrefix(to, "pod/")
	if !found || strings.ContainsAny(name, ":/") {
		return usagef("check --to %s: want pod/NAME; explain takes an address", to)
	}
	return f.addPod(ctx, name)
}

// explained sets what explain's path leads to. From a pod elsewhere it is followed
// back as well: its node sees the other half.
func (f *finder) explained(ctx context.Context, to string) error {
	if len(f.targets) != 1 || len(f.targets[0].pods) != 1 {
		return nil // the command line is refused later
	}
	from := &f.targets[0]
	address, far, err := f.destination(ctx, to)
	if err != nil {
		return err
	}
	from.to = address
	if far != nil && far.Spec.NodeName != from.node {
		f.targets = append(f.targets, target{node: far.Spec.NodeName, pods: []string{far.Status.PodIP}, to: from.pods[0]})
	}
	return nil
}

func (f *finder) add(node string, pods ...string) {
	i := slices.IndexFunc(f.targets, func(t target) bool { return t.node == node })
	if i < 0 {
		i, f.targets = len(f.targets), append(f.targets, target{node: node})
	}
	f.targets[i].pods = append(f.targets[i].pods, pods...)
}

func (f *finder) addNode(ctx context.Context, name string) error {
	_, err := f.api.Nodes().Get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return usagef("no node %s: `kubectl get nodes` lists them; for a pod use pod/NAME; commands: %s%s", name,
			strings.Join(commands, ", "), misspelt([]string{name}))
	case err != nil && !apierrors.IsForbidden(err): // one may know a node that one may not look at
		return fmt.Errorf("%w%s", session.ExplainLookup(err, "look up the node "+name, f.namespace), misspelt([]string{name}))
	}
	f.add(name)
	return nil
}

// addPod adds the node of a pod, NAME or NAMESPACE/NAME.
func (f *finder) addPod(ctx context.Context, name string) error {
	namespace := f.namespace
	defer func() { f.namespace = namespace }()
	if ns, own, is := strings.Cut(name, "/"); is {
		f.namespace, name = ns, own
	}
	pod, err := f.pod(ctx, name)
	if err == nil {
		f.add(pod.Spec.NodeName, pod.Status.PodIP)
	}
	return err
}

// pod looks up a pod that has traffic of its own.
func (f *finder) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod, err := f.api.Pods(f.namespace).Get(ctx, name)
	if err != nil {
		return nil, f.explain(err, "pod", name)
	}
	if why := without(pod); why != "" {
		return nil, usagef("pod %s/%s %s", f.namespace, name, why)
	}
	return pod, nil
}

// explain says why something in the namespace was not found.
func (f *finder) explain(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return usagef("no %s %s in the namespace %s: `%s` lists them; --namespace selects another", kind, name, f.namespace,
			words.Shell("kubectl get %ss -n %s", kind, f.namespace))
	}
	return session.ExplainLookup(err, "look up the "+kind+" "+name, f.namespace)
}

// without is why a pod has no traffic of its own on any node; empty if it has.
func without(pod *corev1.Pod) string {
	switch {
	case pod.Spec.NodeName == "":
		return "is not scheduled yet: `kubectl describe pod` shows why"
	case pod.Spec.HostNetwork:
		return "uses its node's network: use the node, " + pod.Spec.NodeName
	case pod.Status.PodIP == "":
		return "has no address yet: `kubectl describe pod` shows why"
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return "has ended"
	}
	return ""
}

// eachPod calls take with the pods of a namespace that have traffic of their own.
func eachPod(ctx context.Context, of *session.API, ns string, o metav1.ListOptions, take func(*corev1.Pod)) error {
	return of.Pods(ns).Each(ctx, o, func(p *corev1.Pod) {
		if without(p) == "" {
			take(p)
		}
	})
}

func (f *finder) selected(ctx context.Context, o *options) error {
	namespace := model.Either(o.AllNamespaces, metav1.NamespaceAll, f.namespace)
	err := eachPod(ctx, f.api, namespace, metav1.ListOptions{LabelSelector: o.Selector.String()}, func(p *corev1.Pod) {
		f.add(p.Spec.NodeName, p.Status.PodIP)
	})
	if err != nil {
		return session.ExplainLookup(err, "list the pods", f.namespace)
	}
	if len(f.targets) == 0 {
		return usagef("--selector %s: no running pod with these labels and its own network in the namespace %s; -A "+
			"searches all namespaces", &o.Selector, f.namespace)
	}
	return nil
}

// destination is --to with an address in place of a name; and the pod, if it is one.
func (f *finder) destination(ctx context.Context, to string) (address string, pod *corev1.Pod, err error) {
	kind, name, found := strings.Cut(to, "/")
	if !found || !slices.Contains([]string{"pod", "svc", "service"}, kind) {
		return to, nil, nil
	}
	rest := ""
	if i := strings.IndexAny(name, ":/"); i >= 0 {
		name, rest = name[:i], name[i:]
	}
	if kind != "pod" {
		address, err = f.service(ctx, name, &rest)
	} else if pod, err = f.pod(ctx, name); err == nil {
		address = pod.Status.PodIP
	}
	if strings.HasPrefix(rest, ":") && strings.Contains(address, ":") {
		address = fmt.Sprintf("[%s]", address)
	}
	return address + rest, pod, err
}

// service looks up a service's address, and its port where it has one alone and rest names none.
func (f *finder) service(ctx context.Context, name string, rest *string) (string, error) {
	s, err := f.api.Services(f.namespace).Get(ctx, name)
	switch {
	case err != nil:
		return "", f.explain(err, "service", name)
	case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone:
		return "", usagef("the service %s/%s has no cluster IP: use one of its pods, `%s`", f.namespace, name,
			words.Shell("kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s", f.namespace, name))
	}
	if ports := s.Spec.Ports; *rest == "" && len(ports) == 1 {
		*rest = fmt.Sprintf(":%d/%s", ports[0].Port, strings.ToLower(string(cmp.Or(ports[0].Protocol, corev1.ProtocolTCP))))
	}
	return s.Spec.ClusterIP, nil
}
