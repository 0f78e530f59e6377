package report

import (
	"bufio"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// aPath is one of as many hops as a node has. Packets end at one of them, 0 is none; behind it
// nothing is counted.
func aPath(dead int) *model.Path {
	n := model.Counted
	p := &model.Path{Pod: netip.MustParseAddr("10.244.1.4"), To: netip.MustParseAddr("10.244.3.21"), Port: 8443, Proto: 6, Pair: true}
	p.Forward = []model.PathHop{
		{Kind: model.HopPod, Link: "eth0", Decision: "default via 10.244.1.1"},
		{Kind: model.HopLink, Role: model.RolePodLink, Link: "veth03f2", Decision: "up"},
		{Kind: model.HopBridge, Link: "cbr0", Decision: "accept", Passes: true},
		{Kind: model.HopConntrack, Decision: "no SNAT"},
		{Kind: model.HopPolicy, Decision: "filter FORWARD rule 14 drops: -s 10.244.1.4/32 -j DROP"},
		{Kind: model.HopRoute, Decision: "via 10.240.0.1 dev eth0"},
		{Kind: model.HopNeighbor, Link: "eth0", Decision: "10.240.0.1 is 12:34:56:78:9a:bc"},
		{Kind: model.HopLink, Role: model.RoleUplink, Link: "eth0", Decision: "leaves", Passes: true},
		{Kind: model.HopBeyond, Decision: "not visible from this node"},
	}
	for i := range p.Forward {
		h := &p.Forward[i]
		h.N = i + 1
		switch {
		case dead == 0 || i+1 < dead:
			h.In, h.Out, h.Lost = n(412), n(412), n(0)
		case i+1 == dead:
			h.In, h.Out, h.Lost, h.Dead, h.Finding = n(412), n(0), n(412), true, "PolicyDrop"
		}
		if h.Kind == model.HopBeyond {
			h.In, h.Out, h.Lost = model.Count{}, model.Count{}, model.Count{}
		}
	}
	p.Return = []model.PathHop{
		{N: 1, Kind: model.HopBeyond, Decision: "not visible from this node"},
		{N: 2, Kind: model.HopLink, Role: model.RoleUplink, Link: "eth0", In: n(0), Out: n(0), Lost: n(0), Decision: "nothing arrives"},
		{N: 3, Kind: model.HopConntrack}, {N: 4, Kind: model.HopRoute},
		{N: 5, Kind: model.HopBridge, Link: "cbr0"}, {N: 6, Kind: model.HopLink, Link: "veth03f2", In: n(0), Out: n(0), Lost: n(0)},
		{N: 7, Kind: model.HopPod, Link: "eth0", In: n(0)},
	}
	if dead == 0 {
		for i := range p.Return {
			if p.Return[i].In.Known {
				p.Return[i].In, p.Return[i].Out = n(398), n(398)
			}
		}
	}
	return p
}

// drawn is a drawing as text.
func drawn(d Drawing) string {
	var b strings.Builder
	p := &printer{w: bufio.NewWriter(&b)}
	p.drawing("", d)
	if err := p.w.Flush(); err != nil {
		return err.Error()
	}
	return b.String()
}

// TestHealthySplit: fewer of a pod's packets at the next hop are no loss, and no reply of others is one.
func TestHealthySplit(t *testing.T) {
	p := aPath(9)
	for i := range p.Forward[4:] {
		p.Forward[4+i].In = model.Counted(p.Forward[4+i].In.N / 2)
	}
	for pair, want := range map[bool][2]string{true: {"/s", "packets in 10s at"}, false: {"passes", "no reply from 10.244.3.21"}} {
		p.Pair = pair
		got := drawn(Drawing{Path: p, Width: 120, Window: 10 * time.Second, Hop: -1})
		if !strings.Contains(got, want[0]) || !strings.Contains(got, want[1]) || !pair && strings.Contains(got, "/s") {
			t.Errorf("of one pair %v:\n%s", pair, got)
		}
	}
}

// TestDrawing has a whole path and one that ends at each place, at several widths: all lines fit, and
// where packets end is never folded away.
func TestDrawing(t *testing.T) {
	var all strings.Builder
	for _, w := range []int{200, 120, 80, 40} {
		for _, dead := range []int{0, 1, 5, 8, 9} {
			for _, ascii := range []bool{false, true} {
				d := Drawing{
					Path: aPath(dead), Width: w, Window: 10 * time.Second, Scope: "packets of this pair only", Hop: map[bool]int{true: 1, false: -1}[dead == 9],
					Names: Names{netip.MustParseAddr("10.244.1.4"): {Namespace: "shop", Pod: "cart-7d9f"}},
				}
				got, end := drawn(d), strokes.end
				if ascii {
					got, end = ASCII(got), ASCII(end)
				}
				for line := range strings.Lines(got) {
					if n := ansi.StringWidth(strings.TrimSuffix(line, "\n")); n > w {
						t.Errorf("%d columns of %d: %q", n, w, line)
					}
					if ascii && strings.ContainsFunc(line, func(r rune) bool { return r > unicode.MaxASCII }) {
						t.Errorf("more than 7 bits: %q", line)
					}
				}
				if (dead > 0) != strings.Contains(got, end) {
					t.Errorf("at %d columns a path that ends at hop %d is\n%s", w, dead, got)
				}
				if !ascii || w == 80 {
					fmt.Fprintf(&all, "%d columns, ends at hop %d\n%s\n", w, dead, got)
				}
			}
		}
	}
	const golden = "testdata/drawing.txt"
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("%s differs: go test ./probe/report -run TestDrawing -update writes it anew. Now:\n%s", golden, all.String())
	}
}

// TestDrawingEndsShort: of a path that the tables cut off, what it was for is drawn as not reached.
func TestDrawingEndsShort(t *testing.T) {
	p := aPath(5)
	p.Forward = p.Forward[:5]
	if got := drawn(Drawing{Path: p, Width: 120, Window: time.Second, Hop: -1}); !strings.Contains(got, "10.244.3.21 ┐") || !strings.Contains(got, "not reached") {
		t.Errorf("the far end is missing:\n%s", got)
	}
	p = aPath(0)
	p.Return[4].Dead = true
	p.Return = p.Return[:5]
	if got := drawn(Drawing{Path: p, Width: 120, Window: time.Second, Hop: -1}); strings.Count(got, "┌ pod ╌") != 1 || !strings.Contains(got, "not reached") {
		t.Errorf("the pod is missing:\n%s", got)
	}
}

// TestDrawingFitsItsRows: with few lines, the direction in which packets end is drawn, the other told.
func TestDrawingFitsItsRows(t *testing.T) {
	for rows, want := range map[int][]string{0: {"╭ uplink eth0 ╮", "◄"}, 8: {"╭ uplink eth0 ╮", "return  ◄──"}, 3: {"forward ━━► ✕ ends at uplink eth0: PolicyDrop", "return  ◄──"}} {
		got := drawn(Drawing{Path: aPath(8), Width: 120, Rows: rows, Window: time.Second, Hop: -1})
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%d rows: no %q in\n%s", rows, w, got)
			}
		}
		if n := strings.Count(got, "\n"); rows > 0 && n > rows {
			t.Errorf("%d rows are %d", rows, n)
		}
	}
}

func TestUTF8(t *testing.T) {
	for env, want := range map[string]bool{"": false, "LANG=C.UTF-8": true, "LANG=C.UTF-8 LC_ALL=C": false, "LC_CTYPE=en_US.utf8 LANG=C": true, "LANG=de_DE.ISO-8859-1": false} {
		if got := UTF8(strings.Fields(env)); got != want {
			t.Errorf("%q: %v", env, got)
		}
	}
}
