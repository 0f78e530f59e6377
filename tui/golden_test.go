package tui

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

var update = flag.Bool("update", false, "write the golden frames anew")

// utf8Env is a terminal as kubectl gives it.
var utf8Env = []string{"TERM=xterm", "LANG=C.UTF-8"}

// opened is a screen that has been entered with a reading, at a size.
func opened(t *testing.T, o Options, w, h int, r model.Reading) *screen {
	t.Helper()
	if o.Source == nil {
		o.Source = newCanned()
	}
	if o.Trace == nil {
		o.Trace = kubenetPath
	}
	if o.Reach == nil {
		o.Reach = whoReaches
	}
	o.Window = time.Minute
	s := newScreen(o, func() tea.Msg { return nil })
	send(s, tea.WindowSizeMsg{Width: w, Height: h}, readingMsg{r})
	press(t, s, "enter")
	return s
}

func send(s *screen, msgs ...tea.Msg) {
	for _, m := range msgs {
		s.Update(m)
	}
}

// named are the keys that are not a letter.
var named = map[string]tea.KeyPressMsg{
	"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown},
	"left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight}, "pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown},
	"home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd}, "tab": {Code: tea.KeyTab}, "shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift},
	"ctrl+r": {Code: 'r', Mod: tea.ModCtrl}, "ctrl+l": {Code: 'l', Mod: tea.ModCtrl}, "ctrl+z": {Code: 'z', Mod: tea.ModCtrl}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl},
	"backspace": {Code: tea.KeyBackspace}, "space": {Code: tea.KeySpace, Text: " "},
}

// press types keys, separated by spaces, and gives the last one's command.
func press(t *testing.T, s *screen, keys string) tea.Cmd {
	t.Helper()
	var cmd tea.Cmd
	for _, k := range strings.Fields(keys) {
		msg, ok := named[k]
		if !ok {
			if len([]rune(k)) != 1 {
				t.Fatalf("no key %q", k)
			}
			msg = tea.KeyPressMsg{Code: []rune(k)[0], Text: k}
		}
		_, cmd = s.Update(msg)
	}
	return cmd
}

func frame(s *screen) string { return s.View().Content }

// look is a terminal, and the theme that it is given.
type look struct {
	name, theme string
	env         []string
}

var (
	mono  = look{"mono", "", []string{"TERM=xterm", "LANG=C.UTF-8", "NO_COLOR=yes"}}
	ascii = look{"ascii", "", []string{"TERM=xterm", "LC_ALL=C", "LANG=C.UTF-8", "NO_COLOR=1"}}
	dark  = look{"dark", "dark", []string{"TERM=xterm-256color", "COLORTERM=truecolor", "LANG=C.UTF-8"}}
	light = look{"light", "light", []string{"TERM=xterm-256color", "LANG=C.UTF-8"}}
	basic = look{"16", "dark", utf8Env}
)

// TestFrames has each tab at three sizes, and in each look; pages once or twice.
func TestFrames(t *testing.T) {
	type shot struct {
		name, keys string
		w, h       int
		look       look
	}
	var shots []shot
	for _, tab := range []struct{ name, key string }{{"map", "0"}, {"findings", ""}, {"pods", "2"}, {"path", "3"}, {"events", "4"}, {"node", "5"}} {
		shots = append(shots,
			shot{tab.name, tab.key, 80, 24, mono}, shot{tab.name, tab.key, 80, 24, ascii}, shot{tab.name, tab.key, 120, 40, mono}, shot{tab.name, tab.key, 120, 40, dark},
			shot{tab.name, tab.key, 120, 40, light}, shot{tab.name, tab.key, 200, 60, mono}, shot{tab.name, tab.key, 40, 12, mono})
	}
	for name, keys := range map[string]string{
		"finding": "enter", "path-reverse": "3 r", "map-pairs": "0 down", "hop": "3 home down enter", "help": "?", "filter": "2 / s h o p",
		"filter-invalid": "/ 1 0 . 0 . 0 . 0 / 3 3", "sorted": "2 s s s s s s", "frozen": "p", "past": "[ [ [",
	} {
		shots = append(shots, shot{name, keys, 80, 24, mono})
	}
	shots = append(shots, shot{"finding", "enter", 120, 40, mono}, shot{"findings", "", 80, 24, basic})
	for _, x := range shots {
		name := fmt.Sprintf("%s-%dx%d-%s", x.name, x.w, x.h, x.look.name)
		t.Run(name, func(t *testing.T) {
			s := opened(t, Options{Env: x.look.env, Export: func(model.Reading) (string, error) { return "", nil }}, x.w, x.h, kubenetNode(41))
			if x.look.theme != "" {
				s.setTheme(x.look.theme)
			}
			lived(s)
			press(t, s, x.keys)
			got := frame(s)
			fits(t, got, x.w, x.h)
			if x.look.name == "mono" || x.look.name == "ascii" {
				got = ansi.Strip(got)
			}
			golden(t, name, got)
		})
	}
}

// lived gives the screen four minutes of readings up to noon, in which drops began, a pod came and
// a route went.
func lived(s *screen) {
	for i := range 25 {
		pods := 40
		if i > 10 {
			pods = 41
		}
		r := kubenetNode(pods)
		r.At = noon.Add(time.Duration(i-24) * 10 * time.Second)
		r.Drops = []float64{float64(max(0, i-8) * max(0, i-8))}
		if i < 17 {
			r.Snapshot.Routes = []model.Route{{Dst: prefix("10.244.9.0/24"), IfIndex: 2}}
		}
		send(s, readingMsg{r})
	}
}

func TestGateFrames(t *testing.T) {
	recorded := kubenetNode(41)
	recorded.Replay = true
	for name, r := range map[string]model.Reading{"gate": kubenetNode(41), "gate-waiting": {}, "gate-replay": recorded} {
		s := newScreen(Options{Env: utf8Env, Source: newCanned(), Intro: "lasthop on aks-np1-vmss02: attaching to 44 links."}, func() tea.Msg { return nil })
		send(s, tea.WindowSizeMsg{Width: 80, Height: 24}, readingMsg{r})
		if s.View().AltScreen {
			t.Errorf("%s: the gate is on the alternate screen, which leaves nothing behind", name)
		}
		golden(t, name, frame(s))
	}
}

// fits fails where a frame is larger than the screen, by either way to measure
// a terminal may have.
func fits(t *testing.T, frame string, w, h int) {
	t.Helper()
	lines := strings.Split(frame, "\n")
	if len(lines) > h {
		t.Errorf("%d lines on a screen of %d", len(lines), h)
	}
	for _, line := range lines {
		if a, b := ansi.StringWidth(line), ansi.StringWidthWc(line); a > w || a != b {
			t.Errorf("%d or %d columns on a screen of %d: %q", a, b, w, line)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	got += "\n"
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test ./tui -update writes it anew. Now:\n%s", path, got)
	}
}
