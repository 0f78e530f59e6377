package main

import (
	"encoding/json"
	"fmt"
	"net"

	"github.com/lasthop/lasthop/kind/scenario"
)

// hostFiles are the files that the network plugin of a node keeps on it, by
// their paths below the root, with those that an earlier plugin left.
func hostFiles(n *scenario.Node) (map[string][]byte, error) {
	type object = map[string]any
	list := func(name string, plugins ...object) object {
		return object{"cniVersion": "0.3.0", "name": name, "plugins": plugins}
	}
	azure := func(mode, ipam, ipamMode string) object {
		i := object{"type": ipam}
		if ipamMode != "" {
			i["mode"] = ipamMode
		}
		return list("azure", object{"type": "azure-vnet", "mode": mode, "ipam": i}, object{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true})
	}
	files := map[string]any{}
	const dir = "etc/cni/net.d/"
	switch n.Plugin {
	case scenario.Kubenet:
		files[dir+"10-containerd-net.conflist"] = list("kubenet", object{"type": "bridge", "bridge": n.Bridge, "ipam": object{"type": "host-local"}})
	case scenario.AzureBridge, scenario.AzureTunnel:
		mode := map[scenario.Plugin]string{scenario.AzureBridge: "bridge", scenario.AzureTunnel: "tunnel"}[n.Plugin]
		files[dir+"10-azure.conflist"] = azure(mode, "azure-vnet-ipam", "")
		files["var/run/azure-vnet.json"] = vnetState(n, mode, n.Pods)
	case scenario.AzureTransparent:
		files[dir+"10-azure.conflist"] = azure("transparent", "azure-vnet-ipam", "")
		files["var/run/azure-vnet.json"] = vnetState(n, "transparent", n.Pods)
	case scenario.AzureOverlay:
		files[dir+"10-azure.conflist"] = azure("transparent", "azure-cns", "overlay")
	case scenario.AzurePodSubnet:
		files[dir+"10-azure.conflist"] = azure("transparent", "azure-cns", "v4swift")
	case scenario.AzureCilium:
		files[dir+"05-cilium.conflist"] = list("cilium", object{"type": "cilium-cni", "ipam": object{"type": "azure-ipam"}})
		files["var/run/azure-cns/azure-endpoints.json"] = cnsState(n)
	case scenario.Cilium:
		files[dir+"05-cilium.conflist"] = list("cilium", object{"type": "cilium-cni"})
	case scenario.Calico:
		files[dir+"10-calico.conflist"] = list("k8s-pod-network", object{"type": "calico", "ipam": object{"type": "calico-ipam"}})
	case scenario.Flannel:
		files[dir+"10-flannel.conflist"] = list("cbr0", object{"type": "flannel", "delegate": object{"hairpinMode": true, "isDefaultGateway": true}}, object{"type": "portmap"})
	case scenario.AWSVPC:
		files[dir+"10-aws.conflist"] = list("aws-cni", object{"type": "aws-cni", "vethPrefix": "eni", "mtu": "9001"}, object{"type": "portmap"})
	case scenario.Kindnet:
		files[dir+"10-kindnet.conflist"] = list("kindnet", object{"type": "ptp", "ipam": object{"type": "host-local"}}, object{"type": "portmap"})
	}
	if n.Residue == scenario.AzureVNet {
		files["var/run/azure-vnet.json"] = vnetState(n, "bridge", n.OldPods)
	}
	out := make(map[string][]byte, len(files))
	for name, v := range files {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
		out[name] = text
	}
	return out, nil
}

// vnetState is azure-vnet's record of its pods.
func vnetState(n *scenario.Node, mode string, pods []scenario.Pod) any {
	type object = map[string]any
	endpoints := object{}
	for _, p := range pods {
		endpoints[p.Name+"-eth0"] = object{"HostIfName": p.Link, "IPAddresses": []net.IPNet{{IP: p.IP.AsSlice(), Mask: net.CIDRMask(16, 32)}},
			"PODName": p.Name, "PODNameSpace": scenario.PodNamespace}
	}
	return object{"Network": object{"ExternalInterfaces": object{n.NIC: object{"Networks": object{"azure": object{"Mode": mode, "Endpoints": endpoints}}}}}}
}

// cnsState is azure-cns's record of the node's pods.
func cnsState(n *scenario.Node) any {
	type object = map[string]any
	endpoints := object{}
	for _, p := range n.Pods {
		endpoints[p.Name] = object{"PodName": p.Name, "PodNamespace": scenario.PodNamespace, "IfnameToIPMap": object{"eth0": object{
			"IPv4": []net.IPNet{{IP: p.IP.AsSlice(), Mask: net.CIDRMask(32, 32)}}, "HostVethName": p.Link}}}
	}
	return object{"Endpoints": endpoints}
}
