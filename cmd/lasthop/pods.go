package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// listed bounds the pods that an error names.
const listed = 20

// choosePods returns the addresses of the named pods. Without names these are all
// pods of the Kubernetes namespace, and without that nil: no choice.
func choosePods(s *model.Snapshot, names []string, namespace string) ([]netip.Addr, error) {
	if len(names) == 0 && namespace == "" {
		return nil, nil
	}
	pods := slices.Concat(s.Pods, s.PastPods)
	var chosen []netip.Addr
	add := func(p model.Pod) {
		for _, a := range p.Known() {
			if !slices.Contains(chosen, a) {
				chosen = append(chosen, a)
			}
		}
	}
	if len(names) == 0 {
		for _, p := range pods {
			if p.Namespace == namespace {
				add(p)
			}
		}
		if len(chosen) == 0 {
			return nil, usagef("no pod of namespace %q on this node; there are: %s", namespace, podNames(pods))
		}
		return chosen, nil
	}
	for _, name := range names {
		found := slices.DeleteFunc(slices.Clone(pods), func(p model.Pod) bool { return !is(p, name, namespace) })
		if len(found) == 0 {
			return nil, usagef("no pod %q on this node%s; there are: %s", name, meant(pods, name, namespace), podNames(pods))
		}
		if distinct(found) {
			return nil, usagef("%q is the name of several pods: %s", name, podNames(found))
		}
		for _, p := range found {
			add(p)
		}
	}
	return chosen, nil
}

// meant asks whether the pod with the most similar name was meant, if a single one
// is similar. Only pods of the namespace count, if one is given.
func meant(pods []model.Pod, name, namespace string) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return ""
	}
	var names []string
	for _, p := range pods {
		if namespace == "" || p.Namespace == namespace {
			names = append(names, report.PodName(p))
		}
	}
	if near := nearest(name, names); near != "" {
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

// distinct reports whether pods of one name are of several namespaces. Several of
// one namespace are one pod that was replaced, or has several links.
func distinct(pods []model.Pod) bool {
	return slices.ContainsFunc(pods, func(p model.Pod) bool {
		return p.Namespace != pods[0].Namespace
	})
}

func podNames(pods []model.Pod) string {
	var words []string
	for _, p := range pods {
		word := report.PodName(p)
		for _, a := range p.Addresses {
			word = strings.TrimSpace(word + " " + a.Addr().String())
		}
		if word != "" {
			words = append(words, report.Clean(word))
		}
	}
	switch {
	case len(words) == 0:
		return "none"
	case len(words) > listed:
		return fmt.Sprintf("%s and %d more", strings.Join(words[:listed], ", "), len(words)-listed)
	}
	return strings.Join(words, ", ")
}

// concerns reports whether a finding is about one of the addresses. One that names
// no pod is about the node, and so about all addresses.
func concerns(f model.Finding, focus []netip.Addr) bool {
	if focus == nil || len(f.Pods) == 0 {
		return true
	}
	return slices.ContainsFunc(focus, func(a netip.Addr) bool {
		return slices.Contains(f.Pods, a) || slices.Contains(f.Peers, netip.PrefixFrom(a, a.BitLen()))
	})
}
