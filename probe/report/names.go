package report

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Name is what an address is called; the zero Name is none.
type Name struct {
	// Namespace and Pod are those of a pod of the cluster, Node is that of a node.
	Namespace, Pod, Node string
	// Own: it is an address of the node itself.
	Own bool
	// Other is what it is known by where the cluster has no name for it, such as a network namespace.
	Other string
}

// Names are what addresses are called.
type Names map[netip.Addr]Name

// ThisNode is the name of the node's own addresses. No pod has it: the names of
// pods and of network namespaces hold no spaces.
const ThisNode = "this node"

// String is the name as documents have it.
func (n Name) String() string {
	switch {
	case n.Pod != "":
		return n.Namespace + "/" + n.Pod
	case n.Node != "":
		return "node " + n.Node
	}
	return model.Either(n.Own, ThisNode, n.Other)
}

// display is the name as sentences have it: a node that is called node1 is no "node node1".
func (n Name) display() string {
	return model.Either(strings.HasPrefix(n.Node, "node"), n.Node, n.String())
}

// clustered reports whether the cluster knows the name: that of a pod with its namespace, or of a node.
func (n Name) clustered() bool { return n.Pod != "" || n.Node != "" }

// From is the name as others than a node have it, whose own addresses are called by its name there.
func (n Name) From(node string) Name { return model.Either(n.Own, Name{Node: node, Other: "node"}, n) }

func nameOf(p *model.Pod) Name {
	if p.Name != "" && p.Namespace != "" {
		return Name{Namespace: p.Namespace, Pod: p.Name}
	}
	return Name{Other: cmp.Or(p.Name, p.NetnsName)}
}

// PodName is the pod's namespace and name, or what else it is known by; empty when only its address is known.
func PodName(p model.Pod) string { return nameOf(&p).String() }

// Local are the names of pods here, and that of the node's own addresses. A running pod wins over one that is gone.
func Local(s *model.Snapshot) Names {
	names := make(Names, len(s.Pods)+len(s.PastPods)+len(s.Links))
	for _, pod := range allPods(s) {
		for _, prefix := range pod.Addresses {
			names[prefix.Addr()] = cmp.Or(names[prefix.Addr()], nameOf(&pod))
		}
	}
	for _, l := range s.Links {
		for _, prefix := range l.Addresses {
			if _, ok := names[prefix.Addr()]; !ok {
				names[prefix.Addr()] = Name{Own: true}
			}
		}
	}
	return names
}

// Called is Local with the names of pods and nodes elsewhere, as --pods and --nodes
// tell. What has a name in it need not be on this node.
func Called(s *model.Snapshot) Names {
	names := Local(s)
	add := func(addrs []netip.Addr, name Name) {
		for _, a := range addrs {
			names[a] = cmp.Or(names[a], name)
		}
	}
	for _, p := range allPods(s) {
		add(p.Given, nameOf(&p))
	}
	for p := range model.Each(s.Cluster.Pods) {
		add(p.Addresses, Name{Namespace: p.Namespace, Pod: p.Name})
	}
	for n := range model.Each(s.Cluster.Nodes) {
		add(n.Addresses, Name{Node: n.Name})
	}
	return names
}

// Add adds what a node calls addresses, to the names of several. One that several nodes have has the name of none.
func (names Names) Add(s *model.Snapshot) {
	for a, name := range Called(s) {
		shared := name.Own && names[a].Other == "node" && names[a].Node != s.Node.Name
		names[a] = model.Either(shared, Name{Other: "several nodes"}, cmp.Or(names[a], name.From(s.Node.Name)))
	}
}

// Prose is a sentence with the names of the pods whose addresses it has, and the addresses behind them. A name
// that the sentence has already is not added, nor one within a rule.
func Prose(names Names, text string) string {
	return named(names, text, func(name, address string) string { return name + " (" + address + ")" })
}

// Brief is Prose without the addresses, for where there is room for one line alone.
func Brief(names Names, text string) string {
	return named(names, text, func(name, _ string) string { return name })
}

// named puts what as makes of an address and its name in the place of the address.
func named(names Names, text string, as func(name, address string) string) string {
	words := strings.Split(text, " ")
	for i, word := range words {
		trimmed := strings.TrimRight(strings.TrimLeft(word, "("), ").,;:")
		// Most words are none: this is cheaper than to parse them.
		if !strings.ContainsAny(trimmed, ".:") || i > 0 && ruleWord(words[i-1]) && word[0] != '(' {
			continue
		}
		a, err := netip.ParseAddr(trimmed)
		if err != nil {
			ap, err := netip.ParseAddrPort(trimmed)
			if err != nil {
				continue
			}
			a = ap.Addr()
		}
		if name := names[a]; name.clustered() && !strings.Contains(text, name.display()) {
			words[i] = strings.Replace(word, trimmed, as(name.display(), trimmed), 1)
		}
	}
	return strings.Join(words, " ")
}

// ruleWord reports whether an address behind the word belongs to a rule of ebtables, iptables or nft, or is itself meant.
func ruleWord(word string) bool {
	return strings.HasPrefix(word, "-") || slices.Contains([]string{"!", "!=", "==", "saddr", "daddr", "address"}, word)
}

// Named is an address behind its name, if it has one.
func Named(names Names, a netip.Addr) string {
	return strings.TrimSpace(names[a].display() + " " + addrText(a))
}
