// Package cluster finds what is beyond the node: the cluster's nodes and pods, from
// the texts of the files given by --nodes and --pods, and its pod ranges, from the
// node's packet rules. It needs no rights. Without --nodes the nodes are a gap;
// without such rules there are no ranges.
package cluster

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/lasthop/lasthop/probe/collect/files"
	"github.com/lasthop/lasthop/probe/model"
)

// object is a Node of the Kubernetes API, or a list of them.
type object struct {
	Kind     string   `json:"kind"`
	Items    []object `json:"items"`
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

// wantNodes is what the file should be.
const wantNodes = "what `kubectl get nodes -o json` prints: a List of Nodes"

// DecodeNodes decodes the text of a file that `kubectl get nodes -o json` wrote and
// that errors call path. Every error is a *files.Error.
func DecodeNodes(path string, text []byte) ([]model.ClusterNode, error) {
	var o object
	if err := files.DecodeJSON(path, text, wantNodes, &o); err != nil {
		return nil, err
	}
	list := o.Items
	switch o.Kind {
	case "Node":
		list = []object{o}
	case "List", "NodeList":
	default:
		return nil, files.ValueError(path, text, o.Kind, wantNodes, fmt.Errorf("kind is %q", o.Kind))
	}
	var out []model.ClusterNode
	for i, n := range list {
		if n.Kind != "Node" && (n.Kind != "" || o.Kind != "NodeList") {
			return nil, files.ValueError(path, text, n.Kind, wantNodes, fmt.Errorf("items[%d] is a %q", i, n.Kind))
		}
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
		cidrs := n.Spec.PodCIDRs
		if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
			cidrs = []string{n.Spec.PodCIDR}
		}
		for _, s := range cidrs {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return nil, files.ValueError(path, text, s, "a pod range as 10.244.1.0/24", fmt.Errorf("node %s: %w", node.Name, err))
			}
			node.PodCIDRs = append(node.PodCIDRs, p.Masked())
		}
		out = append(out, node)
	}
	return out, nil
}
