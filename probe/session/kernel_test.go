package session_test

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	vnetns "github.com/vishvananda/netns"

	"github.com/lasthop/lasthop/probe/netns"
)

func netlinkNS(ns *netns.NS) vnetns.NsHandle { return vnetns.NsHandle(ns.FD()) }

// tcxPrograms counts the programs on both hooks of a link in the calling
// thread's namespace.
func tcxPrograms(ifindex int) (int, error) {
	count := 0
	for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		r, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
		if err != nil {
			return 0, err
		}
		count += len(r.Programs)
	}
	return count, nil
}
