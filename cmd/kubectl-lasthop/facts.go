package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lasthop/lasthop/cmd/kubectl-lasthop/session"
	"github.com/lasthop/lasthop/probe/collect/files"
)

// facts are the files that lasthop gets on each node, and the flags that name them.
type facts struct {
	files map[string][]byte
	args  []string
}

// add adds a file that the flag names. In the container it has the name that the user knows it by, since errors and
// evidence give that, and a number if that name is taken. It is in the command's directory.
func (f *facts) add(flag, name string, content []byte) {
	if name = filepath.Base(name); name == "-" {
		name = "stdin"
	}
	ext := filepath.Ext(name)
	stem := strings.TrimSuffix(name, ext)
	for n := 2; f.files[name] != nil || slices.Contains(ours, name); n++ {
		name = fmt.Sprintf("%s-%d%s", stem, n, ext)
	}
	f.files[name] = append([]byte{}, content...) // an empty one is there as well
	f.args = append(f.args, "--"+flag+"="+name)
}

// ours are the files that lasthop writes in the container.
var ours = []string{samplesFile, junitFile, htmlFile, summaryFile}

// mostNamed is how many nodes get the names of all pods of the cluster, which grow as its nodes
// do. Beyond that each node knows its own pods' names, and all are known here.
const mostNamed = 50

// gather reads the files that the user names, and what the cluster knows. What the user
// may not list lasthop does without, and its report says so.
func (r *runner) gather(ctx context.Context, targets []target) (*facts, error) {
	f := &facts{files: map[string][]byte{}}
	for _, file := range r.Routes {
		content, err := r.read("routes", file)
		if err != nil {
			return nil, err
		}
		f.add("routes", file, content)
	}
	if r.Azure {
		if err := r.askAzure(ctx, f, targets); err != nil {
			return nil, err
		}
	}
	for _, k := range []struct {
		flag, file string
		list       func(context.Context, *session.API) (any, error)
	}{{"nodes", r.Nodes, nodes}, {"pods", r.Pods, pods}} {
		if k.flag == "pods" && k.file == "" && len(targets) > mostNamed {
			continue
		}
		var content []byte
		var err error
		if k.file != "" {
			content, err = r.read(k.flag, k.file)
		} else if list, failed := k.list(ctx, r.cluster.API); failed != nil {
			err = failed
		} else {
			content, err = json.Marshal(list)
		}
		if apierrors.IsForbidden(err) {
			r.say("without the cluster's %s: %v", k.flag, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		f.add(k.flag, cmp.Or(k.file, k.flag+".json"), content)
	}
	return f, nil
}

// read reads a file of this machine; - is standard input.
func (r *runner) read(flag, file string) ([]byte, error) {
	_, content, err := files.Given{Stdin: r.stdin}.Read(file)
	if err != nil {
		return nil, usagef("--%s: %w", flag, err)
	}
	return content, nil
}

// nodes lists what lasthop reads of nodes: the rest is large, and no business of theirs.
func nodes(ctx context.Context, api *session.API) (any, error) {
	all := &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	return all, api.Nodes().Each(ctx, metav1.ListOptions{}, func(n *corev1.Node) {
		all.Items = append(all.Items, corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, Labels: n.Labels, Annotations: n.Annotations},
			Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs, ProviderID: n.Spec.ProviderID},
			Status:     corev1.NodeStatus{Addresses: n.Status.Addresses, Conditions: n.Status.Conditions},
		})
	})
}

// pods lists what lasthop reads of pods.
func pods(ctx context.Context, api *session.API) (any, error) {
	all := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	return all, api.Pods(metav1.NamespaceAll).Each(ctx, metav1.ListOptions{}, func(p *corev1.Pod) {
		all.Items = append(all.Items, corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, Labels: p.Labels},
			Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
			Status:     corev1.PodStatus{Phase: p.Status.Phase, HostIP: p.Status.HostIP, HostIPs: p.Status.HostIPs, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs},
		})
	})
}
