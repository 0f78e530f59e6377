package cluster

import (
	"fmt"
	"net/netip"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/collect/names"
	"github.com/lasthop/lasthop/probe/model"
)

// Pod is a pod of the Kubernetes API.
type Pod struct {
	model.ClusterPod
	UID string
	// Labels is never nil.
	Labels map[string]string
}

// podObject is a Pod of the Kubernetes API. What else is in it, such as the environment of
// containers, has no field here and is never decoded.
type podObject struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Namespace string            `json:"namespace"`
		Name      string            `json:"name"`
		UID       string            `json:"uid"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		HostNetwork bool `json:"hostNetwork"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIP  string `json:"podIP"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

func (o podObject) kind() string { return o.Kind }

const wantPods = "the output of `kubectl get pods -A -o json`: a List of Pods"

// DecodePods decodes the text of a file that `kubectl get pods -A -o json` wrote and that errors call path. Pods
// that have no address of their own are left out: those in a node's network, those that have ended, those that
// wait. Every error is a *files.Error.
func DecodePods(path string, text []byte) ([]Pod, error) {
	list, err := decode[podObject](path, text, wantPods, "Pod")
	if err != nil {
		return nil, err
	}
	var out []Pod
	for i := range list {
		p := &list[i]
		if err := names.Check(p.Metadata.Namespace, p.Metadata.Name); err != nil {
			return nil, files.ValueError(path, text, p.Metadata.Name, "the namespace and name of a pod", fmt.Errorf("items[%d]: %w", i, err))
		}
		// The address of a pod that has ended may be another's now.
		if p.Spec.HostNetwork || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		pod := Pod{UID: p.Metadata.UID, Labels: p.Metadata.Labels}
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Namespace, pod.Name = p.Metadata.Namespace, p.Metadata.Name
		texts := []string{p.Status.PodIP}
		if len(p.Status.PodIPs) > 0 {
			texts = nil
		}
		for _, ip := range p.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
		for _, s := range texts {
			if s == "" {
				continue
			}
			a, err := netip.ParseAddr(s)
			if err != nil {
				return nil, files.ValueError(path, text, s, "an IP address", fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
			}
			pod.Addresses = append(pod.Addresses, a.Unmap())
		}
		if len(pod.Addresses) > 0 {
			out = append(out, pod)
		}
	}
	return out, nil
}
