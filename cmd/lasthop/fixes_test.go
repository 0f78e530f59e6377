package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"mvdan.cc/sh/v3/syntax"

	"github.com/spf13/pflag"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/report"
)

// fixKind is what a line of a fix is.
type fixKind int

const (
	// fixWords is for a person: a sentence, a command that only shows something,
	// one for the cluster, or one with a value that nobody on the node knows.
	fixWords fixKind = iota
	// fixCommand is run on the node.
	fixCommand
	// fixCloud is an az command with all of its values.
	fixCloud
)

// changers are the commands of fixes that change a node. What only looks says
// so by one of its words.
var (
	changers = regexp.MustCompile(`^(ip|bridge|tc|nft|sysctl|conntrack|ebtables(-nft|-legacy)?|ip6?tables(-nft|-legacy)?)$`)
	viewers  = regexp.MustCompile(`^(ss|grep|awk|sort|uniq|head|arping|ping|tcpdump|ethtool|ip6?tables(-nft|-legacy)?-save|calicoctl|cilium)$`)
	looking  = regexp.MustCompile(`^(show|list|get|-a|-L|-S)$`)
	// unknownValue is a value that the user has to fill in.
	unknownValue = regexp.MustCompile(`^([A-Z]+(_[A-Z]+)*|[^ ]*:PORT|/proc/PID/.*)$`)
)

// classify says what a line of a fix is. A line that begins with a command must
// be one that a shell takes whole, since it will be pasted into one.
func classify(line string) (fixKind, error) {
	word := path.Base(first(strings.Fields(line)))
	isCommand := changers.MatchString(word) || viewers.MatchString(word) || word == "nsenter" || word == "az"
	if !isCommand {
		return fixWords, nil
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil {
		return fixWords, fmt.Errorf("no shell takes it: %w", err)
	}
	kind := fixWords
	unknown := false
	syntax.Walk(file, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok {
			return true
		}
		words := literals(call)
		if first(words) == "nsenter" {
			unknown = unknown || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "/proc/PID/") })
			words = slices.DeleteFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, "--net") })
		}
		rest := words[min(1, len(words)):]
		switch name := first(words); {
		case name == "az":
			kind = fixCloud
		case changers.MatchString(name):
			if !slices.ContainsFunc(rest, looking.MatchString) {
				kind = fixCommand
			}
		case !viewers.MatchString(name):
			err = fmt.Errorf("it has words behind a command: %q", words)
		}
		// A chain may have a name in capitals, but is no address and no link.
		for i, w := range words[:max(0, len(words)-1)] {
			if value := words[i+1]; unknownValue.MatchString(value) && (first(words) == "az" || slices.Contains([]string{"via", "dev", "lladdr", "add", "replace"}, w)) {
				unknown = true
			}
		}
		return true
	})
	// The limit of connection tracking is the machine's, which no lab may change.
	if unknown || strings.Contains(line, "net.netfilter.nf_conntrack_max") {
		kind = fixWords
	}
	return kind, err
}

// literals are the words of a command as it gets them.
func literals(call *syntax.CallExpr) []string {
	var out []string
	for _, w := range call.Args {
		var b strings.Builder
		syntax.Walk(w, func(node syntax.Node) bool {
			switch n := node.(type) {
			case *syntax.Lit:
				b.WriteString(n.Value)
			case *syntax.SglQuoted:
				b.WriteString(n.Value)
			}
			return true
		})
		out = append(out, b.String())
	}
	return out
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func TestClassifyFix(t *testing.T) {
	for line, want := range map[string]fixKind{
		"ip route replace 10.1.0.5 dev veth1":                           fixCommand,
		"nsenter --net=/run/netns/cni-1 ip link set dev eth0 up # lost": fixCommand,
		"iptables-nft -t filter -D FORWARD -d 10.1.0.5/32 -j DROP":      fixCommand,
		"nsenter --net=/proc/PID/ns/net ip link set dev eth0 up":        fixWords,
		"ip route add default via GATEWAY dev eth0":                     fixWords,
		"ip -d link show dev veth1; sysctl -a | grep proxy_arp":         fixWords,
		"az network nic update --ids NIC_ID --ip-forwarding true":       fixWords,
		"az network nic update --ids /a/b --ip-forwarding true":         fixCloud,
		"az network watcher test-ip-flow --vm a --local 10.1.0.5:PORT":  fixWords,
		"delete the rule": fixWords,
		"at the destination: tcpdump -ni any host 10.1.0.5":               fixWords,
		"kubectl get endpointslices -A -o wide | grep -F 10.244.0.9":      fixWords,
		"conntrack -D --orig-dst 10.0.0.10 --reply-src 10.244.0.9":        fixCommand,
		"sysctl -w net.ipv4.ip_forward=1":                                 fixCommand,
		"iptables-nft -t nat -I POSTROUTING -s 10.1.0.5 -j MASQUERADE":    fixCommand,
		"nsenter --net=/run/netns/cni-1 ss -lntu # compare with the port": fixWords,
	} {
		if got, err := classify(line); got != want || err != nil {
			t.Errorf("classify(%q) = %v, %v; want %v", line, got, err, want)
		}
	}
	for _, line := range []string{
		"conntrack -L -p tcp; use connections again",
		"iptables -m nfacct '[options' not 'decoded] -j DROP",
		"ip route del default; then restart the agent",
	} {
		if got, err := classify(line); err == nil {
			t.Errorf("classify(%q) = %v, want an error", line, got)
		}
	}
}

// mending is what became of a scenario's fault.
type mending struct {
	scenario string
	// byCommand are the codes whose fixes can be run; byWords the others.
	byCommand, byWords []model.Code
	// well is true where traffic flowed afterwards and nothing was found.
	well bool
}

// mendings are those of all scenarios.
type mendings []*mending

// table says of every finding in how many scenarios its fix has commands, how
// many of these mended, and in how many it is words.
func (m mendings) table() string {
	type tally struct{ mended, commands, words int }
	rows := map[model.Code]*tally{}
	row := func(c model.Code) *tally {
		if rows[c] == nil {
			rows[c] = &tally{}
		}
		return rows[c]
	}
	var total tally
	var failed []string
	for _, x := range m {
		for _, c := range x.byCommand {
			row(c).commands++
			total.commands++
			if x.well {
				row(c).mended++
				total.mended++
			}
		}
		for _, c := range x.byWords {
			row(c).words++
			total.words++
		}
		if !x.well {
			failed = append(failed, x.scenario)
		}
	}
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIX OF\tMENDED\tWORDS")
	for _, c := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprintf(w, "%s\t%d/%d\t%d\n", c, rows[c].mended, rows[c].commands, rows[c].words)
	}
	if err := w.Flush(); err != nil {
		return err.Error()
	}
	if slices.Sort(failed); len(failed) > 0 {
		fmt.Fprintf(&b, "not mended: %s\n", strings.Join(failed, ", "))
	}
	fmt.Fprintf(&b, "mended %d/%d, words %d\n", total.mended, total.commands, total.words)
	return b.String()
}

// checker checks a lab for a short while, once its traffic flows and started has
// returned.
type checker func(t *testing.T, l *lab.Lab, started func() error) []model.Finding

// mend does what the findings of a lab say, or where this is for a person to
// do undoes the fault. Traffic must flow again, and the next check find nothing.
func mend(t *testing.T, l *lab.Lab, found []model.Finding, look checker) *mending {
	t.Helper()
	s := l.Scenario()
	var byCommand, byWords []model.Finding
	done := map[string]bool{}
	for _, f := range found {
		if follow(t, l, f, done) {
			byCommand = append(byCommand, f)
		} else {
			byWords = append(byWords, f)
		}
	}
	out := &mending{scenario: s.Name, byCommand: codesOf(byCommand), byWords: codesOf(byWords)}
	if len(byCommand) == 0 || slices.ContainsFunc(byWords, func(f model.Finding) bool { return f.Severity != model.Info }) {
		if len(byCommand) > 0 {
			// What commands have mended must be so before the rest is undone.
			for _, f := range look(t, l, func() error { return nil }) {
				if slices.ContainsFunc(byCommand, func(old model.Finding) bool { return old.Code == f.Code && sharePod(old, f) }) {
					t.Errorf("after its fix there is still %s: %s", f.Code, f.Title)
				}
			}
		}
		undo(t, l, len(byCommand) > 0)
	}
	s.Traffic = slices.DeleteFunc(slices.Clone(s.Traffic), func(f scenario.Flow) bool { return nobody(s, f) })
	for _, f := range look(t, l, func() error { return flows(t.Context(), l) }) {
		if !lingers(f) {
			t.Errorf("afterwards there is %s: %s (%s), evidence %q", f.Code, f.Title, f.Why, f.Evidence)
		}
	}
	out.well = !t.Failed()
	return out
}

// follow does on the node, and in the cloud, what the fix of a finding says: on the
// observed node, or on those that a line before names. It is false where there is
// nothing that can be run.
func follow(t *testing.T, l *lab.Lab, f model.Finding, done map[string]bool) bool {
	t.Helper()
	node, err := observed(l)
	if err != nil {
		t.Fatal(err)
	}
	nodes, ran := []lab.Node{node}, false
	for _, line := range f.Fix {
		if on := namedNodes(l, line); on != nil {
			nodes = on
			continue
		}
		kind, err := classify(line)
		switch {
		case err != nil:
		case kind == fixWords:
			continue
		case done[nodes[0].Name+line]:
			err = errors.New("it is printed twice")
		case kind == fixCloud:
			err = inCloud(t.Context(), l, line)
		default:
			for _, n := range nodes {
				err = errors.Join(err, paste(t.Context(), n, line))
			}
		}
		if err != nil {
			t.Errorf("%s: the fix %q: %v", f.Code, line, err)
		}
		done[nodes[0].Name+line], ran = true, true
	}
	return ran
}

// namedNodes are the nodes that a line of a fix says the following ones are for; nil
// where it is no such line. A recorded node is called by its namespace.
func namedNodes(l *lab.Lab, line string) []lab.Node {
	names, is := strings.CutPrefix(strings.TrimSuffix(line, ":"), "on ")
	if !is {
		return nil
	}
	var out []lab.Node
	for _, n := range l.Nodes() {
		if slices.Contains(strings.Split(names, ", "), n.Netns) {
			out = append(out, n)
		}
	}
	return out
}

func codesOf(list []model.Finding) []model.Code {
	codes := map[model.Code]bool{}
	for _, f := range list {
		codes[f.Code] = true
	}
	return slices.Sorted(maps.Keys(codes))
}

func sharePod(a, b model.Finding) bool {
	return slices.ContainsFunc(a.Pods, func(p netip.Addr) bool { return slices.Contains(b.Pods, p) })
}

// nobody reports whether a flow goes to an address that no machine has, whatever is
// mended. That of a service leads to a machine while it is translated.
func nobody(s *scenario.Scenario, flow scenario.Flow) bool {
	return flow.To.Place == "" && !slices.ContainsFunc(s.Faults, func(f scenario.Fault) bool {
		return (f.Type == scenario.SelfService || f.Type == scenario.Service) && f.Prefix.Contains(flow.To.Addr)
	})
}

// lingers reports whether a finding may outlive its cause, for information only:
// packets that wait for a neighbour are dropped up to three seconds after they were
// sent, replies to what was asked before come to sockets that are closed, and
// connections that were not tracked as they began stay invalid until they end. Rules that no packet met are left, too.
func lingers(f model.Finding) bool {
	return f.Severity == model.Info && (f.ByTables || f.Code == "UnexplainedDrop" || f.Code == "NoListener" || f.Code == "PolicyDrop")
}

// paste runs a line as a person does in a shell on the node.
func paste(ctx context.Context, node lab.Node, line string) error {
	out, err := exec.CommandContext(ctx, "ip", "netns", "exec", node.Netns, "sh", "-c", line).CombinedOutput()
	if err == nil && bytes.Contains(out, []byte("sysctl: ")) {
		err = errors.New("a setting was refused") // which sysctl exits with 0 after
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// look is the checker of one node.
func look(t *testing.T, l *lab.Lab, started func() error) []model.Finding {
	t.Helper()
	a, o := &app{stdout: io.Discard, stderr: io.Discard}, given(t, "--for", "3s")
	var r report.Report
	fit(t)
	err := a.inLab(t.Context(), o, l, func(ns *netns.NS, node string) error {
		if err := started(); err != nil {
			return err
		}
		s, err := a.observe(t.Context(), o.session(ns, node))
		if err == nil {
			r, err = o.judge(s, nil, nil)
		}
		return err
	})
	if err != nil {
		t.Errorf("check again: %v", err)
	}
	return r.Findings
}

// given are the flags of a check.
func given(t *testing.T, args ...string) *observing {
	t.Helper()
	o := &observing{}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Register(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// flows waits until every flow to a machine was answered.
func flows(ctx context.Context, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, hanging)
	defer cancel()
	dead := func(all []lab.FlowStats) []string {
		var out []string
		for _, f := range all {
			if f.Answered == 0 {
				out = append(out, fmt.Sprintf("%s (%s)", f.Flow, f.LastError))
			}
		}
		return out
	}
	if err := lab.Await(ctx, l, func(all []lab.FlowStats) bool { return len(dead(all)) == 0 }); err != nil {
		return fmt.Errorf("no traffic from %s: %w", strings.Join(dead(l.Stats()), ", "), err)
	}
	return nil
}

// undo takes the faults back, the last first. Where commands have mended some of
// them already there may be nothing to take back.
func undo(t *testing.T, l *lab.Lab, some bool) {
	t.Helper()
	s := l.Scenario()
	var stay []scenario.Fault
	for _, f := range slices.Backward(s.Faults) {
		if scenario.IsOrdinary(f.Type) {
			stay = append(stay, f)
			continue
		}
		if err := l.Undo(t.Context(), f); err != nil && !some {
			t.Error(err)
		}
	}
	s.Faults = stay
}

// inCloud does in the lab's fabric what an az command does in Azure's.
func inCloud(ctx context.Context, l *lab.Lab, line string) error {
	words := strings.Fields(line)
	option := func(name string) string {
		i := slices.Index(words, "--"+name)
		if i < 0 || i+1 >= len(words) {
			return ""
		}
		return words[i+1]
	}
	s := l.Scenario()
	var mends func(scenario.Fault) bool
	switch command := strings.Join(words[:max(0, slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") }))], " "); command {
	case "az network route-table route create", "az network route-table route update":
		hop, err := netip.ParseAddr(option("next-hop-ip-address"))
		if err != nil {
			return err
		}
		mends = func(f scenario.Fault) bool {
			return (f.Type == scenario.DeleteUDR || f.Type == scenario.WrongUDR) && slices.ContainsFunc(s.StruckRoutes(f), func(r scenario.Route) bool {
				return r.Via == hop && (option("address-prefix") == "" || option("address-prefix") == r.Prefix.String())
			})
		}
	case "az network vnet subnet update":
		mends = func(f scenario.Fault) bool {
			return f == scenario.Fault{Type: scenario.DeleteUDR} && option("route-table") != "" ||
				f.Type == scenario.NoOutbound && option("nat-gateway") != ""
		}
	case "az network public-ip create", "az network nat gateway create":
		return nil // The subnet has to have it.
	case "az network nic update":
		mends = func(f scenario.Fault) bool { return f.Type == scenario.NICForwardingOff }
	case "az network nsg rule create":
		mends = func(f scenario.Fault) bool {
			return f.Type == scenario.NSGDrop && option("nsg-name") == f.Node+"-nsg" && option("access") == "Allow"
		}
	default:
		return fmt.Errorf("no such command in the lab: %s", cmp.Or(command, line))
	}
	i := slices.IndexFunc(s.Faults, mends)
	if i < 0 {
		return errors.New("it mends no fault of the scenario")
	}
	f := s.Faults[i]
	s.Faults = slices.Delete(slices.Clone(s.Faults), i, i+1)
	return l.Undo(ctx, f)
}
