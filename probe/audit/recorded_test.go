package audit_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/audit"
	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/node"
	"github.com/lasthop/lasthop/probe/record"
)

var update = flag.Bool("update", false, "write testdata/recorded.txt")

// TestRecorded audits the nodes of probe/diagnose/testdata/recorded. Of a healthy one nothing is found.
func TestRecorded(t *testing.T) {
	const golden = "testdata/recorded.txt"
	files, err := filepath.Glob("../diagnose/testdata/recorded/*.rec")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings: ", err)
	}
	var out strings.Builder
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
}

func write(b *strings.Builder, by string, list []model.Finding) {
	for _, f := range list {
		fmt.Fprintf(b, "  %s: %s %s %s %v %v\n", by, f.Severity, f.Code, f.Confidence, f.Pods, f.Peers)
	}
}
