// Package ladder proves what lasthop can do with which rights: it runs lasthop in
// containers with the rights of each kind of debug session.
package ladder

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
)

// document has the table of rights.
const document = "../../../docs/rights.md"

var update = flag.Bool("update", false, "write the table")

// faults are one that the node's tables show, one that only counts show, and one that
// shows inside the pod.
const faults = `
topology:
  plugin: kubenet
  nodes:
    - {name: aks-1, pods: [cart, web, api]}
    - {name: aks-2, pods: [db]}
traffic:
  - {from: [aks-1/cart, aks-1/web], to: [aks-2/db, outside], proto: [tcp, udp, icmp]}
  - {from: aks-1, to: [aks-2, aks-1/cart], proto: [tcp, icmp]}
  - {from: aks-1/api, to: [aks-2/db, outside], proto: [tcp, udp]}
faults:
  - {type: wrong-neighbor, pod: aks-1/cart}
  - {type: delete-udr, node: aks-2}
  - {type: pod-without-default-route, pod: aks-1/api}
`

// up makes a node with these faults, whose traffic runs until the test ends. One of
// its pods is younger than any container of the test.
func up(t *testing.T) *machine {
	t.Helper()
	s, err := scenario.Parse("ladder.yaml", []byte(faults))
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), s, lab.Options{ID: fmt.Sprintf("ladder%d", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	end, err := l.BeginTraffic(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	node := l.Nodes()[0].Netns
	m := &machine{binary: binary, net: "/run/netns/" + node, nameless: node + ".api"}
	m.pid = fmt.Sprintf("/proc/%d/ns/pid_for_children", hold(t, "nsenter", "--net="+m.net, "unshare", "--pid", "--fork", "cat"))
	m.pod = fmt.Sprintf("/proc/%d/ns/net", hold(t, "nsenter", "--pid="+m.pid, "--net=/run/netns/"+m.nameless, "cat"))
	return m
}

// binary is where the tests' static binary is, made once, as releases are.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "lasthop-ladder-")
	if err == nil {
		binary = filepath.Join(dir, "lasthop")
		cmd := exec.Command("go", "build", "-o", binary, "..")
		cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
		err = cmd.Run()
	}
	status := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "build lasthop:", err)
	} else {
		status = m.Run()
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// row is what one profile allows.
type row struct{ check, state, gaps, doctor string }

// TestLadder runs lasthop with each profile, and compares what it can do with the
// table in the documentation.
func TestLadder(t *testing.T) {
	m, readme := up(t), custom(t)
	same := readme.but("custom, with the runtime's seccomp profile", func(p *profile) { p.runtimeDefault = true })
	least := readme.but("custom, with lasthop's seccomp profile", func(p *profile) { p.own = true })
	counting := readme.but("custom, BPF and PERFMON in place of SYS_ADMIN", func(p *profile) {
		p.capabilities[slices.Index(p.capabilities, "SYS_ADMIN")] = "BPF"
		p.capabilities = append(p.capabilities, "PERFMON")
	})
	var lesser []profile
	for i, c := range readme.capabilities {
		if !testing.Short() || i == 0 {
			lesser = append(lesser, readme.without(c))
		}
	}
	rows, documents := map[string]row{}, map[string]string{}
	var mu sync.Mutex
	try := func(p profile) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			r, seen := m.try(t, p)
			mu.Lock()
			defer mu.Unlock()
			rows[p.name], documents[p.name] = r, seen
		}
	}
	t.Run("at once", func(t *testing.T) {
		for _, p := range slices.Concat([]profile{readme, same, least, counting}, kubectl, lesser) {
			t.Run(p.name, try(p))
		}
	})
	for _, p := range []profile{same, least} {
		if rows[p.name] != rows[readme.name] {
			t.Errorf("%s: %+v; without that: %+v", p.name, rows[p.name], rows[readme.name])
		}
	}
	for _, p := range lesser {
		if rows[p.name] == rows[readme.name] {
			t.Errorf("%s nothing is lost: the profile has no need of it", p.name)
		}
	}
	var table strings.Builder
	lines := map[string]string{}
	fmt.Fprint(&table, "| session | `check --active` | `check --engine state` | incomplete | `doctor` |\n|---|---|---|---|---|\n")
	for _, p := range slices.Concat(kubectl, []profile{readme, same, least, counting}, lesser) {
		r := rows[p.name]
		lines[p.name] = fmt.Sprintf("| %s | %s | %s | %s | %s |\n", p.name, r.check, r.state, r.gaps, r.doctor)
		table.WriteString(lines[p.name])
	}
	was := compare(t, table.String())
	for name, line := range lines {
		if !strings.Contains(was, line) {
			t.Logf("%s: %s", name, documents[name])
		}
	}
}

// try runs doctor, and check with and without watching packets. It returns their documents as well.
func (m *machine) try(t *testing.T, p profile) (r row, documents string) {
	doctor := m.run(t, p, "doctor", "-o", "json")
	check := m.run(t, p, "check", "--for", "3s", "--active", "-o", "json")
	state := m.run(t, p, "check", "--for", "1s", "--engine", "state", "-o", "json")
	gaps := doctor.gaps(t, "sources")
	if doctor.status == 0 {
		gaps = slices.Concat(gaps, doctor.gaps(t, "features"), check.gaps(t, "sources"))
	}
	slices.Sort(gaps)
	if slices.Contains(gaps, "all") {
		gaps = []string{"everything"}
	}
	return row{
		check: check.verdict(t), state: state.verdict(t),
		gaps: cmp.Or(strings.Join(slices.Compact(gaps), ", "), "none"), doctor: doctor.advice(t),
	}, doctor.stdout + check.stdout + check.stderr + state.stdout + state.stderr
}

// gaps are the entries of a list of the document that are not whole. That the other
// nodes are not known is no matter of rights.
func (r result) gaps(t *testing.T, list string) []string {
	t.Helper()
	var document map[string]json.RawMessage
	var entries []struct{ Name, Status string }
	if err := json.Unmarshal([]byte(r.stdout), &document); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	if err := json.Unmarshal(document[list], &entries); err != nil {
		t.Fatalf("%s: %v", list, err)
	}
	var out []string
	for _, e := range entries {
		if e.Status != "ok" && e.Name != "nodes" {
			out = append(out, e.Name)
		}
	}
	return out
}

// verdict is the exit status of check with what it found.
func (r result) verdict(t *testing.T) string {
	t.Helper()
	if r.status == 3 {
		return "3"
	}
	var report struct {
		Findings []struct{ Code, Confidence string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	found := map[string]bool{}
	for _, f := range report.Findings {
		found[f.Code+" "+f.Confidence] = true
	}
	words := cmp.Or(strings.Join(slices.Sorted(maps.Keys(found)), ", "), "no finding, reported as incomplete")
	return fmt.Sprintf("%d: %s", r.status, words)
}

var lacks = regexp.MustCompile(`missing capabilities: ([^.]*)\.`)

// advice is the exit status of doctor with what would help.
func (r result) advice(t *testing.T) string {
	t.Helper()
	switch found := lacks.FindStringSubmatch(r.stderr); {
	case r.status == 0:
		return "0"
	case strings.Contains(r.stderr, "this network namespace does not belong to a node"):
		return "3: the container is not in the node's network namespace"
	case found != nil:
		return fmt.Sprintf("%d: missing %s", r.status, found[1])
	}
	t.Fatalf("status %d without advice: %s", r.status, r.stderr)
	return ""
}

// contains reports whether all lines of the part are in the whole table.
func contains(whole, part string) bool {
	for line := range strings.Lines(part) {
		if !strings.Contains(whole, line) {
			return false
		}
	}
	return true
}

// compare wants the table between the marks of the document, and returns what was there.
func compare(t *testing.T, table string) (was string) {
	t.Helper()
	const begin, end = "<!-- ladder -->\n", "<!-- /ladder -->"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), begin)
	was, after, found := strings.Cut(rest, end)
	switch {
	case !found:
		t.Fatalf("%s has no place for the table", document)
	case *update:
		if err := os.WriteFile(document, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case was != table && !(testing.Short() && contains(was, table)):
		t.Errorf("%s is not what was seen (go test ./cmd/lasthop/ladder -update):\n%s", document, table)
	}
	return was
}
