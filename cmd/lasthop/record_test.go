package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/record"
	"github.com/lasthop/lasthop/probe/timeline"
)

// TestEndedRecording ends a recording by signals: after an interrupt it is
// whole, and after SIGKILL good up to its last reading.
func TestEndedRecording(t *testing.T) {
	t.Parallel()
	s, err := load("healthy-kubenet")
	if err != nil {
		t.Fatal(err)
	}
	l := upScenario(t, s)
	for _, tt := range []struct {
		signal syscall.Signal
		status int
		said   string
		warned string
	}{
		{syscall.SIGINT, exitInterrupted, "interrupted", ""},
		{syscall.SIGKILL, -1, "", "the recording is truncated"},
	} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "a.rec")
			control, tty := openTerminal(t)
			cmd := exec.Command("lasthop", "record", file, "--netns", l.Nodes()[0].Netns)
			cmd.Stderr = tty
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			tty.Close()
			said := readUntil(t, control, "recording: 0s")
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			said += readUntil(t, control, "")
			var exit *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != tt.status || !strings.Contains(said, tt.said) {
				t.Errorf("%v, want status %d; it said:\n%s", err, tt.status, said)
			}
			replay := exec.Command("lasthop", "replay", file)
			var warned strings.Builder
			replay.Stderr = &warned
			out, err := replay.Output()
			if err != nil || !strings.Contains(string(out), "kubenet") {
				t.Errorf("replay: %v:\n%s", err, out)
			}
			if tt.warned == "" && warned.Len() > 0 || !strings.Contains(warned.String(), tt.warned) {
				t.Errorf("replay warned %q, want %q", warned.String(), tt.warned)
			}
		})
	}
}

// TestReplaySocket replays what comes from a socket, which no path opens.
func TestReplaySocket(t *testing.T) {
	t.Parallel()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	from, to := os.NewFile(uintptr(ends[0]), "from"), os.NewFile(uintptr(ends[1]), "to")
	defer from.Close()
	if _, err := to.WriteString("what is no recording"); err != nil {
		t.Fatal(err)
	}
	to.Close()
	cmd := exec.Command("lasthop", "replay", "-")
	cmd.Stdin = from
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "recording -: byte 0: not a lasthop recording") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestClosedFinding: a replay tells what was there all along its window, however short that
// is, and what came and went in it, with the times.
func TestClosedFinding(t *testing.T) {
	begin := time.Date(2026, 2, 3, 10, 0, 0, 0, time.UTC)
	during := func(spans ...int) func(int) bool {
		return func(second int) bool {
			for i := 0; i < len(spans); i += 2 {
				if spans[i] <= second && second < spans[i+1] {
					return true
				}
			}
			return false
		}
	}
	for _, tt := range []struct {
		name string
		// row and link are when the way to other pods is missing, and the pod's link down.
		row, link func(second int) bool
		args      []string
		// want is a finding's code, when it opened and closed, and how often.
		want string
	}{
		{"the row is gone from the beginning", during(-1, 99), during(), nil, "MissingUDR -"},
		{"the last 6 s of that", during(-1, 99), during(), []string{"--for", "6s"}, "MissingUDR -"},
		{"8 s", during(-1, 99), during(), []string{"--for", "8s"}, "MissingUDR -"},
		{"10 s", during(-1, 99), during(), []string{"--for", "10s"}, "MissingUDR -"},
		{"it goes, and comes back", during(10, 20), during(), nil, "MissingUDR 10:00:10-10:00:18"},
		{"before the window", during(2, 12), during(), []string{"--for", "6s"}, ""},
		{"it goes", during(18, 99), during(), nil, "MissingUDR 10:00:18-"},
		{"a moment without replies", during(14, 16), during(), nil, ""},
		{"a link that flaps", during(), during(4, 8, 12, 16), nil, "PodLinkDown 10:00:04-10:00:14"},
		{"a link that is down now and then", during(), during(4, 8, 18, 22), nil, "PodLinkDown 10:00:04-10:00:20 2x"},
		{"not asked for", during(10, 20), during(), []string{"--skip", "MissingUDR", "--skip", "NoReply"}, ""},
		{"nothing wrong", during(), during(), nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "a.rec")
			writeRecording(t, name, begin, 0, 30, tt.row, tt.link)
			tells(t, tt.want, append([]string{name}, tt.args...)...)
		})
	}
}

// TestClosedInSegment: of what closed in a recording that began meanwhile, who recorded it knew more than it shows.
func TestClosedInSegment(t *testing.T) {
	name := filepath.Join(t.TempDir(), "segment.rec")
	writeRecording(t, name, time.Date(2026, 2, 3, 10, 0, 0, 0, time.UTC), 18, 40,
		func(second int) bool { return second < 20 }, func(int) bool { return false })
	tells(t, "MissingUDR 10:00:00-10:00:18", name)
	tells(t, "", name, "--for", "6s")
}

// TestOpenAtEnd: what was open at the end of a recording is told, whatever part of it is judged: who recorded it had seen
// more than the recording shows.
func TestOpenAtEnd(t *testing.T) {
	begin := time.Date(2026, 2, 3, 10, 0, 0, 0, time.UTC)
	healthy, name := filepath.Join(t.TempDir(), "healthy.rec"), filepath.Join(t.TempDir(), "a.rec")
	never := func(int) bool { return false }
	writeRecording(t, healthy, begin, 0, 30, never, never)
	from, closeFile, err := openRecorded(healthy)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFile()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.NewWriter(file, from.Head)
	if err != nil {
		t.Fatal(err)
	}
	for n := range from.Len() {
		r, err := from.Reading(n)
		if err != nil {
			t.Fatal(err)
		}
		if n >= 26 {
			r.Findings = []model.Tracked{{ID: 1, First: begin.Add(24 * time.Second), Last: r.At, Finding: model.Finding{
				Code: "MissingUDR", Severity: model.Critical, Confidence: model.Likely, Title: "no route",
				Pods: []netip.Addr{netip.MustParseAddr("10.77.0.5")}, Peers: []netip.Prefix{netip.MustParsePrefix("10.77.1.0/24")}}}}
		}
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	tells(t, "MissingUDR 10:00:24-", name)
	tells(t, "MissingUDR 10:00:24-", name, "--for", "7s")
}

// tells wants a replay to tell findings: the code of each, when it was first and last seen,
// and how often.
func tells(t *testing.T, want string, args ...string) {
	t.Helper()
	var stdout, stderr strings.Builder
	code := run(append([]string{"replay", "-o", "json"}, args...), &stdout, &stderr)
	var doc struct {
		Findings []struct {
			Code           string
			Opened, Closed time.Time
			Times          int
		}
	}
	if err := json.Unmarshal([]byte(stdout.String()), &doc); err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	var got []string
	for _, f := range doc.Findings {
		text := f.Code + " "
		for _, at := range []time.Time{f.Opened, f.Closed} {
			if !at.IsZero() {
				text += at.Format("15:04:05")
			}
			text += "-"
		}
		if text = strings.TrimSuffix(text, "-"); f.Times > 1 {
			text += fmt.Sprintf(" %dx", f.Times)
		}
		got = append(got, text)
	}
	if all := strings.Join(got, ", "); all != want {
		t.Errorf("%q, want %q", all, want)
	}
	if status := map[bool]int{true: exitClean, false: exitFindings}[want == ""]; code != status || stderr.Len() > 0 {
		t.Errorf("status %d, want %d: %s", code, status, &stderr)
	}
}

// TestRandomWindows cuts recordings at random windows, as --last and --at do: each has a snapshot, of what was counted
// in it; what is wrong all along is found where the state of before shows it, and nothing where nothing is wrong.
func TestRandomWindows(t *testing.T) {
	const seconds, broken, mended = 150, 40, 100
	windows := amount(60, 1000)
	begin := time.Date(2026, 2, 3, 10, 0, 0, 0, time.UTC)
	at := func(t time.Time) float64 { return t.Sub(begin).Seconds() }
	never, during := func(int) bool { return false }, func(second int) bool { return broken <= second && second < mended }
	for _, tt := range []struct {
		code      model.Code
		row, link func(second int) bool
		every     int
		// state is when the first state was read that shows the cause.
		state float64
	}{
		{"", never, never, 30, 0}, {"", never, never, 2, 0}, {"", never, never, 1000, 0},
		{"MissingUDR", during, never, 30, broken}, {"MissingUDR", during, never, 2, broken},
		{"MissingUDR", during, never, 1000, broken},
		{"PodLinkDown", never, during, 30, 60}, {"PodLinkDown", never, during, 2, broken},
	} {
		t.Run(fmt.Sprintf("%s, a state each %d s", cmp.Or(tt.code, "healthy"), tt.every), func(t *testing.T) {
			t.Parallel()
			name := filepath.Join(t.TempDir(), "a.rec")
			recordNode(t, name, record.Head{Began: begin}, begin, 0, seconds, tt.every, tt.row, tt.link)
			whole, closeFile, err := openRecorded(name)
			if err != nil {
				t.Fatal(err)
			}
			defer closeFile()
			o := given(t)
			random := rand.New(rand.NewPCG(37, 1))
			found := 0
			for range windows {
				w := model.Window{Start: begin.Add(time.Duration(random.Int64N(int64(seconds * time.Second))))}
				w.End = w.Start.Add(time.Duration(random.Int64N(int64(40 * time.Second))))
				s := cutAgain(t, whole, w)
				start, end := at(s.Window.Start), at(s.Window.End)
				if want := min(at(w.End), seconds); start > at(w.Start) || end < want || end > want+1 || at(w.Start)-start > 31 {
					t.Fatalf("%v to %v: %v to %v", at(w.Start), at(w.End), start, end)
				}
				if len(s.Pods) != 1 || s.Traffic.Peers == nil && end-start >= 1 {
					t.Fatalf("%v: %d pods, %d peers", w, len(s.Pods), len(s.Traffic.Peers))
				}
				r, err := o.judge(&s, nil, nil)
				if err != nil {
					t.Fatal(err)
				}
				var codes []model.Code
				for _, f := range r.Findings {
					codes = append(codes, f.Code)
				}
				switch clear := end < broken || start >= mended+30; {
				case tt.code == "" || clear:
					if len(codes) > 0 {
						t.Fatalf("%v to %v: %v, want nothing", start, end, codes)
					}
				case start >= tt.state && end < mended && end-start >= 3:
					if found++; !slices.Contains(codes, tt.code) {
						t.Fatalf("%v to %v: %v, want %s", start, end, codes, tt.code)
					}
				}
			}
			if tt.code != "" && found < windows/20 {
				t.Errorf("only %d windows lie in the fault", found)
			}
		})
	}
}

// cutAgain is the snapshot of a window of a recording as --at has it.
func cutAgain(t *testing.T, whole *record.File, w model.Window) model.Snapshot {
	t.Helper()
	part, size, err := record.Join([]*record.File{whole}, w)
	if err != nil {
		t.Fatal(err)
	}
	f, err := record.Open(part, size)
	if err != nil || f.Damage != nil {
		t.Fatal(err, f.Damage)
	}
	defer f.Close()
	if s, err := whole.Span(w); err != nil || s.Window.End.Before(s.Window.Start) || len(s.Pods) != 1 {
		t.Fatalf("%v: %v, %v, %d pods", w, err, s.Window, len(s.Pods))
	}
	s, err := f.Window(f.At(f.Len() - 1).Sub(w.Start))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestClosedTogether: the same of several nodes' recordings.
func TestClosedTogether(t *testing.T) {
	begin := time.Date(2026, 2, 3, 10, 0, 0, 0, time.UTC)
	never := func(int) bool { return false }
	for _, tt := range []struct {
		name string
		row  func(second int) bool
		want string
	}{
		{"it goes, and comes back", func(second int) bool { return second >= 10 && second < 20 }, "MissingUDR 10:00:10-10:00:18"},
		{"it goes", func(second int) bool { return second >= 18 }, "MissingUDR 10:00:18-"},
		{"nothing wrong", never, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			one, two := filepath.Join(dir, "one.rec"), filepath.Join(dir, "two.rec")
			writeRecording(t, one, begin, 0, 30, tt.row, never)
			writeOther(t, two, begin, 30)
			tells(t, tt.want, one, two)
			tells(t, tt.want, two, one)
			tells(t, tt.want, one, two, "--redact")
		})
	}
}

// writeOther records another node, on which nothing happens.
func writeOther(t *testing.T, name string, begin time.Time, seconds int) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.NewWriter(file, record.Head{Window: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i := range seconds + 1 {
		s := &model.Snapshot{
			Node: model.Node{Name: "two", Plugin: "kubenet", Engine: "tc", Uplinks: []string{"eth0"}},
			Links: []model.Link{{Index: 2, Name: "eth0", Role: model.RoleUplink, Up: true, Carrier: true, MAC: model.MAC{2, 0, 0, 0, 0, 0x22},
				Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.5/24")}}},
			Window: model.Window{Start: begin, End: begin.Add(time.Duration(i) * time.Second)},
		}
		if err := w.Write(model.Reading{At: s.Window.End, Point: model.Point{Snapshot: s, Whole: true, Ready: s.Window.End}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// writeRecording is recordNode with state in each second reading.
func writeRecording(t *testing.T, name string, begin time.Time, first, seconds int, row, link func(second int) bool) {
	t.Helper()
	recordNode(t, name, record.Head{Window: 10 * time.Second}, begin, first, seconds, 2, row, link)
}

// recordNode records a node of which a pod asks two pods of another node and a machine
// beside the nodes, each second, and writes it from the first on. There is a state each so many readings.
func recordNode(t *testing.T, name string, head record.Head, begin time.Time, first, seconds, every int, row, link func(second int) bool) {
	t.Helper()
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.NewWriter(file, head)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddr
	pod, gateway, mac := at("10.77.0.5"), at("10.50.0.1"), model.MAC{2, 0, 0, 0, 0, 1}
	s := &model.Snapshot{
		Node: model.Node{Name: "one", Plugin: "kubenet", Engine: "tc", Uplinks: []string{"eth0"}},
		Links: []model.Link{
			{Index: 2, Name: "eth0", Role: model.RoleUplink, Up: true, Carrier: true, MAC: model.MAC{2, 0, 0, 0, 0, 2}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.50.0.4/24")}},
			{Index: 3, Name: "cbr0", Kind: "bridge", Role: model.RoleBridge, Up: true, Carrier: true, MAC: model.MAC{2, 0, 0, 0, 0, 3}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}},
		},
		Routes: []model.Route{
			{Table: 254, Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway, IfIndex: 2, Link: "eth0", Type: "unicast"},
			{Table: 254, Dst: netip.MustParsePrefix("10.50.0.0/24"), IfIndex: 2, Link: "eth0", Type: "unicast"},
			{Table: 254, Dst: netip.MustParsePrefix("10.77.0.0/24"), IfIndex: 3, Link: "cbr0", Type: "unicast"},
		},
		Neighbors: []model.Neighbor{{Addr: gateway, IfIndex: 2, Link: "eth0", MAC: mac, State: "REACHABLE"}},
	}
	for _, source := range []string{model.SourceTC, model.SourceDrops, model.SourceLinks, model.SourceRoutes, model.SourceNeighbors, model.SourcePods} {
		s.Sources = append(s.Sources, model.Source{Name: source, Status: model.OK})
	}
	line := timeline.New(diagnose.Judge, timeline.Short)
	var peers []model.Peer
	for _, far := range []string{"10.77.1.8", "10.77.1.9", "10.50.0.9"} {
		peers = append(peers, model.Peer{Local: pod, Remote: at(far), IfIndex: 2, Link: "eth0"})
	}
	for i := range seconds + 1 {
		now := *s
		now.Window = model.Window{Start: begin, End: begin.Add(time.Duration(i) * time.Second)}
		up := !link(i)
		now.Links = append(slices.Clone(s.Links), model.Link{
			Index: 9, Name: "veth9", Kind: "veth", Role: model.RolePodLink, Master: 3, Up: up, Carrier: up, MAC: model.MAC{2, 0, 0, 0, 0, 9},
		})
		now.Pods = []model.Pod{{Namespace: "shop", Name: "cart", Addresses: []netip.Prefix{netip.PrefixFrom(pod, 24)}, Interface: "eth0", Up: true,
			MAC: model.MAC{2, 0, 0, 0, 0, 5}, Link: "veth9", LinkIndex: 9, Netns: 77, Since: begin}}
		if i > 0 {
			for j := range peers {
				p := &peers[j]
				if p.LastOut = now.Window.End; p.FirstOut.IsZero() {
					p.FirstOut = p.LastOut
				}
				p.Out.Packets, p.Out.Requests = p.Out.Packets+3, p.Out.Requests+3
				if j == 2 || !row(i) {
					p.In.Packets, p.In.Replies, p.LastIn = p.In.Packets+3, p.In.Replies+3, now.Window.End
				}
			}
		}
		now.Traffic.Peers = slices.Clone(peers)
		r := line.Add(model.Point{Snapshot: &now, Whole: i%every == 0, Ready: now.Window.End})
		if i < first {
			continue
		}
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
}
