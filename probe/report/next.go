package report

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// Step is what would make a finding surer: the means, and the command that uses it.
type Step struct {
	Means   model.Means `json:"means"`
	Why     string      `json:"why"`
	Command string      `json:"command"`
	// Nodes are those to watch, Namespaces those whose network policies to look at.
	Nodes      []string `json:"nodes,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
}

// given are the sources that hold what a means would give.
var given = map[model.Means]string{model.Active: model.SourceProbes, model.Routes: model.SourceCloud, model.Nodes: model.SourceNodes}

// Next is what would make a finding surer, the most telling first: by what it has unseen and for alternatives,
// and by what the observation lacked. A proven one wants nothing. names are those of Called.
func Next(s *model.Snapshot, names Names, f *model.Finding) []Step {
	if f.Confidence == model.Proven || f.Confidence == "" {
		return nil
	}
	means := slices.Clone(f.Surer)
	if f.Packets == 0 {
		means = append(means, model.Longer)
	}
	if len(Gaps(s)) > 0 {
		means = append(means, model.Rights)
	}
	var out []Step
	for _, m := range means {
		if source := given[m]; source == "" || s.Status(source) != model.OK {
			if step, ok := newStep(m, s, names, f); ok {
				out = append(out, step)
			}
		}
	}
	return out
}

func newStep(m model.Means, s *model.Snapshot, names Names, f *model.Finding) (Step, bool) {
	step, here := Step{Means: m}, shellWords(append(slices.Clone(f.Nodes), s.Node.Name))
	check := fmt.Sprintf("lasthop check --only %s", f.Code)
	if len(f.Nodes) > 0 {
		check = fmt.Sprintf("kubectl lasthop check %s --only %s", strings.Join(here[:min(len(here), 1)], ""), f.Code)
	}
	switch m {
	case model.Active:
		step.Why, step.Command = "probes show whether the other end is up, and in which direction packets are lost", check+" --active"
	case model.Routes:
		step.Why = "a node cannot see the network's route tables"
		step.Command = "az network route-table list -o json >routes.json && " + check + " --routes routes.json"
	case model.Nodes:
		step.Why = "the nodes' pod ranges are unknown"
		step.Command = "kubectl get nodes -o json >nodes.json && " + check + " --nodes nodes.json"
	case model.Watch:
		step.Nodes = slices.DeleteFunc(shellWords(farNodes(s, names, f)), func(n string) bool { return slices.Contains(here, n) })
		both := slices.Compact(append(slices.Clone(here), step.Nodes...))
		step.Why = "only the other end shows whether the packets arrive"
		step.Command = fmt.Sprintf("kubectl lasthop check %s", strings.Join(both, " "))
		return step, len(step.Nodes) > 0
	case model.Policies:
		step.Why, step.Command = "a network policy may drop these packets", "kubectl get networkpolicies -A"
		if step.Namespaces = shellWords(namespaces(names, f)); len(step.Namespaces) > 0 {
			step.Command = "kubectl get networkpolicies -n " + strings.Join(step.Namespaces, "; kubectl get networkpolicies -n ")
		}
	case model.Longer:
		step.Why, step.Command = "no lost packet was counted in the window", check+" --for 1m"
	case model.Rights:
		missing := model.Map(Gaps(s), func(src model.Source) string { return src.Name })
		step.Why, step.Command = "incomplete: "+strings.Join(missing, ", "), "lasthop doctor"
		if len(f.Nodes) > 0 {
			step.Command = "kubectl lasthop doctor " + strings.Join(here[:min(len(here), 1)], "")
		}
	}
	return step, step.Command != ""
}

func farNodes(s *model.Snapshot, names Names, f *model.Finding) []string {
	const most = 4
	var out []string
	for _, p := range f.Peers {
		if node := names[p.Addr()].Node; p.IsSingleIP() && node != "" {
			out = model.With(out, node)
		}
		for n := range model.Each(s.Cluster.Nodes) {
			if slices.ContainsFunc(n.PodCIDRs, func(c netip.Prefix) bool { return c.Contains(p.Addr()) && c.Bits() <= p.Bits() }) {
				out = model.With(out, n.Name)
			}
		}
	}
	return out[:min(len(out), most)]
}

// namespaces are those of the pods at both ends.
func namespaces(names Names, f *model.Finding) []string {
	addrs := slices.Concat(f.Pods, model.Map(f.Peers, netip.Prefix.Addr))
	all := model.With(nil, model.Map(addrs, func(a netip.Addr) string { return names[a].Namespace })...)
	return slices.DeleteFunc(all, func(ns string) bool { return ns == "" })
}

// shellWord is a name of Kubernetes', which a shell takes as it is.
var shellWord = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

// shellWords are the names that are such: nothing else gets into a command.
func shellWords(names []string) []string {
	return slices.DeleteFunc(names, func(n string) bool { return !shellWord.MatchString(n) })
}
