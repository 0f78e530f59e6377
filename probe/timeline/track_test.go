package timeline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// findings are what is judged in a second, in words: a code, "!" where it is
// proven, and what of it each view shows: w the window, c what is since the
// configuration changed, r the last seconds.
func findings(words string, view byte) []model.Finding {
	var out []model.Finding
	for _, w := range strings.Fields(words) {
		name, views, _ := strings.Cut(w, "/")
		code, sure := strings.CutSuffix(name, "!")
		if !strings.ContainsRune(views, rune(view)) {
			continue
		}
		f := model.Finding{Code: model.Code(code), Title: code, Severity: model.Warning, Confidence: model.Likely, Pods: []netip.Addr{pod}}
		if sure {
			f.Confidence = model.Proven
		}
		out = append(out, f)
	}
	return out
}

func TestTracker(t *testing.T) {
	for name, tt := range map[string]struct {
		// seconds are judgements, "…" repeats the one before nine times.
		seconds string
		steady  time.Duration
		// want are the changes, with their second.
		want string
	}{
		"proven at once, closed after a pause":     {"- A!/wcr … - … - …", time.Hour, "1 +A 15 -A"},
		"likely is seen twice":                     {"- A/wcr A/wcr - … - …", time.Hour, "2 +A 7 -A"},
		"an answer that was under way":             {"- A/wcr - A/wcr - A/wcr - …", time.Hour, ""},
		"bursts are one":                           {"A!/wcr - - - A!/wcr - - - A!/wcr … - …", time.Hour, "0 +A 22 -A"},
		"what outlives its cause is none":          {"P!/wcr … U!/w … - …", time.Second, "0 +P 14 -P"},
		"mended, and only the window shows it yet": {"P!/wcr … P!/w … - …", 6 * time.Second, "0 +P 10 -P"},
		"mended a moment ago":                      {"P!/wcr … P!/w P!/w P!/wcr … - …", time.Second, "0 +P 26 -P"},
		"a silence that the window hides":          {"- S/r S/r S/wcr … - …", time.Hour, "2 +S 17 -S"},
		"a consequence in the last seconds":        {"A!/wcr B/r … - …", time.Hour, "0 +A 5 -A 7 +B 15 -B"},
		"always changing":                          {"A/w … A/w … A/w … - …", 0, "20 +A 34 -A"},
	} {
		var tr tracker
		var got []string
		open := map[int]bool{}
		second := -1
		next := func(words string) {
			second++
			tr.judge(judgement{at: at(float64(second)), window: Short, steady: tt.steady,
				whole: findings(words, 'w'), current: findings(words, 'c'), recent: findings(words, 'r')})
			for _, f := range tr.findings() {
				if was, known := open[f.ID]; was == f.Closed || !known {
					if sign := map[bool]string{false: "+", true: "-"}[f.Closed]; !known || f.Closed {
						got = append(got, fmt.Sprint(second, " ", sign, f.Code))
					}
				}
				open[f.ID] = !f.Closed
			}
		}
		before := "-"
		for _, words := range strings.Fields(tt.seconds) {
			if words != "…" {
				next(words)
				before = words
				continue
			}
			for range 9 {
				next(before)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %v, want %s", name, got, tt.want)
		}
	}
}

// TestExtent wants a finding that grows to stay the same one, and another of
// the same code to be another.
// TestMadeTwice has two programs make the same fault, one after the other: both are named. It begins when the kernel notified
// of the first change, not when the configuration before it was last read.
func TestMadeTwice(t *testing.T) {
	made := func(who string) []model.Evidence { return []model.Evidence{{Source: model.SourceChanges, Text: who}} }
	drop := model.Drop{Packets: 5, First: at(1), Last: at(9)}
	var tr tracker
	for i, by := range []string{"first", "second"} {
		f := model.Finding{Code: "A", Confidence: model.Proven, Cause: "rule=1", Packets: uint64(5 + i), Evidence: made(by)}
		on := &model.Snapshot{Changes: []model.Change{{At: at(2)}, {At: at(7)}}}
		on.Traffic.Drops = []model.Drop{drop}
		v := model.Verdict{On: on, Findings: []model.Finding{f}, Causes: []model.DropCause{{Code: "A"}}}
		tr.judge(judgement{at: at(float64(9 + i)), window: Short, steady: time.Hour, unchanged: at(5), verdict: v, since: v,
			whole: v.Findings, current: v.Findings, recent: v.Findings})
	}
	if len(tr.open) != 1 || !tr.open[0].First.Equal(at(7)) || len(tr.open[0].Made()) != 2 {
		t.Errorf("got %+v", tr.open)
	}
}

func TestExtent(t *testing.T) {
	f := func(cause string, pods ...string) model.Finding {
		x := model.Finding{Code: "NoReply", Cause: cause, Confidence: model.Proven, Peers: []netip.Prefix{netip.MustParsePrefix("10.99.0.0/24")}}
		for _, p := range pods {
			x.Pods = append(x.Pods, netip.MustParseAddr(p))
		}
		return x
	}
	var tr tracker
	for i, list := range [][]model.Finding{
		{f("a", "10.77.0.1")},
		{f("a", "10.77.0.1", "10.77.0.2"), f("b", "10.77.0.7")},
		{f("b", "10.77.0.7"), f("a", "10.77.0.2", "10.77.0.3")},
	} {
		tr.judge(judgement{at: at(float64(i)), window: Short, steady: time.Hour, whole: list, current: list, recent: list})
	}
	got := tr.findings()
	slices.SortFunc(got, func(a, b model.Tracked) int { return a.ID - b.ID })
	if len(got) != 2 || got[0].Cause != "a" || len(got[0].Pods) != 2 || got[1].Cause != "b" || !got[0].First.Equal(start) {
		t.Errorf("%+v", got)
	}
}

// TestRemnant: of a range that is silent some addresses answer again before
// others do, and some fall silent before the range is seen to.
func TestRemnant(t *testing.T) {
	about := func(code, peers string) []model.Finding {
		return []model.Finding{{Code: model.Code(code), Title: code, Severity: model.Warning, Confidence: model.Likely,
			Pods: []netip.Addr{pod}, Peers: []netip.Prefix{netip.MustParsePrefix(peers)}}}
	}
	var tr tracker
	var got []string
	second := 0
	judge := func(list []model.Finding, seconds int) {
		for range seconds {
			tr.judge(judgement{at: at(float64(second)), window: Short, steady: time.Hour, whole: list, current: list, recent: list})
			var open []string
			for _, x := range tr.open {
				open = append(open, string(x.Code))
			}
			got = append(got, strings.Join(open, "+"))
			second++
		}
	}
	judge(about("Range", "10.9.1.0/24"), 2)
	judge(about("One", "10.9.1.7/32"), 4)
	judge(nil, 3)
	judge(about("One", "10.9.1.7/32"), 2)
	judge(about("Range", "10.9.1.0/24"), 2)
	want := []string{"", "Range", "Range", "Range", "Range", "Range", "", "", "", "", "One", "One", "Range"}
	if !slices.Equal(got, want) {
		t.Errorf("open findings by second\n got %q\nwant %q", got, want)
	}
}

// TestOrder: the worst come first, of one severity those that lost most, then those that
// are open longest.
func TestOrder(t *testing.T) {
	var tr tracker
	for i, f := range []struct {
		code     model.Code
		severity model.Severity
		packets  uint64
	}{{"Later", model.Warning, 5}, {"Most", model.Warning, 900}, {"Worst", model.Critical, 1}, {"Oldest", model.Warning, 5}} {
		x := &model.Tracked{ID: i, First: at(float64(10 - i))}
		x.Code, x.Severity, x.Packets = f.code, f.severity, f.packets
		tr.open = append(tr.open, x)
	}
	var got []model.Code
	for _, f := range tr.findings() {
		got = append(got, f.Code)
	}
	if want := []model.Code{"Worst", "Most", "Oldest", "Later"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
