package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
)

// accuracyFile is the environment variable that names where TestDemos writes
// its table, for `make test-lab` to print.
const accuracyFile = "LASTHOP_ACCURACY"

// trialOf is one scenario at one seed, what it expects, and what was found.
type trialOf struct {
	scenario string
	seed     int
	expect   scenario.Expect
	found    []model.Finding
	// wrong says that the verdict was not the one expected, or that there was
	// none.
	wrong bool
	// mending is what became of the findings' fixes; nil where there is none, or
	// the verdict was wrong.
	mending *mending
	// drops are those of the pods that the findings name, of any pod of a healthy
	// node.
	drops map[traced]bool
}

// matrix collects the trials of scenarios that run side by side.
type matrix struct {
	mu     sync.Mutex
	trials []trialOf
}

func (m *matrix) add(t trialOf) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trials = append(m.trials, t)
}

// decodeFindings reads what a scenario may expect of findings from a report as
// JSON.
func decodeFindings(doc []byte) ([]model.Finding, error) {
	var r struct {
		Findings []struct {
			Code       model.Code
			Severity   model.Severity
			ByTables   bool
			Confidence model.Confidence
			Nodes      []string
			Pods       []netip.Addr
			Peers      []netip.Prefix
			Title      string
			Evidence   []model.Evidence
			Fix, Steps []string
		}
	}
	if err := json.Unmarshal(doc, &r); err != nil {
		return nil, err
	}
	var out []model.Finding
	for _, f := range r.Findings {
		out = append(out, model.Finding{Code: f.Code, Severity: f.Severity, Confidence: f.Confidence, ByTables: f.ByTables, Nodes: f.Nodes, Pods: f.Pods, Peers: f.Peers,
			Title: f.Title, Evidence: f.Evidence, Fix: f.Fix, Next: f.Steps})
	}
	return out, nil
}

// astray are the codes found that the scenario does not expect. Where faults
// are expected, what is for information only may stand beside them.
func (t trialOf) astray() []model.Code {
	codes := map[model.Code]bool{}
	for _, f := range t.found {
		expected := slices.ContainsFunc(t.expect.Findings, func(w scenario.Finding) bool { return w.Code == f.Code })
		if !expected && (t.expect.Healthy() || f.Severity != model.Info || slices.Contains(t.expect.Absent, f.Code)) {
			codes[f.Code] = true
		}
	}
	return slices.Sorted(maps.Keys(codes))
}

// tally is a finding's row.
type tally struct{ scenarios, right, expected, recalled, elsewhere int }

// table says of every finding in how many scenarios it is expected, in how many
// of these the verdict is right (the right findings and pods, nothing else),
// how many of the expected findings were found, and how many scenarios gave it
// unasked. whole is true where nothing is wrong.
func (m *matrix) table() (text string, whole bool) {
	rows := map[model.Code]*tally{}
	row := func(code model.Code) *tally {
		if rows[code] == nil {
			rows[code] = &tally{}
		}
		return rows[code]
	}
	for _, p := range diagnose.Kinds() {
		row(p.Code)
	}
	var broken, right, expected, found, healthy, alarms int
	situations, seeds := map[string]bool{}, map[int]bool{}
	var wrong []string
	for _, t := range m.trials {
		codes := map[model.Code]bool{}
		good := !t.wrong
		for _, w := range t.expect.Findings {
			codes[w.Code] = true
			row(w.Code).expected++
			expected++
			if w.In(t.found) {
				row(w.Code).recalled++
				found++
			} else {
				good = false
			}
		}
		for _, code := range t.astray() {
			row(code).elsewhere++
			good = false
		}
		for code := range codes {
			row(code).scenarios++
			if good {
				row(code).right++
			}
		}
		switch {
		case t.expect.Healthy():
			healthy++
			situations[t.scenario], seeds[t.seed] = true, true
			if len(t.found) > 0 {
				alarms++
			}
		default:
			broken++
			if good {
				right++
			}
		}
		if !good && t.seed == 0 {
			wrong = append(wrong, t.scenario)
		} else if !good {
			wrong = append(wrong, fmt.Sprintf("%s seed %d", t.scenario, t.seed))
		}
	}
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FINDING\tSCENARIOS\tRIGHT\tEXPECTED\tRECALLED\tUNASKED")
	for _, code := range slices.Sorted(maps.Keys(rows)) {
		r := rows[code]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\n", code, r.scenarios, r.right, r.expected, r.recalled, r.elsewhere)
	}
	if err := w.Flush(); err != nil {
		return err.Error(), false
	}
	if slices.Sort(wrong); len(wrong) > 0 {
		fmt.Fprintf(&b, "wrong: %s\n", strings.Join(wrong, ", "))
	}
	fmt.Fprintf(&b, "healthy situations %d, seeds %d, together %d\n", len(situations), len(seeds), healthy)
	fmt.Fprintf(&b, "root cause %d/%d, recall %d/%d, false alarms %d/%d\n", right, broken, found, expected, alarms, healthy)
	return b.String(), len(wrong) == 0
}

// report writes the table down where the environment says so.
func (m *matrix) report(t *testing.T) {
	text, whole := m.table()
	if !whole {
		t.Errorf("not every scenario was judged right:\n%s", text)
	}
	var mended mendings
	for _, trial := range m.trials {
		if trial.mending != nil {
			mended = append(mended, trial.mending)
		}
	}
	writeWanted(t, accuracyFile, mended.table()+"\n"+text)
	writeWanted(t, tracersFile, m.tracers())
}

// writeWanted writes a text to the file that an environment variable names, if any.
func writeWanted(t *testing.T, variable, text string) {
	t.Helper()
	if file := os.Getenv(variable); file != "" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Error(err)
		}
	}
}

func TestAccuracyTable(t *testing.T) {
	a, b := netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.6")
	find := func(code model.Code, severity model.Severity, pods ...netip.Addr) model.Finding {
		return model.Finding{Code: code, Severity: severity, Pods: pods}
	}
	want := func(codes ...model.Code) scenario.Expect {
		e := scenario.Expect{Exit: min(1, len(codes))}
		for _, c := range codes {
			e.Findings = append(e.Findings, scenario.Finding{Code: c, Pods: []netip.Addr{a}})
		}
		return e
	}
	good := []trialOf{
		{"two", 0, want("PathMTU", "NoReply"), []model.Finding{find("PathMTU", model.Warning, a, b), find("NoReply", model.Warning, a), find("NoListener", model.Info, b)}, false, nil, nil},
		{"well", 0, want(), nil, false, nil, nil},
	}
	tests := []struct {
		name  string
		trial trialOf
		row   string
		last  string
	}{
		{"all is right", trialOf{"one", 0, want("PathMTU"), []model.Finding{find("PathMTU", model.Warning, a)}, false, nil, nil},
			"PathMTU 2 2 2 2 0", "root cause 2/2, recall 3/3, false alarms 0/1"},
		{"another pod", trialOf{"one", 0, want("PathMTU"), []model.Finding{find("PathMTU", model.Warning, b)}, false, nil, nil},
			"PathMTU 2 1 2 1 0", "root cause 1/2, recall 2/3, false alarms 0/1"},
		{"another cause besides", trialOf{"one", 0, want("PathMTU"), []model.Finding{find("PathMTU", model.Warning, a), find("UDRLimit", model.Critical)}, false, nil, nil},
			"UDRLimit 0 0 0 0 1", "root cause 1/2, recall 3/3, false alarms 0/1"},
		{"a false alarm", trialOf{"calm", 0, want(), []model.Finding{find("UDRLimit", model.Info)}, false, nil, nil},
			"UDRLimit 0 0 0 0 1", "root cause 1/1, recall 2/2, false alarms 1/2"},
		{"no verdict", trialOf{"one", 0, want("PathMTU"), nil, true, nil, nil},
			"PathMTU 2 1 2 1 0", "root cause 1/2, recall 2/3, false alarms 0/1"},
		{"the lab failed on a healthy node", trialOf{"calm", 0, want(), nil, true, nil, nil},
			"PathMTU 1 1 1 1 0", "root cause 1/1, recall 2/2, false alarms 0/2"},
	}
	for _, tt := range tests {
		text, whole := (&matrix{trials: append(slices.Clone(good), tt.trial)}).table()
		lines := strings.Split(strings.TrimSpace(text), "\n")
		row := slices.ContainsFunc(lines, func(l string) bool { return strings.Join(strings.Fields(l), " ") == tt.row })
		if !row || lines[len(lines)-1] != tt.last || whole != (tt.name == "all is right") {
			t.Errorf("%s: whole %v, want the row %q and the end %q in\n%s", tt.name, whole, tt.row, tt.last, text)
		}
	}
	variants := &matrix{trials: append(slices.Clone(good), trialOf{"well", 1, want(), nil, false, nil, nil}, trialOf{"calm", 1, want(), nil, true, nil, nil})}
	text, _ := variants.table()
	for _, line := range []string{"healthy situations 2, seeds 2, together 3", "wrong: calm seed 1"} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
}

// ofMachines are findings that no lab in network namespaces can provoke: what they count is the
// machine's or its hardware's. Fixtures with recorded counters hold them.
var ofMachines = []model.Code{
	"AllowanceExceeded", // counted by a cloud's NIC
	"BacklogFull",       // netdev_max_backlog is the machine's
	"NeighborTableFull", // all namespaces share the table, and its limits are the machine's
}

// TestEveryFindingHasAScenario: a finding that no scenario provokes on a real
// kernel is not known to work.
func TestEveryFindingHasAScenario(t *testing.T) {
	expected := map[model.Code]bool{}
	for _, name := range demos(t) {
		s, err := kind.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range s.Expect.Findings {
			expected[f.Code] = true
		}
	}
	known := map[model.Code]bool{}
	for _, p := range diagnose.Kinds() {
		known[p.Code] = true
		if expected[p.Code] == slices.Contains(ofMachines, p.Code) {
			t.Errorf("no scenario expects %s, or one does that a lab cannot have", p.Code)
		}
	}
	for code := range expected {
		if !known[code] {
			t.Errorf("a scenario expects %s, which is not in the catalogue", code)
		}
	}
}

// exitOf is the exit status of a check with these findings.
func exitOf(found []model.Finding) int {
	worst := slices.MaxFunc(append([]model.Finding{{}}, found...), func(a, b model.Finding) int {
		return cmp.Compare(a.Severity.Rank(), b.Severity.Rank())
	})
	if worst.Severity.Rank() >= model.Warning.Rank() {
		return exitFindings
	}
	return exitClean
}
