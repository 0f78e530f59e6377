package tui

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// run does what a command is for and takes its message.
func run(t *testing.T, s *screen, cmd tea.Cmd) tea.Msg {
	t.Helper()
	if cmd == nil {
		t.Fatal("the key gives no command")
	}
	msg := cmd()
	send(s, msg)
	return msg
}

func shows(t *testing.T, s *screen, want ...string) {
	t.Helper()
	got := ansi.Strip(frame(s))
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%q is not on the screen:\n%s", w, got)
		}
	}
}

func hides(t *testing.T, s *screen, words ...string) {
	t.Helper()
	got := ansi.Strip(frame(s))
	for _, w := range words {
		if strings.Contains(got, w) {
			t.Errorf("%q is on the screen:\n%s", w, got)
		}
	}
}

func cursorLine(s *screen) string {
	for line := range strings.SplitSeq(ansi.Strip(frame(s)), "\n") {
		if strings.HasPrefix(line, ">") {
			return line
		}
	}
	return ""
}

func TestKeySequences(t *testing.T) {
	for _, c := range []struct {
		name, keys string
		cursor     string
		shows      []string
		hides      []string
	}{
		{"down", "down", "stale MAC", nil, nil},
		{"j, k", "j j k", "stale MAC", nil, nil},
		{"beyond the last", "G down", "no ARP reply", nil, nil},
		{"home", "G home", "no route to", nil, nil},
		{"page down, page up", "2 pgdown pgdown pgup", "shop/cart-7d9f-10", nil, nil},
		{"tabs", "tab tab tab tab", "", []string{"[5]Node", "what lasthop could read"}, nil},
		{"tabs turn around", "shift+tab shift+tab", "", []string{"[5]Node"}, nil},
		{"into a finding", "down enter", "", []string{"StaleMACRewrite", "(proven)", "ebtables-nft -t nat -D"}, nil},
		{"out of a finding", "down enter esc", "stale MAC", nil, nil},
		{"finding to path", "enter enter", "X  7 uplink eth0", []string{"[3]Path", "10.244.3.21:8443/tcp"}, nil},
		{"path back to where one came from", "2 enter esc", "shop/cart-7d9f", []string{"[2]Pods"}, nil},
		{"pod to path", "2 down down enter", "", []string{"Path bank/ledger-0 10.244.1.6 > "}, nil},
		{"finding of a hop", "3 f", "", []string{"MissingUDR", "(likely)"}, nil},
		{"reverse", "3 r", "1 uplink eth0", []string{"nothing arrives"}, nil},
		{"reverse twice", "3 r r", "X  7 uplink eth0", nil, nil},
		{"hop", "3 home down down enter", "", []string{"hop 3  bridge cbr0", "AKS-DEDUP-PROMISC"}, nil},
		{"other peer", "3 right", "", []string{"10.240.0.9:8443/tcp", "(peer 2 of 2)"}, nil},
		{"other peer and back", "3 l h", "", []string{"(peer 1 of 2)"}, nil},
		{"whose packets a path counts", "3", "", []string{"counts are of this pair only"}, nil},
		{"whose packets a hop counts", "3 right enter", "", []string{"of all the pod's packets"}, nil},
		{"event to path", "4 down enter", "", []string{"Path bank/ledger-0 10.244.1.6 > 10.240.0.9"}, nil},
		{"event to finding", "4 G enter", "", []string{"UnexpectedMasquerade"}, nil},
		{"sort", "s s s s", "no route to", []string{"LOST/Sv"}, nil},
		{"sort by text", "s s", "no ARP reply", []string{"WHAT^"}, nil},
		{"filter", "2 / l e d g e r", "bank/ledger-0", []string{"/filter: ledger_"}, []string{"shop/cart"}},
		{"filter kept", "2 / l e d g e r enter", "bank/ledger-0", []string{"/filter: ledger\n"}, []string{"shop/cart"}},
		{"filter cleared", "2 / l e d g e r esc", "shop/cart-7d9f", []string{"/filter: -"}, nil},
		{"filter cleared later", "2 / l e d g e r enter esc", "shop/cart-7d9f", []string{"/filter: -"}, nil},
		{"filter by range", "2 / 1 0 . 2 4 4 . 1 . 4 / 3 1", "shop/cart-7d9f", []string{"shop/payments-6c4b"}, []string{"bank"}},
		{"filter by address within a peer's range", "/ 1 0 . 2 4 4 . 3 . 2 1", "no route to", []string{"MissingUDR"}, []string{"stale MAC"}},
		{"filter by code", "/ s t a l e m a c", "stale MAC", nil, []string{"no route to"}},
		{"filter by expression", "2 / ~ l e d g e r . * 0 7", "bank/ledger-0-07", nil, []string{"ledger-0-12"}},
		{"filter out", "2 / ! s h o p", "bank/ledger-0", nil, []string{"shop/"}},
		{"filter, wrong expression", "/ ~ (", "no route to", []string{"(!)", "filter not used: not a regular expression: ("}, nil},
		{"filter, wrong range", "/ 1 0 . 0 . 0 . 0 / 9 9", "", []string{"not a range: 10.0.0.0/99"}, nil},
		{"filter lets nothing pass", "/ z z z z", "", []string{"nothing matches the filter"}, nil},
		{"q is text in a filter", "/ q", "", []string{"/filter: q_"}, nil},
		{"help", "?", "", []string{"quit, print the summary"}, nil},
		{"help and back", "? ?", "no route to", nil, nil},
		{"help over a finding", "enter ? esc", "", []string{"(likely)"}, nil},
		{"what is missing", "!", "", []string{"[5]Node", "missing nodes"}, nil},
		{"window", "w", "", []string{"win 1m/5m"}, nil},
		{"window, all", "w w", "", []string{"win all"}, nil},
		{"frozen", "p", "", []string{"FROZEN 12:04:07"}, []string{"LIVE  win"}},
		{"theme", "t", "", []string{"theme light"}, nil},
		{"nothing to copy", "? y", "", []string{"nothing to copy here"}, []string{"y copy"}},
		{"no finding on the path", "3 right f", "", []string{"no finding on this path"}, nil},
		{"scrolled", "5 down down down", "", nil, []string{"Name      aks"}},
		{"scrolled to the end", "5 G", "", []string{"In window"}, []string{"below"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
			press(t, s, c.keys)
			if got := cursorLine(s); c.cursor != "" && !strings.Contains(got, c.cursor) {
				t.Errorf("the cursor is at %q, not at %q", got, c.cursor)
			}
			shows(t, s, c.shows...)
			hides(t, s, c.hides...)
		})
	}
}

// TestKeyTable holds that every key of the table is named in the help, but for
// those that only a replay has, or only a node.
func TestKeyTable(t *testing.T) {
	for other, source := range map[string]Source{"Live": tape{newCanned()}, "Replay": newCanned()} {
		s := opened(t, Options{Env: utf8Env, Job: true, Source: source}, 120, 60, kubenetNode(3))
		press(t, s, "?")
		for _, b := range s.keys {
			switch {
			case b.section == other:
				hides(t, s, b.Help().Desc)
			case b.Help().Key != "":
				shows(t, s, b.Help().Key)
			}
			if len(b.Keys()) == 0 || b.do == nil {
				t.Errorf("key %v does nothing", b.Keys())
			}
		}
	}
}

func TestGate(t *testing.T) {
	start := func() *screen {
		s := newScreen(Options{Env: utf8Env, Source: newCanned()}, func() tea.Msg { return nil })
		send(s, tea.WindowSizeMsg{Width: 80, Height: 24})
		return s
	}
	s := start()
	send(s, readingMsg{kubenetNode(3)}, tea.WindowSizeMsg{Width: 80, Height: 24})
	press(t, s, "j w ?")
	if s.View().AltScreen {
		t.Error("the screen was entered by other keys, or by the same size again")
	}
	shows(t, s, "Enter to start", "nodes missing")
	press(t, s, "enter")
	if !s.View().AltScreen {
		t.Error("enter does not start the screen")
	}
	s = start()
	send(s, tea.WindowSizeMsg{Width: 100, Height: 30})
	if !s.View().AltScreen {
		t.Error("a resize does not start the screen")
	}
	s = start()
	if _, ok := press(t, s, "q")().(tea.QuitMsg); !ok {
		t.Error("q does not quit at the gate")
	}
}

// TestSizeUnknown is a terminal that tells no size until somebody attaches.
func TestSizeUnknown(t *testing.T) {
	s := newScreen(Options{Env: utf8Env, Source: newCanned()}, func() tea.Msg { return nil })
	f := filter(func() {})
	send(s, f(s, tea.WindowSizeMsg{}), readingMsg{kubenetNode(3)})
	if s.View().AltScreen || !strings.Contains(frame(s), "Enter to start") {
		t.Errorf("no gate without a size: %q", frame(s))
	}
	send(s, f(s, tea.WindowSizeMsg{Width: 80, Height: 24}))
	if !s.View().AltScreen {
		t.Error("the first size that is known does not start the screen")
	}
}

func TestSourceIsAsked(t *testing.T) {
	source := newCanned()
	s := opened(t, Options{Env: utf8Env, Source: source}, 80, 24, kubenetNode(3))
	var got []string
	for _, keys := range []string{"w", "w", "w", "w", "r", "ctrl+r"} {
		run(t, s, press(t, s, keys))
		got = append(got, <-source.asked)
	}
	want := []string{"window 5m0s", "window 0s", "window 10s", "window 1m0s", "rescan", "reset"}
	if !slices.Equal(got, want) {
		t.Errorf("asked for %v, want %v", got, want)
	}
}

func TestReplayKeys(t *testing.T) {
	source := newCanned()
	s := opened(t, Options{Env: utf8Env, Source: tape{source}}, 80, 24, kubenetNode(3))
	shows(t, s, "REPLAY x1 12:04:07")
	var got []string
	for _, keys := range []string{"+", "p", "p", "-"} {
		run(t, s, press(t, s, keys))
		got = append(got, <-source.asked)
	}
	want := []string{"speed 2", "speed 0", "speed 2", "speed 1"}
	if !slices.Equal(got, want) {
		t.Errorf("asked for %v, want %v", got, want)
	}
	press(t, s, "]")
	shows(t, s, "PAUSED")
	// What a step brings is shown though the replay is paused.
	r := kubenetNode(3)
	r.At = r.At.Add(time.Second)
	send(s, readingMsg{r})
	shows(t, s, "PAUSED 12:04:08")
	live := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	if cmd := press(t, live, "+"); cmd != nil {
		t.Error("a live screen takes the keys of a replay")
	}
}

func TestFreezeKeepsTheReading(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	press(t, s, "p")
	later := kubenetNode(3)
	later.At = later.At.Add(time.Minute)
	later.Findings = later.Findings[1:]
	send(s, readingMsg{later})
	shows(t, s, "FROZEN 12:04:07", "no route to")
	press(t, s, "p")
	shows(t, s, "LIVE")
	hides(t, s, "no route to")
}

// TestCursorStaysOnItsRow lets rows come before the chosen one.
func TestCursorStaysOnItsRow(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
	press(t, s, "2 down down")
	r := kubenetNode(41)
	r.Snapshot.Pods = append([]model.Pod{{Name: "new", Addresses: []netip.Prefix{prefix("10.244.9.9/24")}}}, r.Snapshot.Pods...)
	send(s, readingMsg{r})
	if got := cursorLine(s); !strings.Contains(got, "bank/ledger-0 ") {
		t.Errorf("the cursor went to %q", got)
	}
	r = kubenetNode(1)
	send(s, readingMsg{r})
	if got := cursorLine(s); got == "" {
		t.Error("no row is chosen once the chosen one is gone")
	}
}

func TestOpenFindingOutlivesItsReading(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
	press(t, s, "enter")
	r := kubenetNode(41)
	r.Findings[0].Closed, r.Findings[0].Last = true, noon.Add(-time.Second)
	send(s, readingMsg{r})
	shows(t, s, "MissingUDR", "to 12:04:06, closed")
	r = kubenetNode(41)
	r.Findings = nil
	send(s, readingMsg{r})
	shows(t, s, "MissingUDR")
}

func TestCopy(t *testing.T) {
	for keys, want := range map[string]string{
		"y":              "az network route-table route create",
		"enter y":        "az network route-table route create",
		"2 down y":       "10.244.1.5",
		"3 y":            "via 10.240.0.1 dev eth0",
		"3 home enter y": "10.244.1.1 dev eth0 lladdr",
		"4 y":            "pod batch/import-28711",
	} {
		s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
		cmd := press(t, s, keys)
		if got := s.copied(); cmd == nil || !strings.Contains(got, want) {
			t.Errorf("%s copies %q, not %q", keys, got, want)
		}
		shows(t, s, "sent to the terminal's clipboard")
	}
}

func TestExport(t *testing.T) {
	var wrote model.Reading
	o := Options{Env: utf8Env, Export: func(r model.Reading) (string, error) {
		wrote = r
		return "/tmp/report.json", nil
	}}
	s := opened(t, o, 80, 24, kubenetNode(41))
	press(t, s, "p")
	send(s, readingMsg{kubenetNode(3)})
	run(t, s, press(t, s, "e"))
	shows(t, s, "report written to /tmp/report.json")
	if len(wrote.Snapshot.Pods) != 41 {
		t.Error("what was written is not what is shown")
	}
	o.Export = func(model.Reading) (string, error) {
		return "", &os.PathError{Op: "open", Path: "/ro\x1b[2J", Err: os.ErrPermission}
	}
	s = opened(t, o, 80, 24, kubenetNode(41))
	run(t, s, press(t, s, "e"))
	shows(t, s, `export failed: open /ro\x1b[2J: permission denied`)
}

func TestQuit(t *testing.T) {
	for _, keys := range []string{"q", "Q", "ctrl+c"} {
		s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
		if _, ok := press(t, s, keys)().(tea.QuitMsg); !ok {
			t.Errorf("%s does not quit", keys)
		}
		if s.printing != (keys == "Q") {
			t.Errorf("%s: printing is %v", keys, s.printing)
		}
	}
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	if press(t, s, "ctrl+z") != nil {
		t.Error("ctrl+z suspends where nobody would take over")
	}
	s = opened(t, Options{Env: utf8Env, Job: true}, 80, 24, kubenetNode(3))
	if press(t, s, "ctrl+z") == nil {
		t.Error("ctrl+z does not suspend")
	}
}

func TestEnvironment(t *testing.T) {
	for _, c := range []struct {
		env         []string
		color       string
		mono, ascii bool
	}{
		{[]string{"TERM=xterm", "LANG=C.UTF-8"}, "auto", false, false},
		{[]string{"TERM=xterm", "LANG=C.UTF-8", "NO_COLOR=yes"}, "auto", true, false},
		{[]string{"TERM=xterm", "LANG=C.UTF-8", "NO_COLOR=0"}, "always", true, false},
		{[]string{"TERM=xterm", "LANG=C.UTF-8", "NO_COLOR="}, "auto", false, false},
		{[]string{"TERM=xterm", "LANG=C.UTF-8"}, "never", true, false},
		{[]string{"TERM=dumb", "LANG=C.UTF-8"}, "auto", true, false},
		{[]string{"TERM=xterm"}, "auto", false, true},
		{[]string{"TERM=xterm", "LANG=de_DE.ISO-8859-1"}, "auto", false, true},
		{[]string{"TERM=xterm", "LC_ALL=C", "LANG=C.UTF-8"}, "auto", false, true},
		{[]string{"TERM=xterm", "LC_CTYPE=en_US.utf8", "LANG=C"}, "auto", false, false},
	} {
		o := Options{Env: c.env, Color: c.color}
		name, _, ascii := o.theme()
		if (name == "mono") != c.mono || o.mono() != c.mono || ascii != c.ascii {
			t.Errorf("%v %s: theme %q, ascii %v", c.env, c.color, name, ascii)
		}
	}
	s := opened(t, Options{Env: []string{"NO_COLOR=1", "LANG=C.UTF-8"}}, 80, 24, kubenetNode(3))
	press(t, s, "t")
	shows(t, s, "colours are off")
}

func TestWaiting(t *testing.T) {
	s := newScreen(Options{Env: utf8Env, Source: newCanned()}, func() tea.Msg { return nil })
	send(s, tea.WindowSizeMsg{Width: 80, Height: 24})
	press(t, s, "enter")
	for keys, want := range map[string]string{"1": "reading the node's state", "2": "waiting", "3": "waiting", "4": "waiting", "5": "no reading yet"} {
		press(t, s, "esc "+keys)
		shows(t, s, want)
	}
	send(s, endedMsg{})
	shows(t, s, "ENDED")
}

// TestUpdateIsQuiet holds that a message which changes nothing draws nothing.
func TestUpdateIsQuiet(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(41))
	before := frame(s)
	drawn := &s.frame
	send(s, tea.EnvMsg{}, tea.ColorProfileMsg{}, tea.FocusMsg{})
	if *drawn == "" {
		t.Error("a message that is none of the screen's makes it draw")
	}
	send(s, readingMsg{kubenetNode(41)})
	if frame(s) != before {
		t.Error("the same reading gives another frame")
	}
}

func TestIdle(t *testing.T) {
	in, out := newPipe(t)
	got, err := Run(context.Background(), Options{Source: newCanned(), Env: utf8Env, Idle: time.Millisecond, Input: in, Output: out})
	if err != nil || !got.Idle {
		t.Errorf("a screen that nobody looks at ends with %+v, %v", got, err)
	}
}

func TestContextEndsIt(t *testing.T) {
	in, out := newPipe(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	end := errors.New("the end")
	cancel(end)
	if _, err := Run(ctx, Options{Source: newCanned(), Env: utf8Env, Input: in, Output: out}); !errors.Is(err, end) {
		t.Errorf("the error is %v", err)
	}
}

// newPipe is an input that stays silent and an output that swallows all.
func newPipe(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		hold.Close()
		out.Close()
	})
	return in, out
}

// TestSilence holds that a screen without findings says what that is worth.
func TestSilence(t *testing.T) {
	whole := func() model.Reading {
		r := kubenetNode(3)
		r.Findings, r.Snapshot.Traffic.Drops = nil, nil
		r.Snapshot.Sources = slices.DeleteFunc(r.Snapshot.Sources, func(s model.Source) bool { return s.Name == model.SourcePods })
		return r
	}
	s := opened(t, Options{Env: utf8Env}, 120, 40, whole())
	// What is known of other nodes is never whole, and no fault of this one's.
	shows(t, s, "no loss seen in 1m", "sources 7/8", "! what is missing")
	hides(t, s, "(!)", "but ")
	for want, spoil := range map[string]func(*model.Reading){
		"; 377 drops without a finding":  func(r *model.Reading) { r.Snapshot.Traffic.Drops = kubenetNode(3).Snapshot.Traffic.Drops },
		"but no pod traffic either":      func(r *model.Reading) { r.Snapshot.Traffic.Hops = nil },
		"but not everything was visible": func(r *model.Reading) { r.Snapshot.Sources[0].Status = model.Partial },
		"packets were not watched":       func(r *model.Reading) { r.Snapshot.Sources = r.Snapshot.Sources[:3] },
	} {
		r := whole()
		spoil(&r)
		if got := opened(t, Options{Env: utf8Env}, 80, 24, r).list().Rows[0].Line(); !strings.Contains(got, want) {
			t.Errorf("the first row is %q, without %q", got, want)
		}
	}
	r := whole()
	r.Snapshot.Traffic.Lost.Counters = 7
	s = opened(t, Options{Env: utf8Env}, 80, 24, r)
	shows(t, s, "sources 7/8(!)")
	press(t, s, "!")
	shows(t, s, "7 packets not counted")
}

// TestWindowIsThatOfTheFigures holds that figures are not given out for those
// of a window that was only just asked for.
func TestWindowIsThatOfTheFigures(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 80, 24, kubenetNode(3))
	shows(t, s, "win 1m ")
	press(t, s, "w")
	shows(t, s, "win 1m/5m")
	r := kubenetNode(3)
	r.Snapshot.Window.Start = noon.Add(-5*time.Minute - time.Second)
	send(s, readingMsg{r})
	shows(t, s, "win 5m ")
	press(t, s, "w w")
	shows(t, s, "win 5m1s/10s")
	s = newScreen(Options{Env: utf8Env, Source: newCanned(), Window: 30 * time.Second}, func() tea.Msg { return nil })
	if got := s.windows[s.window]; got != 30*time.Second || len(windows) != 4 {
		t.Errorf("a window of 30 s begins as %v, of %v", got, s.windows)
	}
}

// The map opens the path of the worst pair of a pod.
func TestMap(t *testing.T) {
	s := opened(t, Options{Env: utf8Env}, 120, 40, kubenetNode(41))
	press(t, s, "0 down")
	shows(t, s, "1 way", "shop/payments-6c4b", "10.244.11.21")
	press(t, s, "enter")
	shows(t, s, "[3]Path", "10.244.11.21")
	press(t, s, "esc")
	shows(t, s, "[0]Map", "10.244.11.21")
}
