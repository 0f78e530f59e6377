package tui

import (
	"strings"

	"charm.land/bubbles/v2/key"
	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/tui/view"
)

// binding is one key, where it works and what it does.
type binding struct {
	key.Binding
	section string
	// footer reports whether the key is named at the foot of the screen.
	footer func(*screen) bool
	// when reports whether the key works; nil is always.
	when func(*screen) bool
	do   func(*screen) tea.Cmd
}

func bind(keys, shown, does string) key.Binding {
	return key.NewBinding(key.WithKeys(strings.Fields(keys)...), key.WithHelp(shown, does))
}

// keyTable is all keys, and all of the help. If a key has several bindings, the first that applies is used. A key
// without a section is named with the one before it; the sections "Live" and "Replay" exclude each other.
func keyTable() []binding {
	return []binding{
		{bind("enter", "enter", "path"), "", hasEnds, hasEnds, do((*screen).followFinding)},
		{bind("enter", "enter", "open"), "Move", canOpen, canOpen, do(func(s *screen) { s.enter()() })},
		{bind("y", "y", "copy"), "", canCopy, nil, (*screen).copy},
		{bind("e", "e", "export"), "", onListToExport, canExport, (*screen).export},
		{bind("esc backspace", "esc", "back"), "Move", canLeave, nil, do((*screen).back)},
		{bind("up k", "up/down", "or k, j: one row"), "Move", nil, nil, move(-1)},
		{bind("down j", "", ""), "", nil, nil, move(1)},
		{bind("pgup ctrl+b", "pgup/pgdown", "half a page"), "Move", nil, nil, movePage(-1)},
		{bind("pgdown ctrl+f", "", ""), "", nil, nil, movePage(1)},
		{bind("home g", "home/end", "or g, G: first, last"), "Move", nil, nil, move(-1 << 30)},
		{bind("end G", "", ""), "", nil, nil, move(1 << 30)},
		{bind("0", "", ""), "", nil, nil, show(view.Map)},
		{bind("1", "0 to 5, tab", "the tabs"), "Move", nil, nil, show(view.Findings)},
		{bind("2", "", ""), "", nil, nil, show(view.Pods)},
		{bind("3", "", ""), "", nil, nil, show(view.Path)},
		{bind("4", "", ""), "", nil, nil, show(view.Events)},
		{bind("5", "", ""), "", nil, nil, show(view.Node)},
		{bind("tab", "", ""), "", nil, nil, turn(1)},
		{bind("shift+tab", "", ""), "", nil, nil, turn(-1)},

		{bind("f", "f", "finding"), "Path", onPathWithFinding, onPath, do((*screen).openFinding)},
		{bind("r", "r", "reverse path"), "Path", hasPath, onPath, do((*screen).reversePath)},
		{bind("left h", "left/right", "or h, l: other peer"), "Path", nil, onPath, nextPeer(-1)},
		{bind("right l", "", ""), "", nil, onPath, nextPeer(1)},

		{bind("w", "w", "window"), "Reading", onList, nil, (*screen).nextWindow},
		{bind("<", "< >", "changes"), "Reading", hasChange, hasPast, nextChange(-1)},
		{bind(">", "", ""), "", nil, hasPast, nextChange(1)},
		{bind("[", "[ ] space", "back, forward, now"), "Reading", isReplay, canStep, step(-1)},
		{bind("]", "", ""), "", nil, canStep, step(1)},
		{bind("space", "space", "now"), "", inPast, hasPast, (*screen).now},
		{bind("p", "p", "pause"), "Reading", canPause, canPause, (*screen).freeze},
		{bind("r", "r", "rescan"), "Live", nil, isLive, ask("reading the node's state again", Source.Rescan)},
		{bind("ctrl+r", "ctrl+r", "reset counters"), "Live", nil, isLive, ask("counters restarted from zero", Source.Reset)},
		{bind("+ =", "+ or -", "faster, slower"), "Replay", nil, isReplay, faster(2)},
		{bind("-", "", ""), "", nil, isReplay, faster(0.5)},

		{bind("/", "/", "filter"), "List", onList, onList, (*screen).startFilter},
		{bind("s", "s", "sort"), "List", onList, onList, do((*screen).nextSort)},

		{bind("y", "y", "copy: the fix, a path"), "Screen", nil, nil, (*screen).copy},
		{bind("e", "e", "export: a page to forward"), "Screen", nil, canExport, (*screen).export},
		{bind("!", "!", "what is missing"), "Screen", hasGaps, nil, show(view.Node)},
		{bind("t", "t", "theme"), "Screen", nil, nil, do((*screen).nextTheme)},
		{bind("ctrl+l", "ctrl+l", "redraw"), "Screen", nil, nil, func(*screen) tea.Cmd { return tea.ClearScreen }},
		{bind("ctrl+z", "ctrl+z", "suspend"), "Screen", nil, canSuspend, func(*screen) tea.Cmd { return tea.Suspend }},
		{bind("?", "?", "help"), "Screen", always, nil, do((*screen).toggleHelp)},
		{bind("q ctrl+c", "q", "quit"), "Screen", always, nil, func(*screen) tea.Cmd { return tea.Quit }},
		{bind("Q", "Q", "quit, print the summary"), "Screen", nil, nil, (*screen).quitPrinting},
	}
}

func always(*screen) bool           { return true }
func hasGaps(s *screen) bool        { return onList(s) && len(report.Unread(s.Data.Reading.Snapshot)) > 0 }
func onListToExport(s *screen) bool { return onList(s) && canExport(s) }
func canCopy(s *screen) bool {
	r := s.selected()
	return s.Page != view.Help && (s.Page != view.NoPage || hasPath(s) ||
		s.Tab == view.Findings && r != nil && r.Finding != nil)
}
func hasEnds(s *screen) bool {
	if s.Page != view.FindingDetail || s.Finding == nil {
		return false
	}
	pod, _ := s.Data.Ends(&s.Finding.Finding)
	return pod.IsValid()
}
func canLeave(s *screen) bool { return s.Page != view.NoPage || s.Tab == view.Path }
func canOpen(s *screen) bool  { return s.enter() != nil }
func onPath(s *screen) bool {
	return s.Tab == view.Path && s.Page == view.NoPage || s.Page == view.HopDetail
}
func hasPath(s *screen) bool           { return onPath(s) && s.Path.Path != nil }
func onPathWithFinding(s *screen) bool { return onPath(s) && s.pathFinding() != nil }
func onList(s *screen) bool            { return s.list() != nil && s.Page == view.NoPage }
func isReplay(s *screen) bool          { return s.player != nil }
func hasPast(s *screen) bool           { return len(s.history.moments) > 1 }
func canStep(s *screen) bool           { return isReplay(s) || hasPast(s) }
func hasChange(s *screen) bool         { return hasPast(s) && len(s.track().Changes()) > 0 }
func inPast(s *screen) bool            { return hasPast(s) && (s.history.at >= 0 || s.player != nil && s.frozen) }
func canPause(s *screen) bool          { return !s.still() }
func isLive(s *screen) bool            { return s.player == nil && !s.still() && !onPath(s) }

// still reports whether recordings are shown that do not play.
func (s *screen) still() bool   { return s.player == nil && s.Data.Reading.Replay }
func canExport(s *screen) bool  { return s.opts.Export != nil }
func canSuspend(s *screen) bool { return s.opts.Job }

func (s *screen) press(k tea.KeyPressMsg) tea.Cmd {
	for _, b := range s.keys {
		if key.Matches(k, b.Binding) && (b.when == nil || b.when(s)) {
			return b.do(s)
		}
	}
	return nil
}

// hints are the keys as the screen names them: at the foot those that work now, in the help all.
func (s *screen) hints() []view.Hint {
	var out []view.Hint
	for _, b := range s.keys {
		h := view.Hint{Key: b.Help().Key, Does: b.Help().Desc, Section: b.section, Footer: b.footer != nil && b.footer(s)}
		h.Keep = h.Key == "?" || h.Key == "q"
		if h.Key == "p" && s.frozen {
			h.Does = "continue"
		}
		if b.section == "Replay" && s.player == nil || b.section == "Live" && (s.player != nil || s.still()) ||
			h.Key == "p" && s.still() || h.Key == "ctrl+z" && !s.opts.Job {
			continue
		}
		out = append(out, h)
	}
	return out
}
