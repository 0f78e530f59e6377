package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/cmd/joint"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/redact"
	"github.com/lasthop/lasthop/probe/report"
)

// checkRedacted wants the same verdict of a redacted snapshot, and no name or address
// of the real one in anything that is printed of it.
func checkRedacted(t *testing.T, r report.Report) {
	t.Helper()
	hide := redact.New("")
	hidden, err := (&observing{}).judge(hide.Snapshot(r.Snapshot), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := verdicts(hidden.Findings), verdicts(r.Findings); !slices.Equal(got, want) {
		t.Errorf("redacted, the findings are\n%s\nand not\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	printed := everything(t, hidden)
	for _, secret := range secrets(r.Snapshot, hide) {
		if at := wordAt(printed, secret); at >= 0 {
			t.Errorf("%q is printed: %s", secret, printed[max(0, at-150):min(len(printed), at+len(secret)+100)])
		}
	}
}

// wordAt is where a name stands alone in a text, which is long: a regular expression
// would take a tenth of all that the scenarios cost. It is -1 where there is none.
func wordAt(text, name string) int {
	const word = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_:-"
	for from := 0; ; {
		at := strings.Index(text[from:], name)
		if at < 0 {
			return -1
		}
		at += from
		end := at + len(name)
		before := at > 0 && (text[at-1] == '.' || strings.IndexByte(word, text[at-1]) >= 0)
		if !before && (end == len(text) || strings.IndexByte(word, text[end]) < 0) {
			return at
		}
		from = at + 1
	}
}

func TestWordAt(t *testing.T) {
	for text, want := range map[string]int{
		"10.1.0.5": 0, "to 10.1.0.5.": 3, "(10.1.0.5/24)": 1, "210.1.0.5": -1, "10.1.0.55": -1, "10.1.0.5-": -1, "x.10.1.0.5": -1,
		"10.1.0.51 10.1.0.5": 10, "": -1,
	} {
		if got := wordAt(text, "10.1.0.5"); got != want {
			t.Errorf("wordAt(%q) = %d, want %d", text, got, want)
		}
	}
}

// verdicts are findings without names, addresses and texts. Of several ends alive the
// order of addresses decides which is named.
func verdicts(list []model.Finding) []string {
	var out []string
	for _, f := range list {
		out = append(out, fmt.Sprintf("%s %s %s, %d pods, %d peers, %d packets, %d evidence, %d fixes", f.Code, f.Severity, f.Confidence,
			len(f.Pods), len(f.Peers), f.Packets, len(f.Evidence), len(f.Fix)))
	}
	slices.Sort(out)
	return out
}

// everything is a report in all forms, and the path of each of its pods.
func everything(t *testing.T, r report.Report) string {
	t.Helper()
	var b bytes.Buffer
	write := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	for _, f := range report.Formats() {
		write(report.Write(&b, r, f, report.Style{}))
	}
	j := report.Judgement{FailOn: model.Info, Strict: true}
	write(report.JUnit(&b, r, j))
	write(report.Summary(&b, r, j))
	for _, a := range report.Annotations(r, j) {
		b.WriteString(a.String() + "\n")
	}
	findings := diagnose.Judge(r.Snapshot).Findings
	for p := range model.Each(r.Snapshot.Pods) {
		for _, a := range p.Known() {
			ends, choice := joint.ChoosePeer(r.Snapshot, []netip.Addr{a}, r.Findings)
			explained := report.Path{Snapshot: r.Snapshot, Path: path.Trace(r.Snapshot, findings, ends), Findings: r.Findings, Choice: choice}
			write(report.Write(&b, explained, report.Wide, report.Style{}))
			write(report.Write(&b, explained, report.JSON, report.Style{}))
		}
	}
	return b.String()
}

// secrets are the names, addresses and MACs in a snapshot that may not be seen again:
// those that are replaced, and that nothing else is replaced by.
func secrets(s *model.Snapshot, hide *redact.Redactor) []string {
	found, instead := map[string]bool{}, map[string]bool{}
	note := func(name, other string) {
		if name != "" && name != other {
			found[name], instead[other] = true, true
		}
	}
	gather(reflect.ValueOf(*s), func(v any) {
		switch x := v.(type) {
		case netip.Addr:
			if x.IsValid() {
				note(x.String(), hide.Addr(x).String())
			}
		case model.MAC:
			note(x.String(), hide.MAC(x).String())
		}
	})
	hidden := hide.Snapshot(s)
	note(s.Node.Name, hidden.Node.Name)
	for i, p := range s.Pods {
		note(p.Namespace+"/"+p.Name, hidden.Pods[i].Namespace+"/"+hidden.Pods[i].Name)
		note(p.UID, hidden.Pods[i].UID)
		note(p.Link, hidden.Pods[i].Link)
		note(p.NetnsName, hidden.Pods[i].NetnsName)
	}
	for i, n := range s.Cluster.Nodes {
		note(n.Name, hidden.Cluster.Nodes[i].Name)
	}
	for i, p := range s.Cluster.Pods {
		note(p.Namespace+"/"+p.Name, hidden.Cluster.Pods[i].Namespace+"/"+hidden.Cluster.Pods[i].Name)
	}
	for i, x := range s.Cluster.Azure.Tables {
		note(x.Name(), hidden.Cluster.Azure.Tables[i].Name())
	}
	for i, x := range s.Cluster.Azure.Subnets {
		note(x.Name(), hidden.Cluster.Azure.Subnets[i].Name())
	}
	note(s.Cluster.Azure.Node.ResourceGroup, hidden.Cluster.Azure.Node.ResourceGroup)
	var out []string
	for name := range found {
		// Nobody could tell a name of one short word from a sentence.
		if !instead[name] && (len(name) > 4 || strings.ContainsAny(name, "0123456789-/:.")) && name != "/" {
			out = append(out, name)
		}
	}
	return out
}

// gather calls visit with every value in v.
func gather(v reflect.Value, visit func(any)) {
	visit(v.Interface())
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				gather(v.Field(i), visit)
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			gather(v.Index(i), visit)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			gather(v.Elem(), visit)
		}
	}
}
