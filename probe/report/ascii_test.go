package report_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// TestASCII: where the locale has 7 bits, so has the text, whatever names and observations hold.
func TestASCII(t *testing.T) {
	r := report.Report{Snapshot: &model.Snapshot{Node: model.Node{Name: "knöten"}}, Findings: []model.Finding{{
		Code: "NoReply", Severity: model.Critical, Title: "a title",
		Evidence: []model.Evidence{{Source: "iptables", Text: "-j DROP — counted 3 packets…"}},
	}}}
	for _, f := range []report.Format{report.Text, report.Wide} {
		text := render(t, r, f, report.Style{ASCII: true})
		if i := strings.IndexFunc(text, func(r rune) bool { return r > unicode.MaxASCII }); i >= 0 {
			t.Errorf("%s has %q", f, text[i:])
		}
		if !strings.Contains(text, "DROP - counted 3 packets...") || !strings.Contains(text, `kn\u00f6ten`) {
			t.Errorf("%s: %s", f, text)
		}
		if text := render(t, r, f, report.Style{}); !strings.Contains(text, "DROP — counted") {
			t.Errorf("%s: %s", f, text)
		}
	}
}
