package lab

import (
	"errors"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
)

// flannelRules are flanneld's: what leaves the pods' ranges is masqueraded, and what comes to
// other nodes' pods from elsewhere as well.
func flannelRules(n *scenario.Node) [][]string {
	const masq, fwd, note = "FLANNEL-POSTRTG", "FLANNEL-FWD", "flanneld masq"
	lists := [][]string{
		words("-t nat -N ?", masq), words("-N ?", fwd),
		words("-t nat -A POSTROUTING -m comment --comment ? -j ?", note, masq),
		words("-A FORWARD -m comment --comment ? -j ?", "flanneld forward", fwd),
	}
	all := n.NonMasquerade[0]
	for _, rule := range []string{
		"-m mark --mark 0x4000/0x4000 # -j RETURN", "-s OWN -d ALL # -j RETURN", "-s ALL -d OWN # -j RETURN", "! -s ALL -d OWN # -j RETURN",
		"-s ALL ! -d 224.0.0.0/4 # -j MASQUERADE --random-fully", "! -s ALL -d ALL # -j MASQUERADE --random-fully",
	} {
		list := words("-t nat -A ?", masq)
		for _, w := range words(rule) {
			switch w {
			case "OWN":
				list = append(list, n.PodCIDR.String())
			case "ALL":
				list = append(list, all.String())
			case "#":
				list = append(list, "-m", "comment", "--comment", note)
			default:
				list = append(list, w)
			}
		}
		lists = append(lists, list)
	}
	for _, match := range []string{"-s", "-d"} {
		lists = append(lists, words("-A ? ? ? -m comment --comment ? -j ACCEPT", fwd, match, all, "flanneld forward"))
	}
	return lists
}

// awsMark is the mark of connections that are the first network card's.
const awsMark = "0x80/0x80"

// awsRules are those of Amazon's VPC CNI: what leaves the network gets the node's address, and
// such connections keep to the first card.
func awsRules(n *scenario.Node) [][]string {
	const snat, mark = "AWS-SNAT-CHAIN-0", "AWS-CONNMARK-CHAIN-0"
	lists := [][]string{
		words("-t nat -N ?", snat), words("-t nat -N ?", mark),
		words("-t nat -A POSTROUTING -m comment --comment ? -j ?", "AWS SNAT CHAIN", snat),
		words("-t nat -A PREROUTING -i eni+ -m comment --comment ? -j ?", "AWS, outbound connections", mark),
		words("-t nat -A PREROUTING -m comment --comment ? -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80", "AWS, CONNMARK"),
		words("-t mangle -A PREROUTING -i ? -m comment --comment ? -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-xmark ?",
			n.NIC, "AWS, primary ENI", awsMark),
		words("-t mangle -A PREROUTING -i eni+ -m comment --comment ? -j CONNMARK --restore-mark --nfmask 0x80 --ctmask 0x80", "AWS, primary ENI"),
	}
	for _, p := range n.NonMasquerade {
		lists = append(lists, words("-t nat -A ? -d ? -m comment --comment ? -j RETURN", snat, p, "AWS SNAT CHAIN"),
			words("-t nat -A ? -d ? -m comment --comment ? -j RETURN", mark, p, "AWS CONNMARK CHAIN, VPC CIDR"))
	}
	return append(lists,
		words("-t nat -A ? ! -o vlan+ -m comment --comment ? -m addrtype ! --dst-type LOCAL -j SNAT --to-source ? --random-fully", snat, "AWS, SNAT", n.IP),
		words("-t nat -A ? -m comment --comment ? -j CONNMARK --set-xmark ?", mark, "AWS, CONNMARK", awsMark))
}

// The priorities of its routing rules: to a pod, of marked packets, and from a pod of a further
// network card.
const (
	awsToPod   = 512
	awsMarked  = 1024
	awsFromPod = 1536
)

// awsHost makes what is not a pod's.
func awsHost(n *scenario.Node, sp *space) error {
	return errors.Join(sp.sysctl("ipv4/conf/"+n.NIC+"/rp_filter", "2"), sp.rule(rule{priority: awsMarked, mark: 0x80, table: mainTable}))
}

// awsPod makes the node's side of a pod.
func awsPod(p *scenario.Pod, sp *space) error {
	return errors.Join(sp.route(route{dst: host(p.IP), link: p.Link}), sp.rule(rule{priority: awsToPod, to: host(p.IP), table: mainTable}))
}

// hostMAC is that of the host's side of a pod's link; zero where the kernel chooses.
func hostMAC(n *scenario.Node, p *scenario.Pod) model.MAC {
	switch {
	case p.Bridged:
		return model.MAC{}
	case n.Plugin == scenario.AWSVPC:
		mac := p.MAC
		mac[0] ^= 0x40
		return mac
	}
	return n.Plugin.HostMAC()
}

// toSecond has the fabric send what is for a pod to its node's second network card, and take
// nothing of it from the first; or the other way round.
func (x *target) toSecond() error {
	return x.inFabric(func(fabric *space) error {
		r := pick(x, route{dst: host(x.pod.IP), via: x.node.Second.IP.Addr(), link: secondLink(x.place())},
			route{dst: host(x.pod.IP), via: x.node.IP, link: x.port, onlink: true})
		return errors.Join(fabric.route(r), fabric.runAll(iptables,
			words("? ? -s ? -j RETURN", x.unop("-I"), "FROM-"+x.port, x.pod.IP), words("? ? -d ? -j RETURN", x.unop("-I"), "TO-"+x.port, x.pod.IP)))
	})
}
