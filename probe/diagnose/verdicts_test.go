package diagnose

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"github.com/lasthop/lasthop/probe/fault"
	"github.com/lasthop/lasthop/probe/fault/silence"
	"github.com/lasthop/lasthop/probe/model"
)

// TestMain compares the verdict of every snapshot that any test of this package judges with testdata/verdicts, a file
// for a test, and what these show of the list of kinds with what it declares. With -update it writes these files: whoever changes the engine sees what the change does to all of them.
func TestMain(m *testing.M) {
	held := map[string][]string{}
	var last *model.Snapshot
	var before string
	at := slices.IndexFunc(kinds, func(k fault.Kind) bool { return len(k.Needs) == 0 })
	find, judging := kinds[at].Find, false
	kinds[at].Find = func(v *fault.Input) {
		if test := callingTest(); test != "" && !judging {
			judging = true
			clear(proposed)
			if told := verdictOf(v); v.Whole != last || told != before {
				held[test] = append(held[test], told)
				last, before = v.Whole, told
				wrong = append(wrong, contradictions(test, v.Whole)...)
				if os.Getenv("MUTANT") == "" { // What make mutate changed has to show in the verdict.
					swapKinds(test, v, told)
				}
			}
			judging = false
		}
		find(v)
	}
	for i := range kinds {
		k := &kinds[i]
		find := k.Find
		k.Find = func(v *fault.Input) {
			find(v)
			proposed[k.Code] = proposed[k.Code] || len(v.Proposed) > 0
			noteFacts(k, v.Proposed)
		}
	}
	code := m.Run()
	if f := flag.Lookup("test.run").Value.String(); code == 0 && !strings.Contains(f, "/") {
		code = compareVerdicts(held)
		if f == "" && os.Getenv("MUTANT") == "" {
			wrong = slices.Concat(wrong, misnamed(), misordered())
		}
		for _, text := range wrong {
			fmt.Println(text)
			code = 1
		}
	}
	os.Exit(code)
}

// tableOf is the test whose table has the snapshot that is being judged.
var tableOf string

// callingTest is the test that has a snapshot judged; empty where that is none, or one of many alike.
func callingTest() string {
	const here = "probe/diagnose.Test"
	pc := make([]uintptr, 60)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		f, more := frames.Next()
		if slices.ContainsFunc([]string{"agree.Accusations", "TestGrowth", "diagnose.quoted", "diagnose.watched"},
			func(s string) bool { return strings.Contains(f.Function, s) }) {
			return ""
		}
		if strings.HasSuffix(f.Function, "diagnose.verdicts") {
			return tableOf // its goroutine began with a row of a table
		}
		if at := strings.Index(f.Function, here); at >= 0 && !strings.Contains(f.Function, "TestMain") {
			name, _, _ := strings.Cut(f.Function[at+len("probe/diagnose."):], ".")
			return name
		}
		if !more {
			return ""
		}
	}
}

// verdictOf is all of a view's verdict but its sentences, on a few lines.
func verdictOf(judged *fault.Input) string {
	v := newInput(judged.Whole)
	v.Others = judged.Others
	var b strings.Builder
	for _, f := range judge(v) {
		fmt.Fprintf(&b, "%s %s pods %v peers %v packets %d", f.Severity, brief(model.Finding{Code: f.Code, Confidence: f.Confidence}),
			f.Pods, f.Peers, f.Packets)
		if h := f.LastHopAlive; h != (model.Place{}) {
			fmt.Fprintf(&b, " alive %s %s %s", h.Link, h.Role, h.Direction)
		}
		fmt.Fprintf(&b, " ends %v cause %q\n", f.EndsAt, f.Cause)
	}
	for i, c := range causes(v) {
		d := &v.Whole.Traffic.Drops[i]
		fmt.Fprintf(&b, "  drop %s %s %v > %v proto %d packets %d: %s expected %v\n", d.Reason, d.Location, d.Far(d.Src), d.Far(d.Dst), d.Proto,
			d.Packets, c.Code, c.Expected())
	}
	for _, s := range silence.Unreplied(v) {
		fmt.Fprintf(&b, "  silence %v > %v packets %d: %s %s\n", s.Local, s.Remote, s.Packets, s.Code, s.Ordinary)
	}
	return model.Either(b.Len() > 0, b.String(), "nothing\n")
}

// wrong is what contradicts itself: findings of one verdict, the list of kinds, pages.
var wrong []string

// changes are the commands of fixes that set or remove something: what, how, and its object with the link or next hop.
var changes = regexp.MustCompile(`ip (?:-6 )?(neigh|route|rule|addr) (add|replace|del) (.*)`)

// commands are those that lines of a fix and next steps run.
var commands = regexp.MustCompile(`^(az|arping|ausearch|awk|birdc|bpftool|bridge|calicoctl|cat|conntrack|dig|ebtables(-nft|-legacy)?|` +
	`ethtool|firewall-cmd|grep|head|ip6?tables(-nft|-legacy)?(-save)?|ip|journalctl|kubectl|lasthop|modprobe|nft|nsenter|ovs-appctl|` +
	`ping|sort|ss|sysctl|systemctl|tc|tcpdump|ufw|uniq|vtysh|wc)$`)

// noCommand is why a line cannot be pasted into a shell, where words would be commands; empty if it can. One that names the nodes
// for the next lines is none to be pasted.
func noCommand(line string) (why string) {
	if strings.HasPrefix(line, "on ") && strings.HasSuffix(line, ":") {
		return ""
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil {
		return err.Error()
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if call, ok := n.(*syntax.CallExpr); ok && !commands.MatchString(call.Args[0].Lit()) {
			why = "no command " + call.Args[0].Lit()
		}
		return true
	})
	return why
}

func TestNoCommand(t *testing.T) {
	for line, want := range map[string]string{
		"# restart the agent: it's what writes them":                     "",
		"on node-1, node-2:":                                             "",
		"nsenter --net=/run/netns/a ip link set dev eth0 up # it's down": "",
		"conntrack -L | awk '{print $7}' | sort | uniq -c":               "",
		"kubectl get pods -A; read their logs":                           "no command read",
		"restart the agent":                                              "no command restart",
	} {
		if got := noCommand(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if noCommand("kubectl get pods; the agent's log says why") == "" {
		t.Error("an open quote is taken")
	}
}

// contradictions are two findings that are one, one that sees no drop beside one about drops, one that clears the node
// beside another about the same ends, fixes of which one removes what the other sets, and one that is surer or less sure
// than what it says.
func contradictions(test string, s *model.Snapshot) (out []string) {
	v := Judge(s)
	removed := map[string]string{} // what a fix removes, by the finding that has it
	for _, f := range v.Findings {
		for _, m := range changes.FindAllStringSubmatch(strings.Join(f.Fix, "\n"), -1) {
			if m[2] == "del" {
				removed[m[1]+" "+m[3]] = f.Title
			}
		}
	}
	for _, f := range v.Findings {
		for _, m := range changes.FindAllStringSubmatch(strings.Join(f.Fix, "\n"), -1) {
			if by := removed[m[1]+" "+m[3]]; m[2] != "del" && by != "" && by != f.Title {
				out = append(out, fmt.Sprintf("%s: %s sets what %s removes: %s", test, f.Title, by, m[0]))
			}
		}
	}
	dropping := slices.IndexFunc(v.Causes, func(c model.DropCause) bool { return c.Code != "" })
	for i, f := range v.Findings {
		for _, line := range slices.Concat(f.Fix, f.Next) {
			if why := noCommand(line); why != "" {
				out = append(out, fmt.Sprintf("%s: %s has words for a shell: %s: %s", test, f.Title, line, why))
			}
		}
		if at := slices.IndexFunc(v.Findings[:i], func(g model.Finding) bool { return f.Same(&g) }); at >= 0 {
			out = append(out, fmt.Sprintf("%s: %s and %s are one finding", test, f.Title, v.Findings[at].Title))
		}
		if alternatives := len(f.Alternatives) > 0; alternatives && f.Confidence == model.Proven ||
			!alternatives && f.Confidence == model.Likely && len(f.Unseen) == 0 {
			out = append(out, fmt.Sprintf("%s: %s is %s: alternatives %q, unseen %q", test, f.Title, f.Confidence, f.Alternatives, f.Unseen))
		}
		for g := range model.Each(v.Findings) {
			same := g.Code != f.Code && g.Severity != model.Info && model.Meet(f.Pods, g.Pods) && meet(f.Peers, g.Peers)
			// There the one is about other ports than the other.
			if same && test != "TestPorts" && (strings.Contains(f.Why, "are not at fault") || strings.Contains(f.Why, "leave "+f.LastHopAlive.Link+" correctly")) {
				out = append(out, fmt.Sprintf("%s: %s clears the node beside %s: %s", test, f.Title, g.Code, g.Title))
			}
		}
		if strings.Contains(f.Why, "No packets are dropped") && dropping >= 0 {
			out = append(out, fmt.Sprintf("%s: %s sees no drop beside %s", test, f.Title, v.Causes[dropping].Code))
		}
	}
	return out
}

// meet reports whether two lists of far ends have one in common.
func meet(a, b []netip.Prefix) bool {
	return slices.ContainsFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
}

func compareVerdicts(held map[string][]string) (code int) {
	for test, list := range held {
		// Some tests range over maps.
		slices.Sort(list)
		path := filepath.Join("testdata", "verdicts", test+".txt")
		text := []byte(strings.Join(list, "--\n"))
		want, err := os.ReadFile(path)
		all := strings.Split(string(want), "--\n")
		if testing.Short() && !slices.ContainsFunc(list, func(x string) bool { return !slices.Contains(all, x) }) {
			continue // The short form judges a part.
		}
		if *update {
			if err := os.WriteFile(path, text, 0o644); err != nil {
				fmt.Println(err)
				code = 1
			}
			continue
		}
		if err != nil || !bytes.Equal(text, want) {
			fmt.Printf("%s: verdicts are other ones than in %s (%v); see what changes with -update and git diff\n", test, path, err)
			code = 1
		}
	}
	return code
}
