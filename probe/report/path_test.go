package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/joshdk/go-junit"
	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// explained is a path with a dead hop, one that nobody sees, and unknown counts.
func explained() report.Path {
	n := model.Counted
	return report.Path{
		Snapshot: node(), Findings: []model.Finding{staleRewrite()}, Others: []model.Finding{missingUDR()},
		Path: model.Path{
			Pod: cart, To: client, Port: 8443, Proto: 6, Pair: true,
			Forward: []model.PathHop{
				{N: 1, Kind: model.HopPod, Role: model.RolePod, Link: "eth0", Out: n(412), Lost: n(0), Decision: "default via 10.60.0.1 dev eth0", Rules: []string{"default via 10.60.0.1 dev eth0", "10.60.0.1 dev eth0 lladdr 12:34:56:78:9a:bc REACHABLE"}},
				{N: 2, Kind: model.HopLink, Role: model.RolePodLink, Link: "port7", In: n(412), Out: n(412), Lost: n(0), Decision: "port of br0"},
				{N: 3, Kind: model.HopConntrack, In: n(412), Out: n(412), Lost: n(0), Decision: "no translation"},
				{N: 4, Kind: model.HopNeighbor, Link: "nic0", In: n(412), Decision: "10.60.0.1 dev nic0 lladdr 12:34:56:78:9a:bc REACHABLE"},
				{N: 5, Kind: model.HopLink, Role: model.RoleUplink, Link: "nic0", Decision: "leaves"},
				{N: 6, Kind: model.HopBeyond, Decision: "not visible from this node"},
			},
			Return: []model.PathHop{
				{N: 1, Kind: model.HopBeyond, Out: n(40), Decision: "10.60.0.9: not visible from this node"},
				{N: 2, Kind: model.HopLink, Role: model.RoleUplink, Link: "nic0", In: n(40), Out: n(40), Lost: n(0), Decision: "arrives"},
				{N: 3, Kind: model.HopBridge, Role: model.RoleBridge, Link: "br0", In: n(40), Out: n(0), Lost: n(40), Dead: true, Finding: "StaleMACRewrite", Decision: "frames are for a2:96:88:20:cb:c6, which is behind no port; the pod has 0a:58:0a:3c:00:20", Rules: []string{"ebtables nat PREROUTING 4 (nft): -i nic0 -j dnat"}},
			},
		},
	}
}

// hostilePath holds what no terminal may see wherever text comes from outside.
func hostilePath() report.Path {
	const evil = "\x1b[2J\u202e|`*\n"
	s := node()
	s.Node.Name, s.Pods[0].Name = evil, evil
	f := staleRewrite()
	f.Title, f.Why = evil, evil
	hop := model.PathHop{N: 1, Kind: model.HopLink, Link: evil, Decision: evil, Rules: []string{evil}, Finding: evil}
	return report.Path{
		Snapshot: s, Choice: evil, Limits: []string{evil}, Findings: []model.Finding{f}, Others: []model.Finding{f},
		Path: model.Path{Pod: cart, To: till, Forward: []model.PathHop{hop}, Return: []model.PathHop{hop}},
	}
}

func TestPathGolden(t *testing.T) {
	unseen := explained()
	unseen.Snapshot, unseen.Findings, unseen.Others = unwatched(), nil, nil
	unseen.Choice = "to 10.60.0.9, the pod's busiest peer in the window; --to selects another"
	unseen.Path.Pair, unseen.Path.Return = false, unseen.Path.Return[:1]
	for i := range unseen.Path.Forward {
		h := &unseen.Path.Forward[i]
		h.In, h.Out, h.Lost = model.Count{}, model.Count{}, model.Count{}
	}
	for _, tt := range []struct {
		name   string
		path   report.Path
		format report.Format
		style  report.Style
	}{
		{"path.txt", explained(), report.Text, report.Style{}},
		{"path-color.txt", explained(), report.Text, report.Style{Color: true}},
		{"path-wide.txt", explained(), report.Wide, report.Style{}},
		{"path.json", explained(), report.JSON, report.Style{}},
		{"path.ndjson", explained(), report.NDJSON, report.Style{}},
		{"path.yaml", explained(), report.YAML, report.Style{}},
		{"path.md", explained(), report.Markdown, report.Style{}},
		{"path-unwatched.txt", unseen, report.Text, report.Style{}},
		{"path-empty.txt", report.Path{Snapshot: &model.Snapshot{}}, report.Wide, report.Style{}},
		{"path-hostile.txt", hostilePath(), report.Wide, report.Style{}},
		{"path-hostile.md", hostilePath(), report.Markdown, report.Style{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			if err := report.Write(&b, tt.path, tt.format, tt.style); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", tt.name)
			if *update {
				if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("%s differs from what is written (go test -update, then review):\n%s", file, b.String())
			}
		})
	}
}

// TestPathIsClean: no format lets a character through that acts on a terminal.
func TestPathIsClean(t *testing.T) {
	for _, f := range report.Formats() {
		var b bytes.Buffer
		if err := report.Write(&b, hostilePath(), f, report.Style{}); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(b.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%s: %q", f, b.String()[i:])
		}
	}
}

// TestPathDocuments: JSON and YAML say the same, and no unknown count is there.
func TestPathDocuments(t *testing.T) {
	var j, y bytes.Buffer
	if err := errors.Join(report.Write(&j, explained(), report.JSON, report.Style{}), report.Write(&y, explained(), report.YAML, report.Style{})); err != nil {
		t.Fatal(err)
	}
	var fromJSON, fromYAML any
	if err := errors.Join(json.Unmarshal(j.Bytes(), &fromJSON), yaml.Unmarshal(y.Bytes(), &fromYAML)); err != nil {
		t.Fatal(err)
	}
	a, err := json.Marshal(fromJSON)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(fromYAML)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Errorf("json %s\nyaml %s", a, b)
	}
	var doc struct {
		Kind    string
		Forward []map[string]any
	}
	if err := json.Unmarshal(j.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	first := doc.Forward[0]
	if _, there := first["in"]; doc.Kind != "Path" || there || first["out"] != 412.0 || first["lost"] != 0.0 {
		t.Errorf("kind %s, first hop %v", doc.Kind, first)
	}
}

// TestPathInside: a loopback address is the pod's, and what goes there leaves no
// count to speak of.
func TestPathInside(t *testing.T) {
	r := explained()
	r.Path.To = netip.MustParseAddr("127.0.0.1")
	hop := model.PathHop{N: 1, Kind: model.HopPod, Role: model.RolePod, Link: "lo"}
	r.Path.Forward, r.Path.Return = []model.PathHop{hop}, []model.PathHop{hop}
	r.Snapshot.Links = append(r.Snapshot.Links, model.Link{Index: 1, Name: "lo", Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}})
	var b bytes.Buffer
	if err := report.Write(&b, r, report.Text, report.Style{}); err != nil {
		t.Fatal(err)
	}
	head := strings.Join(strings.Split(b.String(), "\n")[:2], "\n")
	if strings.Contains(head, "this node") || !strings.Contains(head, "the packets stay inside the pod") {
		t.Errorf("got\n%s", head)
	}
}

// TestPathOfInfo: a hop at which packets end for no more than an info is not called
// dead, since check does not fail for it.
func TestPathOfInfo(t *testing.T) {
	for severity, want := range map[model.Severity]string{
		model.Info:    "\npackets end at hop 3 of the return path: bridge br0 (StaleMACRewrite, info)\n",
		model.Warning: "\ndead at hop 3 of the return path: bridge br0 (StaleMACRewrite)\n",
	} {
		p := explained()
		p.Findings[0].Severity = severity
		var b bytes.Buffer
		if err := report.Write(&b, p, report.Text, report.Style{}); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%s: %v: want %q in\n%s", severity, err, want, &b)
		}
	}
}

// TestPathForCI: a job fails for a path as the exit status says: for a hop at which
// packets end, unless that is for a finding below the severity that fails.
func TestPathForCI(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*report.Path)
		failOn model.Severity
		// failed are the tests that fail, said how many annotations there are.
		failed string
		said   int
	}{
		"a finding":               {func(*report.Path) {}, model.Warning, "return path, StaleMACRewrite", 1},
		"a finding below":         {func(r *report.Path) { r.Findings[0].Severity = model.Warning }, model.Critical, "", 1},
		"a dead hop by itself":    {func(r *report.Path) { r.Findings, r.Path.Return[2].Finding = nil, "" }, model.Critical, "return path", 1},
		"no dead hop":             {func(r *report.Path) { r.Findings, r.Path.Return[2].Finding, r.Path.Return[2].Dead = nil, "", false }, model.Warning, "", 0},
		"both ends, all was read": {func(r *report.Path) { r.Far = node() }, model.Warning, "return path, StaleMACRewrite", 1},
		"a name that attacks both": {func(r *report.Path) {
			r.Path.Return[2].Decision, r.Path.Return[2].Finding, r.Findings = evilName, "", nil
		}, model.Warning, "return path", 1},
	} {
		r := explained()
		c.change(&r)
		j := report.Judgement{FailOn: c.failOn}
		var b, summary bytes.Buffer
		if err := errors.Join(report.JUnit(&b, r, j), report.Summary(&summary, r, j)); err != nil {
			t.Fatal(err)
		}
		suites, err := junit.Ingest(b.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var failed, all []string
		for _, s := range suites {
			for _, x := range s.Tests {
				all = append(all, x.Name)
				if x.Error != nil {
					failed = append(failed, x.Name)
				}
			}
		}
		if got := strings.Join(failed, ", "); got != c.failed || !slices.Contains(all, "forward path") {
			t.Errorf("%s: of %q failed %q, want %q", name, all, got, c.failed)
		}
		if got := report.Annotations(r, j); len(got) != c.said || c.said > 0 && strings.Contains(got[0].String(), "\n") {
			t.Errorf("%s: annotations %q, want %d", name, got, c.said)
		}
		if r.Fails(c.failOn) != slices.Contains(failed, "return path") || !strings.HasPrefix(summary.String(), "# lasthop: ") {
			t.Errorf("%s: fails %v, summary %s", name, r.Fails(c.failOn), summary.String())
		}
	}
}
