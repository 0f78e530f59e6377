// Package cluster finds what is beyond the node: the cluster's nodes and pods, from the texts of the files given
// by --nodes and --pods, and its pod ranges, from the node's packet rules. It needs no rights. Without --nodes
// the nodes are a gap; without such rules there are no ranges.
package cluster

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// decode decodes the text of a file that holds one object of a kind, or a list of such. It
// returns them with their kinds, empty where that of the list says it.
func decode[T interface{ kind() string }](path string, text []byte, want, kind string) ([]T, error) {
	var list struct {
		Kind  string `json:"kind"`
		Items []T    `json:"items"`
	}
	if err := files.DecodeJSON(path, text, want, &list); err != nil {
		return nil, err
	}
	switch list.Kind {
	case kind:
		list.Items = make([]T, 1)
		return list.Items, files.DecodeJSON(path, text, want, &list.Items[0])
	case "List", kind + "List":
	default:
		return nil, files.ValueError(path, text, list.Kind, want, fmt.Errorf("kind is %q", list.Kind))
	}
	for i, x := range list.Items {
		if k := x.kind(); k != kind && (k != "" || list.Kind != kind+"List") {
			return nil, files.ValueError(path, text, k, want, fmt.Errorf("items[%d] is a %q", i, k))
		}
	}
	return list.Items, nil
}

// object is a Node of the Kubernetes API.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		PodCIDR  string   `json:"podCIDR"`
		PodCIDRs []string `json:"podCIDRs"`
	} `json:"spec"`
	Status struct {
		Addresses []struct {
			Type    string `json:"type"`
			Address string `json:"address"`
		} `json:"addresses"`
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

func (o object) kind() string { return o.Kind }

const wantNodes = "the output of `kubectl get nodes -o json`: a List of Nodes"

// DecodeNodes decodes the text of a file that `kubectl get nodes -o json` wrote and
// that errors call path. Every error is a *files.Error.
func DecodeNodes(path string, text []byte) ([]model.ClusterNode, error) {
	list, err := decode[object](path, text, wantNodes, "Node")
	if err != nil {
		return nil, err
	}
	var out []model.ClusterNode
	for _, n := range list {
		node := model.ClusterNode{Name: n.Metadata.Name}
		for _, a := range n.Status.Addresses {
			if a.Type != "InternalIP" && a.Type != "ExternalIP" {
				continue
			}
			ip, err := netip.ParseAddr(a.Address)
			if err != nil {
				return nil, files.ValueError(path, text, a.Address, "an IP address", fmt.Errorf("node %s: %w", node.Name, err))
			}
			node.Addresses = append(node.Addresses, ip.Unmap())
			if a.Type == "ExternalIP" {
				node.External = append(node.External, ip.Unmap())
			}
		}
		for _, c := range n.Status.Conditions {
			if c.Type == "NetworkUnavailable" && c.Status == "True" {
				node.NoRoute = strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
			}
		}
		cidrs := model.Either(len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "", []string{n.Spec.PodCIDR}, n.Spec.PodCIDRs)
		for _, s := range cidrs {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, files.ValueError(path, text, s, "a pod range such as 10.244.1.0/24", fmt.Errorf("node %s: %w", node.Name, err))
			}
			node.PodCIDRs = append(node.PodCIDRs, p.Masked())
		}
		out = append(out, node)
	}
	return out, nil
}
