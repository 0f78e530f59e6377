package diagnose

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/agree"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
)

// TestRecorded judges what lasthop observed on nodes of the lab.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/recorded/*.rec")
	if err != nil || len(files) == 0 {
		t.Fatal("no recordings: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".rec"), func(t *testing.T) {
			s := recorded(t, file)
			v := Judge(s)
			for _, d := range agree.Disagreements(s, v.Findings, v.Causes) {
				t.Error(d)
			}
			for _, u := range agree.Unaccounted(s, v) {
				t.Error("no name for", u)
			}
		})
	}
}

// recorded is the first observation of a recording.
func recorded(t *testing.T, file string) *model.Snapshot {
	t.Helper()
	held, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := record.Open(bytes.NewReader(held), int64(len(held)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := f.Reading(0)
	if err != nil {
		t.Fatal(err)
	}
	return r.Point.Snapshot
}
