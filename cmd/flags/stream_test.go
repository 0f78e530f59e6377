package flags

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestPrint: without UTF-8 a text has 7 bits, whatever names and observations hold, and a document has not.
func TestPrint(t *testing.T) {
	r := report.Report{Snapshot: &model.Snapshot{Node: model.Node{Name: "knöten"}}, Findings: []model.Finding{{
		Code: "NoReply", Severity: model.Critical, Title: "a title — long…",
		Evidence: []model.Evidence{{Source: "iptables", Text: "-j DROP — counted 3 packets…"}},
	}}}
	rich, plain := []string{"knöten", "DROP — counted 3 packets…"}, []string{`kn\u00f6ten`, "DROP - counted 3 packets..."}
	for _, c := range []struct {
		format report.Format
		locale string
		want   []string
	}{
		{report.Text, "C", plain}, {report.Wide, "POSIX", plain}, {report.InBrief, "C", []string{"a title - long..."}},
		{report.Text, "C.UTF-8", rich}, {report.Markdown, "C", rich}, {report.JSON, "C", rich}, {report.YAML, "C", rich},
	} {
		t.Setenv("LC_ALL", c.locale)
		var out bytes.Buffer
		if err := Print(&out, r, c.format, "auto"); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s in %s has no %q: %s", c.format, c.locale, want, out.String())
			}
		}
	}
}

// TestText: characters may be written in parts.
func TestText(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	const text, want = "a — b…𝄞ö→", `a - b...\U0001d11e\u00f6->`
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := Text(Text(&out))
		for rest := []byte(text); len(rest) > 0; {
			part := rest[:min(size, len(rest))]
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
			rest = rest[len(part):]
		}
		if out.String() != want || Document(w) != io.Writer(&out) {
			t.Errorf("in parts of %d bytes: %q, want %q", size, out.String(), want)
		}
	}
}
