package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// listed bounds the pods that an error names.
const listed = 20

// selection is which pods -n and -l leave.
type selection struct {
	// namespace is empty for all.
	namespace string
	selector  flags.Selector
}

// String says what the pods have in common, as in "no pod of …".
func (c selection) String() string {
	var words []string
	if c.namespace != "" {
		words = append(words, fmt.Sprintf("of namespace %q", c.namespace))
	}
	if !c.selector.Empty() {
		words = append(words, fmt.Sprintf("with labels %q", c.selector.String()))
	}
	return strings.Join(words, " ")
}

// errLabels says that a selector has nothing to select by.
var errLabels = usagef("--selector: labels are unknown: only the Kubernetes API has them; use kubectl get pods -A -o " +
	"json | lasthop … --pods -")

// choosePods returns the addresses of the named pods that the flags leave. Without
// names and flags it returns nil: no choice.
func (o *observing) choosePods(s *model.Snapshot, names []string) ([]netip.Addr, error) {
	return choosePods(s, names, selection{o.Namespace, o.Selector})
}

func choosePods(s *model.Snapshot, names []string, of selection) ([]netip.Addr, error) {
	if len(names) == 0 && of.namespace == "" && of.selector.Empty() {
		return nil, nil
	}
	pods := slices.Concat(s.Pods, s.PastPods)
	if !of.selector.Empty() {
		if len(names) > 0 {
			return nil, usagef("--selector and names of pods exclude each other")
		}
		if !slices.ContainsFunc(pods, func(p model.Pod) bool { return p.Labels != nil }) {
			return nil, errLabels
		}
	}
	var chosen []model.Pod
	if len(names) == 0 {
		chosen = model.Filter(pods, func(p model.Pod) bool {
			return (of.namespace == "" || p.Namespace == of.namespace) && matches(of.selector, &p)
		})
	}
	for _, name := range names {
		found := model.Filter(pods, func(p model.Pod) bool { return is(p, name, of.namespace) })
		if len(found) == 0 {
			return nil, usagef("no pod %q on this node%s; there are: %s", name, meant(s, pods, name, of.namespace), podNames(pods))
		}
		if err := distinct(name, found); err != nil {
			return nil, err
		}
		chosen = append(chosen, found...)
	}
	var addrs []netip.Addr
	for p := range model.Each(chosen) {
		addrs = model.With(addrs, p.Known()...)
	}
	if len(names) == 0 && len(addrs) == 0 {
		return nil, usagef("no pod %s on this node; there are: %s", of, podNames(pods))
	}
	return addrs, nil
}

// remotePods returns the addresses of pods of other nodes that have the name, by the
// API's file; nil if none has. Pods of several namespaces are an error.
func remotePods(s *model.Snapshot, name, namespace string) ([]netip.Addr, error) {
	var found []model.Pod
	for _, x := range s.Cluster.Pods {
		if p := (model.Pod{Namespace: x.Namespace, Name: x.Name, Given: x.Addresses}); is(p, name, namespace) {
			found = append(found, p)
		}
	}
	if err := distinct(name, found); err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0].Known(), nil
}

// meant asks whether the pod with the most similar name was meant, if a single one is similar, or says that the pod is
// elsewhere. Only pods of the namespace count, if one is given.
func meant(s *model.Snapshot, pods []model.Pod, name, namespace string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return ""
	}
	if addrs, err := remotePods(s, name, namespace); err == nil && len(addrs) > 0 {
		return fmt.Sprintf(", but on another node, with %s", addrs[0])
	}
	pods = model.Filter(pods, func(p model.Pod) bool { return namespace == "" || p.Namespace == namespace })
	if near := flags.Nearest(name, model.Map(pods, report.PodName)); near != "" {
		return ": did you mean " + report.Clean(near) + "?"
	}
	return ""
}

// is reports whether the pod has the name. An address and the name of a network
// namespace match a pod of any Kubernetes namespace.
func is(p model.Pod, name, namespace string) bool {
	if a, err := netip.ParseAddr(name); err == nil {
		return slices.Contains(p.Known(), a.Unmap())
	}
	if p.NetnsName != "" && (name == p.NetnsName || name == nameOf(p.NetnsName)) {
		return true
	}
	if ns, pod, ok := strings.Cut(name, "/"); ok {
		return p.Namespace == ns && p.Name == pod
	}
	return p.Name == name && p.Name != "" && (namespace == "" || p.Namespace == namespace)
}

// distinct is an error where pods of one name are of several namespaces. Several of
// one namespace are one pod that was replaced, or has several links.
func distinct(name string, pods []model.Pod) error {
	if slices.ContainsFunc(pods, func(p model.Pod) bool { return p.Namespace != pods[0].Namespace }) {
		return usagef("several pods are named %q: %s", name, podNames(pods))
	}
	return nil
}

func podNames(pods []model.Pod) string {
	var words []string
	for _, p := range pods {
		word := report.PodName(p)
		for _, a := range p.Known() {
			word = strings.TrimSpace(word + " " + a.String())
		}
		if word != "" {
			words = append(words, report.Clean(word))
		}
	}
	return cmp.Or(model.Some(words, listed, "more"), "none")
}

// matches reports whether a pod has the labels. One whose labels are not known has not.
func matches(s flags.Selector, p *model.Pod) bool {
	return s.Empty() || p.Labels != nil && s.Matches(labels.Set(p.Labels))
}
