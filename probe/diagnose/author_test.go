package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestAuthor: a finding begins with who made the change that it is about, or that this is not known, and says nothing of a
// change of something else, or one that was undone.
func TestAuthor(t *testing.T) {
	ip, cni := model.Process{PID: 612, Name: "ip", Parent: 580, ParentName: "ansible"}, model.Process{PID: 7, Name: "cni"}
	change := func(kind model.ChangeKind, dst string, table int, seconds float64, by ...model.Process) model.Change {
		at := start.Add(time.Duration(seconds * float64(time.Second)))
		return model.Change{At: at, Kind: kind, Deleted: true, Table: table, Dst: prefix(dst), By: by}
	}
	gone := func(dst string, table int, seconds float64, by ...model.Process) model.Change {
		c := change(model.ChangedRoute, dst, table, seconds, by...)
		c.Type = "unicast"
		return c
	}
	kept := func(c model.Change) model.Change { c.Deleted = false; return c }
	podRoute := func() *testNode {
		n := routed()
		n.unroute("10.50.0.20/32")
		n.Routes = append(n.Routes, model.Route{Table: 254, Dst: prefix("10.50.0.0/16"), IfIndex: 2, Type: "unicast"})
		n.passes("10.50.0.20", 2, model.Ingress, model.AsDestination, 62, 31)
		n.passes("10.50.0.20", 2, model.Egress, model.AsDestination, 62, 31)
		d := n.dropOn("ens5", "IP_INHDR", "ip_forward", "203.0.113.9", "10.50.0.20", 40)
		d.First, d.Last, d.Netns = start.Add(3*time.Second), end, 1
		return n
	}
	sampled := func() *testNode {
		n := podRoute()
		d := n.Traffic.Drops[0]
		n.Traffic.Samples = []model.Sample{{Began: start.Add(1400 * time.Millisecond), Time: end, Count: 8,
			Reason: d.Reason, Location: d.Location, IfIndex: d.IfIndex, Link: d.Link, Netns: d.Netns, Src: d.Src, Dst: d.Dst}}
		return n
	}
	rule := func(from string) model.Change {
		c := change(model.ChangedRule, "0.0.0.0/0", 7, 1, ip)
		c.From = prefix(from)
		return c
	}
	at := func(seconds float64) string {
		return start.Add(time.Duration(seconds * float64(time.Second))).Format(time.TimeOnly)
	}
	byIP := at(1) + " `ip` (pid 612, started by ansible 580) deleted "
	for name, tt := range map[string]struct {
		node    func() *testNode
		changes []model.Change
		want    string
	}{
		"a pod's route":         {podRoute, []model.Change{gone("10.50.0.20/32", 254, 1, ip)}, byIP + "the route to 10.50.0.20/32; the loss was first seen 2.0 s later."},
		"its first packet":      {sampled, []model.Change{gone("10.50.0.20/32", 254, 1, ip)}, byIP + "the route to 10.50.0.20/32; the loss began 0.4 s later."},
		"its range, later":      {podRoute, []model.Change{gone("10.50.0.20/32", 254, 1, ip), gone("10.50.0.0/24", 254, 2, cni)}, byIP + "the route to 10.50.0.20/32"},
		"another pod's":         {podRoute, []model.Change{gone("10.50.0.21/32", 254, 1, ip)}, ""},
		"its peer's":            {podRoute, []model.Change{gone("203.0.113.9/32", 254, 1, ip)}, ""},
		"the default route":     {podRoute, []model.Change{gone("0.0.0.0/0", 254, 1, ip)}, ""},
		"another table's":       {podRoute, []model.Change{gone("10.50.0.20/32", 9, 1, ip)}, ""},
		"a route that is there": {podRoute, []model.Change{gone("10.50.0.0/16", 254, 1, ip)}, ""},
		"a route that came":     {podRoute, []model.Change{kept(gone("10.50.0.20/32", 254, 1, ip))}, ""},
		"before the window": {podRoute, []model.Change{gone("10.50.0.20/32", 254, -600, ip)},
			at(-600) + " `ip` (pid 612, started by ansible 580) deleted the route to 10.50.0.20/32."},
		"after the loss": {podRoute, []model.Change{gone("10.50.0.20/32", 254, 5, ip)},
			at(5) + " `ip` (pid 612, started by ansible 580) deleted the route to 10.50.0.20/32."},
		"one of two": {podRoute, []model.Change{gone("10.50.0.20/32", 254, 5, ip, cni)},
			at(5) + " `ip` (pid 612, started by ansible 580) or `cni` (pid 7) deleted the route to 10.50.0.20/32."},
		"nobody known": {podRoute, []model.Change{gone("10.50.0.20/32", 254, 5)}, at(5) + " a program that is not known deleted the route to 10.50.0.20/32."},
		"a table's":    {lacksTableRoute, []model.Change{gone("0.0.0.0/0", 7, 1, ip), gone("0.0.0.0/0", 9, 2, cni)}, byIP + "the route to 0.0.0.0/0."},
		"a rule":       {lacksTableRule, []model.Change{rule("172.20.1.5/32")}, byIP + "a routing rule from 172.20.1.5/32 to 0.0.0.0/0."},
		"another rule": {lacksTableRule, []model.Change{rule("172.20.1.6/32")}, ""},
	} {
		n := tt.node()
		healthy := Diagnose(&n.Snapshot)
		n.Changes = tt.changes
		found := Diagnose(&n.Snapshot)
		if len(found) != len(healthy) || len(found) == 0 {
			t.Fatalf("%s: %+v", name, found)
		}
		said, rest, _ := strings.Cut(found[0].Why, healthy[0].Why)
		evidence := model.Find(found[0].Evidence, func(e model.Evidence) bool { return e.Source == model.SourceChanges }).Text
		if !strings.HasPrefix(said, tt.want) || (said == "") != (tt.want == "") || rest != "" || !strings.HasPrefix(said, evidence) || (evidence == "") != (said == "") {
			t.Errorf("%s: %s %q, want %q first", name, found[0].Code, found[0].Why, tt.want)
		}
	}
}
