package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/kind"
	"github.com/lasthop/lasthop/kind/lab"
	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

var (
	testKeep  = flag.String("keep", "", "keep what TestDemos observed, and the recordings of TestBothEnds, in this `directory`")
	testEvery = flag.Bool("every", false, "have TestBothEnds record all nodes of every scenario, those that watch one included")
	testWrite = flag.Bool("update", false, "write the table of TestBothEndsTable, and the output in docs/guides")
)

// TestBothEnds records the nodes that a scenario watches at the same time, while its
// traffic runs. The verdict on all recordings must be the one expected of all, that
// on the first the one expected of it alone. A cause is one finding, and the order of
// the recordings does not matter. Then the fixes that were printed are run.
func TestBothEnds(t *testing.T) {
	t.Parallel()
	var names []string
	for _, name := range demos(t) {
		s, err := kind.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if s.Together() || *testEvery {
			names = append(names, name)
		}
	}
	for _, name := range few(names, 3) {
		s, err := kind.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			bothEnds(t, name)
		})
		// What was made on purpose in one that watches one node may name addresses.
		if seeds(t) > 1 && s.Expect.Healthy() && *testOnly == "" && (s.Together() || len(s.Faults) == 0) {
			t.Run(s.Name+" seed 1", func(t *testing.T) {
				t.Parallel()
				bothEnds(t, seeded(t, name, 1))
			})
		}
	}
}

func bothEnds(t *testing.T, name string) {
	l := upLab(t, name)
	s := l.Scenario()
	one := !s.Together()
	if one {
		s.Watch = nil
		for _, n := range l.Nodes() {
			s.Watch = append(s.Watch, scenario.Watched{Node: n.Name})
		}
	}
	files := recordEnds(t, l)
	var all, alone []string
	for i, w := range s.Watch {
		spoil(t, files[i], w)
		all = append(all, "--replay", files[i])
		if w.Node == s.Observe {
			alone = []string{"--replay", files[i]}
		}
	}
	if !one {
		verdict(t, l, s.Alone, alone)
	}
	found := verdict(t, l, s.Expect, all)
	var back []string
	for _, file := range slices.Backward(files) {
		back = append(back, "--replay", file)
	}
	if again := verdict(t, l, s.Expect, back); !reflect.DeepEqual(again, found) {
		t.Errorf("in the other order of recordings: %+v\nwant %+v", again, found)
	}
	serious := 0
	for _, f := range found {
		if f.Severity.Rank() >= model.Warning.Rank() {
			serious++
		}
	}
	if serious != len(s.Expect.Findings) && !one {
		t.Errorf("%d findings of %d causes", serious, len(s.Expect.Findings))
	}
	if len(found) > 0 && *testMend && !one && !t.Failed() {
		m := mend(t, l, named(found), lookTogether)
		t.Logf("mended by commands: %v, by words: %v", m.byCommand, m.byWords)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l.ID())
}

// cloudNames are what an az command leaves to whoever knows the cloud.
var cloudNames = regexp.MustCompile(` (RESOURCE_GROUP|ROUTE_TABLE|VNET|SUBNET|CARD)\b`)

// named are findings with those names in the first az command of each fix: what it adds
// or changes is the finding's own.
func named(found []model.Finding) []model.Finding {
	out := slices.Clone(found)
	for i := range out {
		f := &out[i]
		at := slices.IndexFunc(f.Fix, func(line string) bool { return strings.HasPrefix(line, "az ") })
		if at >= 0 {
			f.Fix = slices.Clone(f.Fix)
			f.Fix[at] = cloudNames.ReplaceAllStringFunc(f.Fix[at], strings.ToLower)
		}
	}
	return out
}

// lookTogether is the checker of several nodes.
func lookTogether(t *testing.T, l *lab.Lab, started func() error) []model.Finding {
	t.Helper()
	var replay []string
	for _, file := range recordOnce(t, l, filepath.Base(t.Name())+"-mended", started) {
		replay = append(replay, "--replay", file)
	}
	found, _, _ := judge(t, l, replay)
	return found
}

// recordEnds are the recordings of a scenario's watched nodes, made at the same time
// while its traffic runs. more are further arguments, two for each of the nodes.
func recordEnds(t *testing.T, l *lab.Lab, more ...string) []string {
	t.Helper()
	return recordOnce(t, l, filepath.Base(t.Name()), func() error { return nil }, more...)
}

// recordOnce does so once started has returned. They are kept by a name.
func recordOnce(t *testing.T, l *lab.Lab, name string, started func() error, more ...string) []string {
	t.Helper()
	s := l.Scenario()
	given, dir := &observing{}, t.TempDir()
	if *testKeep != "" {
		dir = filepath.Join(*testKeep, name)
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	remove, err := given.give(s)
	if err != nil {
		t.Fatal(err)
	}
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(errors.Join(err, remove()))
	}
	if err := started(); err != nil {
		t.Error(err)
	}
	ends := make(chan error)
	var files []string
	for _, n := range watched(l) {
		file := filepath.Join(dir, n.Name+".rec")
		files = append(files, file)
		// On a busy machine they begin some seconds apart.
		args := []string{"record", file, "--netns", n.Netns, "--host-root", l.HostRoot(n.Name), "--for", (2 * windowOf()).String()}
		for flag, value := range map[string]string{"nodes": given.Nodes, "pods": given.Pods} {
			if value != "" {
				args = append(args, "--"+flag, value)
			}
		}
		if len(more) > 0 {
			args, more = append(args, more[:2]...), more[2:]
		}
		for _, r := range given.Routes {
			args = append(args, "--routes", r)
		}
		cmd := exec.CommandContext(t.Context(), "lasthop", args...)
		go func() {
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%s: %w:\n%s", cmd, err, out)
			}
			ends <- err
		}()
	}
	for range files {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(stop(), remove()); err != nil {
		t.Error(err)
	}
	if s.Expect.Healthy() {
		for _, wrong := range unanswered(l.Stats(), 0) {
			t.Error(wrong)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return files
}

// verdict checks recordings, and wants of them what is expected.
func verdict(t *testing.T, l *lab.Lab, want scenario.Expect, replay []string) []model.Finding {
	t.Helper()
	found, exit, said := judge(t, l, replay)
	if wrong := want.Mismatches(exit, found); len(wrong) > 0 {
		var got []string
		for _, f := range found {
			got = append(got, fmt.Sprintf("%s (%s) of %v, pods %v, peers %v: %s: %q", f.Code, f.Confidence, f.Nodes, f.Pods, f.Peers, f.Title, f.Evidence))
		}
		t.Errorf("%s: %q\n%s%s", strings.Join(replay, " "), wrong, said, strings.Join(got, "\n"))
	}
	return found
}

// judge checks recordings. It returns the exit status as well, and what was said
// besides.
func judge(t *testing.T, l *lab.Lab, replay []string) (found []model.Finding, exit int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "lasthop", append([]string{"check", "-o", "json"}, replay...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var status *exec.ExitError
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	found, err = decodeFindings(out)
	if err != nil {
		t.Fatalf("%s: read the report: %v:\n%s%s", cmd, err, &errs, out)
	}
	// A recorded node is called by its namespace.
	for _, f := range found {
		for i, name := range f.Nodes {
			for _, n := range watched(l) {
				if n.Netns == name {
					f.Nodes[i] = n.Name
				}
			}
		}
	}
	return found, cmd.ProcessState.ExitCode(), errs.String()
}

// spoil gives a recording the clock that the scenario wants, and cuts it off.
func spoil(t *testing.T, file string, w scenario.Watched) {
	t.Helper()
	if w.Clock == 0 && !w.Cut {
		return
	}
	if err := rewrite(file, w); err != nil {
		t.Fatal(err)
	}
}

func rewrite(file string, w scenario.Watched) (err error) {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	from, err := record.Open(in, info.Size())
	if err != nil {
		return err
	}
	defer from.Close()
	out, err := os.Create(file + ".new")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close(), os.Rename(out.Name(), file)) }()
	to, err := record.NewWriter(out, from.Head)
	if err != nil {
		return err
	}
	for i := range from.Len() {
		r, err := from.Reading(i)
		if err != nil {
			return err
		}
		if err := to.Write(later(reflect.ValueOf(r), w.Clock).Interface().(model.Reading)); err != nil {
			return err
		}
		if w.Cut && i > from.Len()/2 {
			return out.Truncate(to.Size() - 16)
		}
	}
	return to.Close()
}

// later is a copy of a value in which all times are later.
func later(v reflect.Value, by time.Duration) reflect.Value {
	if at, ok := v.Interface().(time.Time); ok {
		if at.IsZero() {
			return v
		}
		return reflect.ValueOf(at.Add(by))
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		out := reflect.New(v.Type().Elem())
		out.Elem().Set(later(v.Elem(), by))
		return out
	case reflect.Slice:
		out := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			out.Index(i).Set(later(v.Index(i), by))
		}
		if v.IsNil() {
			return v
		}
		return out
	case reflect.Map:
		out := reflect.MakeMap(v.Type())
		for _, key := range v.MapKeys() {
			out.SetMapIndex(key, later(v.MapIndex(key), by))
		}
		if v.IsNil() {
			return v
		}
		return out
	case reflect.Struct:
		out := reflect.New(v.Type()).Elem()
		out.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out.Field(i).Set(later(v.Field(i), by))
			}
		}
		return out
	}
	return v
}

// endsTable says of each scenario that watches several nodes what one end tells, and
// what all of them tell: what TestBothEnds wants to see. The healthy ones come last.
func endsTable(t *testing.T) string {
	t.Helper()
	var broken, healthy strings.Builder
	for _, name := range demos(t) {
		s, err := kind.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Together() {
			continue
		}
		who, where, ok := strings.Cut(s.Title, ", where ")
		if !ok {
			t.Errorf("%s: the title %q does not say where", s.Name, s.Title)
		}
		to := &broken
		if s.Expect.Healthy() {
			to = &healthy
		}
		fmt.Fprintf(to, "| %s | %s | %s | %s |\n", who, where, said(t, s.Alone), said(t, s.Expect))
	}
	return "| watched | where | one end says | all say |\n|---|---|---|---|\n" + broken.String() + healthy.String()
}

// said is what is expected, in the words of a cell.
func said(t *testing.T, e scenario.Expect) string {
	t.Helper()
	var out []string
	for _, f := range e.Findings {
		if f.Confidence == "" {
			t.Errorf("%s is expected without a confidence", f)
		}
		out = append(out, fmt.Sprintf("`%s`, %s", f.Code, f.Confidence))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "; ")
}

// TestBothEndsTable: docs/accuracy.md has the table of what one end says and what
// both say.
func TestBothEndsTable(t *testing.T) {
	const document, from, to = "../../docs/accuracy.md", "<!-- both ends -->\n", "<!-- /both ends -->"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), from)
	table, after, ended := strings.Cut(rest, to)
	want := endsTable(t)
	switch {
	case !begun || !ended:
		t.Fatalf("%s has no %q and %q", document, from, to)
	case table == want:
	case *testWrite:
		if err := os.WriteFile(document, []byte(before+from+want+to+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the scenarios expect (go test ./cmd/lasthop -run TestBothEndsTable -update):\n%s", document, want)
	}
}

// TestExplainBothEnds follows a pod's packets to a pod of another node and back, with the
// counts of that pair alone at every hop of both nodes. Both pods talk to others too.
func TestExplainBothEnds(t *testing.T) {
	t.Parallel()
	l := upLab(t, "ends-no-row-there")
	files := recordEnds(t, l, "--pairs", "cart,web", "--pairs", "db,cache")
	explain := func(to string, args ...string) (p explainedPath) {
		t.Helper()
		args = append([]string{"explain", "cart", "--to", to, "-o", "json"}, args...)
		out, err := exec.CommandContext(t.Context(), "lasthop", args...).Output()
		if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != exitFindings) {
			t.Fatalf("%v: %s", err, exit.Stderr)
		}
		if err := json.Unmarshal(out, &p); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return p
	}
	p := explain("db", "--replay", files[0], "--replay", files[1])
	if !p.Pair || !p.Dead {
		t.Errorf("pair %v, dead %v", p.Pair, p.Dead)
	}
	// What leaves is counted as the same at each hop of the near node, and none of it on the
	// far one; of what comes back, the same at each hop of the node that it arrives at.
	begun, gap := p.Forward[0].Out, slices.IndexFunc(p.Forward, func(h countedHop) bool { return h.Kind == model.HopBetween })
	for i, h := range p.Forward {
		want := begun
		if i > gap {
			want = new(uint64)
		}
		if i != 0 && i != gap && (h.In == nil || !samePackets(*h.In, *want)) {
			t.Errorf("forward hop %d, %s: %v came in, want %d", h.N, h.Kind, h.In, *want)
		}
	}
	last := p.Return[len(p.Return)-1].In
	gap = slices.IndexFunc(p.Return, func(h countedHop) bool { return h.Kind == model.HopBetween })
	for _, h := range p.Return[gap+1:] {
		if h.In == nil || !samePackets(*h.In, *last) || *last == 0 {
			t.Errorf("return hop %d, %s: %v came in, want %d, and some", h.N, h.Kind, h.In, *last)
		}
	}
	// One recording has the pairs of its node.
	if one := explain(p.To.IP, "--replay", files[0]); !one.Pair || *one.Forward[0].Out != *begun {
		t.Errorf("one recording: pair %v, %d packets, want %d", one.Pair, *one.Forward[0].Out, *begun)
	}
	showBothEnds(t, files)
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	nothingLeft(t, l.ID())
}

// showBothEnds looks at recordings on the screen, where that path is the first.
func showBothEnds(t *testing.T, files []string) {
	t.Helper()
	m := startMuxed(t, 160, 50, "lasthop replay "+strings.Join(files, " "))
	m.awaitWords("recorded at the same time")
	m.keys("Enter")
	shown := m.awaitWords("2 Pods 4")
	if !strings.Contains(shown, "2 nodes") || !strings.Contains(shown, "MissingUDR, ") || !strings.Contains(shown, "✕ 1 CRIT") {
		t.Errorf("the findings of both:\n%s", shown)
	}
	m.keys("3")
	shown = m.awaitWords("counts are of this pair only")
	for _, want := range []string{" 10.244.0.", "> default/", "between the nodes", "[MissingUDR]", "pod eth0"} {
		if !strings.Contains(shown, want) {
			t.Errorf("want %q on the path:\n%s", want, shown)
		}
	}
	m.keys("r")
	m.awaitWords("Return default/")
	m.keys("w")
	m.awaitWords("10s")
	m.keys("Q")
	if shown = m.awaitWords("left 0"); !strings.Contains(shown, "could be") {
		t.Errorf("the summary:\n%s", shown)
	}
}

// samePackets reports whether two counters, which are not read at one instant, may have counted
// the same packets.
func samePackets(a, b uint64) bool { return max(a, b)-min(a, b) <= 2+max(a, b)/200 }

// explainedPath is as much of a path's document as the test reads.
type explainedPath struct {
	To              struct{ IP string }
	Pair, Dead      bool
	Forward, Return []countedHop
}

type countedHop struct {
	N    int
	Kind model.HopKind
	In   *uint64
	Out  *uint64
}
