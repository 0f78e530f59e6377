package audit_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/record"
)

var update = flag.Bool("update", false, "write testdata/recorded.txt and the table in docs/accuracy.md")

// unseen are the kinds of which an audit does not find each, and why it cannot, or does not.
var unseen = map[model.Code]string{
	"BPFDrop": "what a program decides is in no table; its paths are unknown", "BlackholeRoute": "no pod has the address: nobody need ask it",
	"ConntrackRace": "only packets race", "DeadBackend": "the service is in entries of connection tracking alone",
	"InvalidDrop": "which packets are invalid, connection tracking decides", "MissingNodeRoute": "the cloud may have the route",
	"MissingTableRoute": "a pod without a rule of its own, a table without a route and one that leads to a tunnel may be meant so", "MissingUDR": "the route table is in the cloud: `--azure`, `--routes`",
	"NICDrop": "only packets overflow a queue", "NSGDrop": "the rules are in the cloud: `--azure`, `--routes`",
	"NoListener": "sockets of pods are not listed", "NoReply": "only silence shows it", "PathMTU": "only datagrams are too large: TCP learns the smaller size",
	"PodDefaultRoute": "a second network may be meant: the paths are unknown", "PodNotReplying": "only silence shows it",
	"PolicyDrop": "a policy, listed as denied; an address that nobody need ask; or a match that was not decoded, and the paths are unknown", "QueueDrop": "only packets overflow a queue",
	"ReceiveOverflow": "only packets overflow a socket", "ReversePathFilter": "where the cloud sends replies from is not in the tables, or a second network may be meant",
	"RoutingLoop": "what the network beyond sends back is not in the tables", "SNATPortExhaustion": "connections, not tables, use ports up",
	"StaleFlow": "new connections alone are followed", "UnansweredARP": "no pod has the address: nobody need ask it",
	"UnexpectedMasquerade": "how requests come to pods from outside is not followed", "UnexplainedDrop": "the tables do not drop such packets",
	"WrongNextHopMAC": "no other entry tells which MAC is right", "WrongUDR": "the route table is in the cloud: `--azure`, `--routes`",
}

// TestRecorded audits the nodes of probe/diagnose/testdata/recorded. Of a healthy one nothing is found.
func TestRecorded(t *testing.T) {
	const golden = "testdata/recorded.txt"
	files, err := filepath.Glob("../diagnose/testdata/recorded/*.rec")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings: ", err)
	}
	var out strings.Builder
	with, alone := map[model.Code]int{}, map[model.Code]int{}
	for _, file := range files {
		held, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := record.Open(bytes.NewReader(held), int64(len(held)))
		if err != nil {
			t.Fatal(err)
		}
		r, err := f.Reading(0)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		s := r.Point.Snapshot
		x := audit.Run(s, nil)
		fmt.Fprintf(&out, "%s pairs %d cut %d denied %d unsure %d\n", filepath.Base(file), x.Audit.Pairs, len(x.Audit.Cut), len(x.Audit.Denied), len(x.Audit.Unsure))
		found := diagnose.Judge(s).Findings
		codes := model.SetOf(model.Map(x.Findings, func(f model.Finding) model.Code { return f.Code }))
		for code := range model.SetOf(model.Map(found, func(f model.Finding) model.Code { return f.Code })) {
			if with[code]++; codes[code] {
				alone[code]++
			}
		}
		if beside := audit.Beside(node.New(s), found, nil); len(found)+len(beside) > 0 {
			write(&out, "by traffic", found)
			write(&out, "audit", x.Findings)
			write(&out, "beside", beside)
		} else if len(x.Findings) > 0 && strings.HasPrefix(filepath.Base(file), "healthy-") {
			t.Errorf("%s: %s", file, x.Findings[0].Title)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Error("the results are others than in ", golden, "; see what changes with -update and git diff")
	}
	checkTable(t, with, alone)
}

// checkTable wants docs/accuracy.md to say of how many nodes with a kind of finding an audit has it too, without a packet.
func checkTable(t *testing.T, with, alone map[model.Code]int) {
	const document, from, to = "../../docs/accuracy.md", "<!-- audit -->\n", "<!-- /audit -->"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	want := "| finding | nodes | by an audit | where not |\n|---|---|---|---|\n"
	for _, code := range slices.Sorted(maps.Keys(with)) {
		why := ""
		if alone[code] < with[code] {
			if why = unseen[code]; why == "" {
				t.Errorf("no reason why an audit finds %d of %d %s", alone[code], with[code], code)
			}
		}
		want += fmt.Sprintf("| `%s` | %d | %d | %s |\n", code, with[code], alone[code], why)
	}
	before, rest, begun := strings.Cut(string(text), from)
	table, after, ended := strings.Cut(rest, to)
	switch {
	case !begun || !ended:
		t.Fatalf("%s has no %q and %q", document, from, to)
	case table != want && *update:
		if err := os.WriteFile(document, []byte(before+from+want+to+after), 0o644); err != nil {
			t.Error(err)
		}
	case table != want:
		t.Errorf("%s is not what an audit finds (-update):\n%s", document, want)
	}
}

func write(b *strings.Builder, by string, list []model.Finding) {
	for _, f := range list {
		fmt.Fprintf(b, "  %s: %s %s %s %v %v\n", by, f.Severity, f.Code, f.Confidence, f.Pods, f.Peers)
	}
}
