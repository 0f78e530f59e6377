package tui

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// hostile are names as somebody who may name a pod or write a rule's comment
// might choose them.
var hostile = []string{
	"\x1b[2J\x1b[1;1H\x1b[31mowned\x1b]0;title\x07", "\x9b31m\x9d0;x\x9c", "a\r\nb\tc\x00d\x7f", "\u202etxt.exe\u202c\u2066x\u2069",
	strings.Repeat("n", 300), strings.Repeat("日本語", 40), "e\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301", "👩‍👩‍👧‍👦👍🏽🇩🇪❤️1️⃣",
	"\u0301starts with a mark", "\xff\xfe not UTF-8", "\u200b\u200c\u200d\ufeff\u00ad", "각ㅏ\u1100\u1161", "क्षि", "\U000e0041\U000f0000", "%s%d%n", " ", "",
}

// poison writes hostile text into every string below v.
func poison(v reflect.Value, next func() string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			poison(v.Elem(), next)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				poison(v.Field(i), next)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			poison(v.Index(i), next)
		}
	case reflect.String:
		v.SetString(next())
	}
}

// drawable fails where a frame holds anything but text and colours, or is
// larger than the screen.
func drawable(t *testing.T, frame string, w, h int) {
	t.Helper()
	fits(t, frame, w, h)
	for _, r := range ansi.Strip(frame) {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("%U is in a frame", r)
		}
	}
	p := ansi.NewParser()
	for rest, state := frame, byte(0); rest != ""; {
		seq, width, n, next := ansi.DecodeSequence(rest, state, p)
		if width == 0 && seq != "\n" && (!strings.HasPrefix(seq, "\x1b[") || !strings.HasSuffix(seq, "m")) {
			t.Fatalf("%q is in a frame", seq)
		}
		rest, state = rest[n:], next
	}
}

// everywhere is a tour of all that a screen can show.
var everywhere = []string{
	"", "1 enter", "esc 1 down enter", "esc 1 G enter", "esc esc 2", "down", "enter", "enter", "esc r", "r enter", "esc esc 4", "down enter",
	"esc esc 5", "pgdown pgdown", "!", "? pgdown", "esc esc esc 1 s s", "2 s s s", "4 s", "/ ~ a", "enter", "esc", "3 right f", "y",
}

func TestHostileText(t *testing.T) {
	for start := range hostile {
		if testing.Short() && start%4 > 0 {
			continue
		}
		r := kubenetNode(9)
		i := start
		poison(reflect.ValueOf(&r).Elem(), func() string {
			i++
			return hostile[i%len(hostile)]
		})
		// Something must hold on to the tour: whether sources are whole, what
		// severities there are, does not come from outside.
		for j := range r.Snapshot.Sources {
			r.Snapshot.Sources[j].Status = []model.Status{model.OK, model.Partial, model.Missing}[j%3]
		}
		for j := range r.Findings {
			r.Findings[j].Severity = model.Critical
		}
		trace := func(s model.Reading, f []model.Finding, pod, to netip.Addr) model.Path {
			p := kubenetPath(s, f, pod, to)
			poison(reflect.ValueOf(&p).Elem(), func() string {
				i++
				return hostile[i%len(hostile)]
			})
			for j := range p.Forward {
				p.Forward[j].Kind = []model.HopKind{model.HopPod, model.HopLink, model.HopBridge, model.HopBeyond}[j%4]
			}
			return p
		}
		o := Options{Env: utf8Env, Intro: hostile[start], Trace: trace, Describe: func(model.Sample) string { return hostile[start] }}
		for _, env := range [][]string{utf8Env, {"LANG=C"}} {
			o.Env = env
			for _, size := range [][2]int{{80, 24}, {160, 50}, {40, 12}} {
				s := opened(t, o, size[0], size[1], r)
				for _, keys := range everywhere {
					press(t, s, keys)
					drawable(t, frame(s), size[0], size[1])
					if env[0] == "LANG=C" && strings.ContainsFunc(frame(s), func(r rune) bool { return r > unicode.MaxASCII }) {
						t.Fatal("a terminal without UTF-8 gets more than 7 bits")
					}
				}
				if got := s.copied(); strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
					t.Errorf("%q is copied", got)
				}
			}
			gate := newScreen(o, func() tea.Msg { return nil })
			send(gate, tea.WindowSizeMsg{Width: 80, Height: 24})
			drawable(t, frame(gate), 80, 24)
			send(gate, readingMsg{r})
			drawable(t, frame(gate), 80, 1000)
		}
	}
}

// TestEveryMoment tours the screen at the readings that are hardest to draw:
// none, one that is empty, one with nothing known.
func TestEveryMoment(t *testing.T) {
	blind := kubenetNode(5)
	blind.Snapshot.Sources, blind.Snapshot.Traffic = nil, model.Traffic{Lost: model.Lost{Events: 3, Detail: []model.Uncounted{{Packets: 3, Why: "drop samples: the ring buffer was full"}}}}
	backward := kubenetNode(5)
	backward.Snapshot.Window.Start, backward.Snapshot.Window.End = noon, noon.Add(-1)
	for name, r := range map[string]model.Reading{"none": {}, "empty": {At: noon, Snapshot: &model.Snapshot{}}, "blind": blind, "backward": backward} {
		t.Run(name, func(t *testing.T) {
			for _, size := range [][2]int{{80, 24}, {160, 50}, {40, 12}, {1, 1}, {3, 2}} {
				s := opened(t, Options{Env: utf8Env}, size[0], size[1], r)
				for _, keys := range everywhere {
					press(t, s, keys)
					drawable(t, frame(s), size[0], size[1])
				}
				send(s, readingMsg{kubenetNode(2)}, readingMsg{r})
				drawable(t, frame(s), size[0], size[1])
			}
		})
	}
	s := opened(t, Options{Env: utf8Env}, 80, 24, blind)
	shows(t, s, "(!)", "lost -")
	press(t, s, "!")
	shows(t, s, "3 drop samples lost")
	press(t, s, "esc")
	press(t, s, "2")
	shows(t, s, "     -      -      -")
}

// FuzzScreen types keys at screens of any size.
func FuzzScreen(f *testing.F) {
	f.Add(80, 24, "12345\r?!/10.0.0.0/33\r", uint64(1))
	f.Add(0, 0, "jjjj\r\rrr", uint64(2))
	f.Add(1, 1, "sSsS3\r2\r", uint64(3))
	f.Add(161, 7, "5jjjjjjj!jj", uint64(4))
	full := kubenetNode(9)
	f.Fuzz(func(t *testing.T, w, h int, keys string, seed uint64) {
		w, h, keys = w%250, h%80, keys[:min(len(keys), 30)]
		rng := rand.New(rand.NewPCG(seed, seed))
		s := newScreen(Options{Env: utf8Env, Source: tape{newCanned()}, Trace: kubenetPath}, func() tea.Msg { return nil })
		check := filter(func() {})
		for _, r := range "\r" + keys {
			k := tea.KeyPressMsg{Code: r, Text: string(r)}
			switch r {
			case '\r':
				k = named["enter"]
			case '\x1b':
				k = named["esc"]
			}
			send(s, check(s, tea.WindowSizeMsg{Width: w, Height: h}), k)
			if rng.IntN(4) == 0 {
				r := full
				r.Findings = r.Findings[rng.IntN(len(r.Findings)):]
				send(s, readingMsg{r})
			}
			if rng.IntN(8) == 0 {
				w, h = rng.IntN(300), rng.IntN(100)
				send(s, check(s, tea.WindowSizeMsg{Width: w, Height: h}))
			}
			if s.started {
				drawable(t, frame(s), s.Width, s.Height)
			}
		}
	})
}
