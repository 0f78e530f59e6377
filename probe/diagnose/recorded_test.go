package diagnose

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/agree"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/path"
	"github.com/lasthop/lasthop/probe/record"
)

// TestRecorded judges what lasthop observed on nodes of the lab, and follows some packets of each: testdata/paths.txt has the hops.
func TestRecorded(t *testing.T) {
	const golden = "testdata/paths.txt"
	var paths strings.Builder
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
			fmt.Fprintln(&paths, filepath.Base(file))
			for _, e := range someEnds(s) {
				writePath(&paths, path.Trace(s, v.Findings, e))
			}
		})
	}
	if got := paths.String(); got != held(t, golden, got) {
		t.Error("paths are others than in ", golden, "; see what changes with -update and git diff")
	}
}

// someEnds are of each pod the first other end of its peers, and the next pod.
func someEnds(s *model.Snapshot) (out []path.Ends) {
	for i, p := range s.Pods {
		for _, a := range p.Known() {
			if at := slices.IndexFunc(s.Traffic.Peers, func(x model.Peer) bool { return x.Local == a && x.Remote.IsValid() }); at >= 0 {
				out = append(out, path.Ends{Pod: a, To: s.Traffic.Peers[at].Remote})
			}
			if i+1 < len(s.Pods) {
				for _, to := range s.Pods[i+1].Known() {
					out = append(out, path.Ends{Pod: a, To: to, Port: 8080, Proto: model.TCP})
				}
			}
		}
	}
	return out[:min(len(out), 6)]
}

func writePath(b *strings.Builder, p model.Path) {
	fmt.Fprintln(b, " ", p.Pod, p.To, p.Port)
	for _, hops := range [][]model.PathHop{p.Forward, p.Return} {
		b.WriteString("   ")
		for _, h := range hops {
			end := model.Either(h.Dead, " dead", "") + model.Either(h.Finding != "", " "+string(h.Finding), "")
			fmt.Fprintf(b, " %s %d-%d-%d%s;", h.Name(), h.In.N, h.Lost.N, h.Out.N, end)
		}
		b.WriteString("\n")
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
