package tui

import (
	"strings"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/tui/view"
)

// binding is one key, where it works and what it does there.
type binding struct {
	key.Binding
	section string
	// footer keys are named at the foot of the screen.
	footer bool
	// when says where the key works; nil is everywhere.
	when func(*screen) bool
	do   func(*screen) tea.Cmd
}

func bind(keys, shown, does string) key.Binding {
	return key.NewBinding(key.WithKeys(strings.Fields(keys)...), key.WithHelp(shown, does))
}

// keyTable is all keys, and all of the help. Where a key does several things,
// the first that applies is meant.
func keyTable() []binding {
	return []binding{
		{bind("enter", "enter", "open"), "Move", true, nil, (*screen).enter},
		{bind("esc backspace", "esc", "back"), "Move", false, nil, (*screen).back},
		{bind("up k", "up/k", "up"), "Move", false, nil, move(-1)},
		{bind("down j", "down/j", "down"), "Move", false, nil, move(1)},
		{bind("pgup ctrl+b", "pgup", "page up"), "Move", false, nil, movePage(-1)},
		{bind("pgdown ctrl+f space", "pgdown", "page down"), "Move", false, nil, movePage(1)},
		{bind("home g", "home/g", "first"), "Move", false, nil, move(-1 << 30)},
		{bind("end G", "end/G", "last"), "Move", false, nil, move(1 << 30)},
		{bind("tab", "tab", "next tab"), "Move", false, nil, turn(1)},
		{bind("shift+tab", "shift+tab", "previous tab"), "Move", false, nil, turn(-1)},
		{bind("1", "1", "findings"), "Move", false, nil, show(view.Findings)},
		{bind("2", "2", "pods"), "Move", false, nil, show(view.Pods)},
		{bind("3", "3", "path"), "Move", false, nil, show(view.Path)},
		{bind("4", "4", "events"), "Move", false, nil, show(view.Events)},
		{bind("5", "5", "node"), "Move", false, nil, show(view.Node)},

		{bind("f", "f", "finding at this hop"), "Path", true, onPath, (*screen).openFinding},
		{bind("r", "r", "reverse path"), "Path", true, onPath, (*screen).reversePath},
		{bind("left h", "left/h", "previous peer"), "Path", false, onPath, nextPeer(-1)},
		{bind("right l", "right/l", "next peer"), "Path", false, onPath, nextPeer(1)},

		{bind("/", "/", "filter"), "List", true, onList, (*screen).startFilter},
		{bind("s", "s", "sort"), "List", true, onList, (*screen).nextSort},
		{bind("S", "S", "turn the order"), "List", false, onList, (*screen).turnSort},

		{bind("w", "w", "window"), "Reading", true, nil, (*screen).nextWindow},
		{bind("p", "p", "pause"), "Reading", true, nil, (*screen).freeze},
		{bind("r", "r", "rescan"), "Reading", false, isLive, (*screen).rescan},
		{bind("ctrl+r", "ctrl+r", "reset counters"), "Reading", false, isLive, (*screen).reset},
		{bind(".", ".", "step"), "Replay", true, isReplay, step(1)},
		{bind(",", ",", "step back"), "Replay", false, isReplay, step(-1)},
		{bind("]", "]", "10 s on"), "Replay", false, isReplay, seek(1)},
		{bind("[", "[", "10 s back"), "Replay", false, isReplay, seek(-1)},
		{bind("}", "}", "1 min on"), "Replay", false, isReplay, seek(6)},
		{bind("{", "{", "1 min back"), "Replay", false, isReplay, seek(-6)},
		{bind("+ =", "+", "faster"), "Replay", true, isReplay, faster(2)},
		{bind("-", "-", "slower"), "Replay", false, isReplay, faster(0.5)},

		{bind("y", "y", "copy"), "Take", true, nil, (*screen).copy},
		{bind("e", "e", "export"), "Take", true, canExport, (*screen).export},

		{bind("?", "?", "help"), "Screen", true, nil, page(view.Help)},
		{bind("!", "!", "coverage"), "Screen", false, nil, page(view.Coverage)},
		{bind("t", "t", "theme"), "Screen", false, nil, (*screen).nextTheme},
		{bind("ctrl+l", "ctrl+l", "redraw"), "Screen", false, nil, func(*screen) tea.Cmd { return tea.ClearScreen }},
		{bind("ctrl+z", "ctrl+z", "suspend"), "Screen", false, canSuspend, func(*screen) tea.Cmd { return tea.Suspend }},
		{bind("q ctrl+c", "q", "quit"), "Screen", true, nil, func(*screen) tea.Cmd { return tea.Quit }},
		{bind("Q", "Q", "quit, print the summary"), "Screen", false, nil, (*screen).quitPrinting},
	}
}

func onPath(s *screen) bool {
	return s.tab == view.Path && s.page == view.NoPage || s.page == view.HopDetail
}
func onList(s *screen) bool     { return s.list() != nil && s.page == view.NoPage }
func isReplay(s *screen) bool   { return s.player != nil }
func isLive(s *screen) bool     { return s.player == nil && !onPath(s) }
func canExport(s *screen) bool  { return s.opts.Export != nil }
func canSuspend(s *screen) bool { return s.opts.Suspend }

// press does what the key is for.
func (s *screen) press(k tea.KeyPressMsg) tea.Cmd {
	for _, b := range s.keys {
		if key.Matches(k, b.Binding) && (b.when == nil || b.when(s)) {
			return b.do(s)
		}
	}
	return nil
}

// hints are the keys as they are named on the screen: at the foot those that
// work here, in the help all that ever do.
func (s *screen) hints() []view.Hint {
	all := s.page == view.Help
	var out []view.Hint
	for _, b := range s.keys {
		switch {
		case b.section == "Replay" && s.player == nil, b.section == "Reading" && b.Help().Key != "w" && b.Help().Key != "p" && s.player != nil:
			continue
		case !all && b.when != nil && !b.when(s):
			continue
		}
		does := b.Help().Desc
		if !all && b.Help().Key == "enter" && s.page != view.NoPage {
			continue
		}
		out = append(out, view.Hint{Key: b.Help().Key, Does: does, Section: b.section, Footer: b.footer})
	}
	if s.page != view.NoPage {
		out = append([]view.Hint{{Key: "esc", Does: "back", Footer: !all, Section: ""}}, out...)
	}
	if all {
		out = out[1:]
	}
	return out
}
