package tui

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
	"github.com/lasthop/lasthop/tui/view"
)

// do is an action without a command.
func do(f func(*screen)) func(*screen) tea.Cmd {
	return func(s *screen) tea.Cmd {
		f(s)
		return nil
	}
}

// move moves the cursor, or scrolls what has none.
func move(by int) func(*screen) tea.Cmd { return do(func(s *screen) { s.moveBy(by) }) }

func movePage(pages int) func(*screen) tea.Cmd {
	return do(func(s *screen) { s.moveBy(pages * max((s.Height-4)/2, 1)) })
}

func (s *screen) moveBy(by int) {
	switch c := s.list(); {
	case s.Page != view.NoPage || s.Tab.HasPage():
		s.Scroll = max(0, min(s.Scroll+by, view.MaxScroll(s.shown())))
	case s.Tab == view.Path:
		s.Path.Cursor = max(0, min(s.Path.Cursor+by, len(s.Path.Hops())-1))
	case c != nil:
		c.Choose(c.Cursor + by)
		s.refresh()
	}
}

// call is a command that only calls f, outside of Update.
func call(f func()) tea.Cmd {
	return func() tea.Msg {
		f()
		return nil
	}
}

func turn(by int) func(*screen) tea.Cmd {
	return do(func(s *screen) { s.goTo((s.Tab + view.TabID(by) + view.Tabs) % view.Tabs) })
}

func show(t view.TabID) func(*screen) tea.Cmd { return do(func(s *screen) { s.goTo(t) }) }

// goTo shows a tab. The Path tab shows the path of what is selected in the list that was left.
func (s *screen) goTo(t view.TabID) {
	if t == view.Path && s.Tab != view.Path {
		s.follow(s.selected())
	}
	s.switchTo(t)
}

func (s *screen) switchTo(t view.TabID) {
	if s.Tab != view.Path {
		s.from = s.Tab
	}
	s.Tab, s.Page, s.Scroll = t, view.NoPage, 0
	s.filter.Blur()
	s.refresh()
}

// follow shows the path of a row's traffic. A row that names only the present pod keeps the other end.
func (s *screen) follow(r *view.Row) {
	if r == nil {
		return
	}
	if pod, to := s.endsOf(r); pod.IsValid() && (pod != s.pod || to.IsValid()) {
		s.between(pod, to)
	}
}

func (s *screen) between(pod, to netip.Addr) {
	if pod != s.pod || to != s.to {
		s.Path = view.PathView{}
	}
	s.pod, s.to = pod, to
}

// enter is what the key opens of what is selected, nil where there is nothing.
func (s *screen) enter() func() {
	r := s.selected()
	switch {
	case s.Page != view.NoPage:
	case s.Tab == view.Path && s.Path.Hop() != nil:
		return func() { s.open(view.HopDetail) }
	case r == nil:
	case r.Finding != nil:
		return func() {
			s.Finding = r.Finding
			s.open(view.FindingDetail)
		}
	case r.From.IsValid():
		return func() { s.goTo(view.Path) }
	case s.Tab == view.Findings:
		return func() { s.goTo(view.Node) }
	}
	return nil
}

func (s *screen) followFinding() {
	s.between(s.Data.Ends(&s.Finding.Finding))
	s.switchTo(view.Path)
}

func (s *screen) open(p view.PageID) { s.Page, s.Scroll = p, 0 }

// toggleHelp shows the keys above what is shown, or closes them.
func (s *screen) toggleHelp() {
	if s.Page == view.Help {
		s.back()
		return
	}
	s.under = s.Page
	s.open(view.Help)
}

// back leaves what was entered last: the help, a page, the path or a filter.
func (s *screen) back() {
	switch {
	case s.Page == view.Help:
		s.open(s.under)
		s.under = view.NoPage
	case s.Page != view.NoPage:
		s.open(view.NoPage)
	case s.Tab == view.Path:
		s.Tab = s.from
		s.refresh()
	case s.filter.Value() != "":
		s.filter.SetValue("")
		s.applyFilter()
	}
}

// pathFinding is the open finding that the path shows, at the selected hop if it has one; nil where there is none.
func (s *screen) pathFinding() *model.Tracked {
	var code model.Code
	if h := s.Path.Hop(); h != nil {
		code = h.Finding
	}
	for _, h := range s.Path.Hops() {
		code = cmp.Or(code, h.Finding)
	}
	var found *model.Tracked
	for f := range model.Each(s.Data.Reading.Findings) {
		if code != "" && f.Code == code && !f.Closed && (found == nil || slices.Contains(f.Pods, s.pod)) {
			found = f
		}
	}
	return found
}

func (s *screen) openFinding() {
	if s.Finding = s.pathFinding(); s.Finding == nil {
		s.Status = "no finding on this path"
		return
	}
	s.open(view.FindingDetail)
}

func (s *screen) reversePath() {
	s.Path.Reverse = !s.Path.Reverse
	s.Path.Cursor, s.Page = s.Path.Dead(), view.NoPage
}

func nextPeer(by int) func(*screen) tea.Cmd {
	return do(func(s *screen) {
		peers := s.Data.Peers(s.pod)
		if len(peers) == 0 {
			return
		}
		s.to = peers[(s.Path.Peer+by+len(peers))%len(peers)]
		s.Path = view.PathView{Reverse: s.Path.Reverse}
		s.refresh()
	})
}

func (s *screen) startFilter() tea.Cmd {
	s.filter.CursorEnd()
	return s.filter.Focus()
}

// edit passes a key to the filter, which applies while it is typed.
func (s *screen) edit(msg tea.Msg) tea.Cmd {
	if k, ok := msg.(tea.KeyPressMsg); ok && (k.String() == "enter" || k.String() == "esc") {
		s.filter.Blur()
		if k.String() == "esc" {
			s.filter.SetValue("")
			s.applyFilter()
		}
		return nil
	}
	var cmd tea.Cmd
	s.filter, cmd = s.filter.Update(msg)
	s.applyFilter()
	return cmd
}

// applyFilter uses the filter if it is valid; else the last valid one stays.
func (s *screen) applyFilter() {
	q, err := view.ParseQuery(s.filter.Value())
	if err != nil {
		s.FilterError = err.Error()
		return
	}
	s.query, s.FilterError = q, ""
	s.restart()
}

// nextSort sorts by the next column that is shown, then by none.
func (s *screen) nextSort() {
	l := s.list()
	cols := s.Data.Columns(s.Tab)
	for l.By++; l.By < len(cols) && cols[l.By].From > s.Width; l.By++ {
	}
	l.Reverse = false
	if l.By >= len(cols) {
		l.By = -1
	} else {
		// Large figures are the interesting ones.
		l.Reverse = cols[l.By].Right
	}
	s.restart()
}

func (s *screen) restart() {
	if l := s.list(); l != nil {
		l.Choose(0)
	}
	s.refresh()
}

func (s *screen) nextWindow() tea.Cmd {
	s.window = (s.window + 1) % len(s.windows)
	w := s.windows[s.window]
	return call(func() { s.opts.Source.SetWindow(w) })
}

// freeze keeps the reading that is shown; the second time it continues with the newest. A replay is paused as well.
func (s *screen) freeze() tea.Cmd {
	s.frozen = !s.frozen
	if s.player != nil {
		return s.play()
	}
	if !s.frozen {
		s.present()
	}
	return nil
}

// play sets the speed of a replay; 0 pauses it.
func (s *screen) play() tea.Cmd {
	speed := model.Either(s.frozen, 0, s.speed)
	return call(func() { s.player.Speed(speed) })
}

func faster(by float64) func(*screen) tea.Cmd {
	return func(s *screen) tea.Cmd {
		s.speed = max(0.25, min(s.speed*by, 64))
		s.Status = fmt.Sprintf("replay speed %g", s.speed)
		return s.play()
	}
}

// ask asks something of the source, and says so.
func ask(status string, what func(Source)) func(*screen) tea.Cmd {
	return func(s *screen) tea.Cmd {
		s.Status = status
		return call(func() { what(s.opts.Source) })
	}
}

// copy sends what is selected to the terminal's clipboard: a finding's fix, a path's hops, a pod's address.
func (s *screen) copy() tea.Cmd {
	text := s.copied()
	if text == "" {
		s.Status = "nothing to copy here"
		return nil
	}
	s.Status = fmt.Sprintf("%d bytes sent to the terminal's clipboard (OSC 52)", len(text))
	return tea.SetClipboard(text)
}

func (s *screen) copied() string {
	r := s.selected()
	switch {
	case s.Page == view.FindingDetail && s.Finding != nil:
		return fix(s.Finding)
	case s.Page != view.NoPage && s.Page != view.HopDetail:
		return ""
	case s.Page == view.HopDetail && s.Path.Hop() != nil:
		h := s.Path.Hop()
		return cmp.Or(lines(h.Rules), report.Clean(h.Decision))
	case s.Tab == view.Path:
		return s.Data.PathText(s.Path)
	case r == nil:
		return ""
	case r.Finding != nil && s.Tab != view.Events:
		return fix(r.Finding)
	case r.Pod != nil && r.From.IsValid():
		return r.From.String()
	}
	return r.Line()
}

// fix is a finding's fix, or how to verify it where no fix is known or needed.
func fix(f *model.Tracked) string {
	if f.Mended {
		return report.Clean(f.Verify)
	}
	return cmp.Or(lines(f.Fix), lines(f.Next), report.Clean(f.Verify))
}

// lines joins what will be pasted. It is clean, since a shell may read it.
func lines(rows []string) string { return strings.Join(model.Map(rows, report.Clean), "\n") }

func (s *screen) export() tea.Cmd {
	if s.Data.Reading.At.IsZero() {
		s.Status = "no reading yet"
		return nil
	}
	s.Status = "writing the report"
	r, write := s.Data.Reading, s.opts.Export
	return func() tea.Msg {
		path, err := write(r)
		if err == nil && path == "" {
			err = errors.New("no file was written")
		}
		return exportedMsg{path, err}
	}
}

func (s *screen) nextTheme() {
	names := view.Themes()
	if s.opts.mono() {
		s.Status = "colours are off"
		return
	}
	s.themed = true
	s.setTheme(names[(slices.Index(names, s.Theme.Name)+1)%len(names)])
	s.Status = "theme " + s.Theme.Name
}

func (s *screen) quitPrinting() tea.Cmd {
	s.printing = true
	return tea.Quit
}
