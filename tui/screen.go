package tui

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
	"unicode"

	"charm.land/bubbles/v2/textinput"
	tea "charm.land/bubbletea/v2"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/tui/view"
)

// windows are the windows on offer, besides the requested one; 0 is all.
var windows = []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 0}

// The messages that are not the terminal's.
type (
	readingMsg  struct{ model.Reading }
	endedMsg    struct{}
	exportedMsg struct {
		path string
		err  error
	}
)

// choice is how a list is shown.
type choice struct {
	id      string
	cursor  int
	by      int
	reverse bool
}

// screen is the Bubble Tea model: the newest reading, the one that is shown, and
// how.
type screen struct {
	opts   Options
	theme  view.Theme
	keys   []binding
	player Player
	// next waits for a reading; stop, if not nil, for a request to stop.
	next, stop tea.Cmd

	width, height int
	// unsized says that the next size was not reported by the terminal but
	// assumed, supposed that the last one was.
	unsized, supposed bool
	// started is false while the gate is shown.
	started bool

	latest model.Reading
	data   *view.Data
	frozen bool
	ended  bool
	// speed is the speed of a replay.
	speed float64
	// window is the index of the selected one.
	windows []time.Duration
	window  int

	tab, from view.TabID
	choices   [view.Tabs]choice
	rows      []*view.Row
	page      view.PageID
	under     view.PageID // the page that an overlay covers
	scroll    int

	filter    textinput.Model
	query     view.Query
	filterErr string

	finding *model.Tracked
	preview *model.Path
	path    view.PathView
	pod, to netip.Addr

	status   string
	printing bool

	// frame is what was drawn last; empty if something changed since.
	frame string
}

func newScreen(o Options, next tea.Cmd) *screen {
	input := textinput.New()
	input.SetVirtualCursor(false)
	input.CharLimit = 200
	// Reading the clipboard would start a process.
	input.KeyMap.Paste.SetEnabled(false)
	s := &screen{
		opts: o, theme: view.NewTheme(o.theme()), keys: keyTable(), next: next, filter: input, speed: 1,
		data: view.NewData(model.Reading{}, nil), windows: windows,
	}
	if s.window = slices.Index(windows, o.Window); s.window < 0 {
		s.windows, s.window = append([]time.Duration{o.Window}, windows...), 0
	}
	s.player, _ = o.Source.(Player)
	for i := range s.choices {
		s.choices[i].by = -1
	}
	s.refresh()
	return s
}

func (s *screen) Init() tea.Cmd { return tea.Batch(s.next, s.stop) }

// Update takes one message. It reads no clock and does no input or output.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case readingMsg:
		s.latest = msg.Reading
		if !s.frozen || s.player != nil {
			s.use(msg.Reading)
		}
		cmd = s.next
	case endedMsg:
		s.ended = true
	case stopMsg:
		return s, tea.Batch(suspend(s.opts.Shell), s.stop)
	case exportedMsg:
		s.status = "report written to " + msg.path
		if msg.err != nil {
			s.status = "export failed: " + msg.err.Error()
		}
	case tea.WindowSizeMsg:
		s.resize(msg)
	case tea.KeyPressMsg:
		cmd = s.key(msg)
	case tea.PasteMsg:
		if s.filter.Focused() {
			cmd = s.edit(msg)
		}
	default:
		return s, nil
	}
	s.frame = ""
	return s, cmd
}

// resize takes a new size. One that differs from the first starts the screen: it
// comes from someone who has just attached and not seen the gate.
func (s *screen) resize(msg tea.WindowSizeMsg) {
	if s.width > 0 && !s.unsized && (s.supposed || msg.Width != s.width || msg.Height != s.height) {
		s.started = true
	}
	s.width, s.height = msg.Width, msg.Height
	s.supposed, s.unsized = s.unsized, false
}

func (s *screen) key(k tea.KeyPressMsg) tea.Cmd {
	if k.Mod.Contains(tea.ModAlt) {
		return tea.Sequence(s.key(tea.KeyPressMsg{Code: tea.KeyEscape}), s.key(unescaped(k)))
	}
	s.status = ""
	switch {
	case !s.started:
		return s.atGate(k)
	case s.filter.Focused() && k.String() != "ctrl+c":
		return s.edit(k)
	}
	return s.press(k)
}

// unescaped is the key of one that was reported as pressed with Alt. A terminal sends
// Esc in front of such a key, and so does one who presses Esc and then the key where
// both arrive at once, as over a slow connection. No key here takes Alt.
func unescaped(k tea.KeyPressMsg) tea.KeyPressMsg {
	k.Mod &^= tea.ModAlt
	r := k.Code
	if k.Mod.Contains(tea.ModShift) {
		r = cmp.Or(k.ShiftedCode, unicode.ToUpper(r))
	}
	if !k.Mod.Contains(tea.ModCtrl) && unicode.IsPrint(r) {
		k.Text = string(r)
	}
	return k
}

func (s *screen) atGate(k tea.KeyPressMsg) tea.Cmd {
	switch k.String() {
	case "enter", "space":
		s.started = true
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		if s.opts.Shell != nil {
			return suspend(s.opts.Shell)
		}
	}
	return nil
}

// use shows a reading.
func (s *screen) use(r model.Reading) {
	s.data = view.NewData(r, s.opts.Describe)
	s.refresh()
}

// list is how the tab's list is shown, nil if the tab has none.
func (s *screen) list() *choice {
	if view.Columns(s.tab) == nil {
		return nil
	}
	return &s.choices[s.tab]
}

// refresh derives what is shown from the reading and the user's choices.
func (s *screen) refresh() {
	if c := s.list(); c != nil {
		s.reselect(c)
	}
	s.findFinding()
	s.preview = nil
	if r := s.selected(); r != nil && r.Finding != nil {
		s.preview = s.trace(s.data.Ends(&r.Finding.Finding))
	}
	if s.tab == view.Path {
		s.tracePath()
	}
}

// reselect filters and sorts the list again. The cursor stays on its row.
func (s *screen) reselect(c *choice) {
	var all []view.Row
	switch s.tab {
	case view.Findings:
		all = s.data.Findings
	case view.Pods:
		all = s.data.Pods
	case view.Events:
		all = s.data.Events()
	}
	s.rows = view.Select(all, s.query, c.by, c.reverse)
	at := min(c.cursor, len(s.rows)-1)
	if c.id != "" && (at < 0 || s.rows[at].ID != c.id) {
		if i := slices.IndexFunc(s.rows, func(r *view.Row) bool { return r.ID == c.id }); i >= 0 {
			at = i
		}
	}
	s.choose(c, at)
}

// choose puts the cursor on a row. At the top it stays at the top, whichever row
// comes there: that is the worst, or the latest.
func (s *screen) choose(c *choice, at int) {
	c.cursor = max(0, min(at, len(s.rows)-1))
	c.id = ""
	if c.cursor > 0 {
		c.id = s.rows[c.cursor].ID
	}
}

// selected is the row under the cursor.
func (s *screen) selected() *view.Row {
	c := s.list()
	if c == nil || c.cursor >= len(s.rows) {
		return nil
	}
	return s.rows[c.cursor]
}

// findFinding looks up the shown finding in the newest reading. One that the
// reading no longer has stays as it was.
func (s *screen) findFinding() {
	if s.finding == nil {
		return
	}
	id := view.FindingID(s.finding)
	for i := range s.data.Reading.Findings {
		if f := &s.data.Reading.Findings[i]; view.FindingID(f) == id {
			s.finding = f
			return
		}
	}
}

func (s *screen) trace(pod, to netip.Addr) *model.Path {
	if s.opts.Trace == nil || !pod.IsValid() || !to.IsValid() {
		return nil
	}
	p := s.opts.Trace(s.data.Reading, s.data.Open(), pod, to)
	return &p
}

// tracePath follows the pod's packets to the selected peer.
func (s *screen) tracePath() {
	if !s.pod.IsValid() {
		s.pod, s.to = s.defaultEnds()
	}
	peers := s.data.Peers(s.pod)
	if !s.to.IsValid() && len(peers) > 0 {
		s.to = peers[0].Addr
	}
	fresh := s.path.Path == nil
	s.path.Path = s.trace(s.pod, s.to)
	if fresh {
		s.path = s.path.Turned()
		s.path.Cursor = s.path.Dead()
	}
	s.path.Peers = len(peers)
	s.path.Peer = max(slices.IndexFunc(peers, func(p view.Peer) bool { return p.Addr == s.to }), 0)
	s.path.Cursor = max(0, min(s.path.Cursor, len(s.path.Hops())-1))
	switch {
	case s.data.Reading.At.IsZero():
		s.path.Why = "waiting for the first reading"
	case !s.pod.IsValid():
		s.path.Why = "no pod is known on this node"
	case !s.to.IsValid():
		s.path.Why = "no packet of " + s.pod.String() + " was seen: there is no peer to show a path to"
	}
}

// defaultEnds are those of the worst finding, or else of a pod, if possible one
// with traffic.
func (s *screen) defaultEnds() (pod, to netip.Addr) {
	for i := range s.data.Open() {
		if pod, to := s.data.Ends(&s.data.Open()[i]); pod.IsValid() && to.IsValid() {
			return pod, to
		}
	}
	pod, to = netip.Addr{}, netip.Addr{}
	for _, p := range s.data.Reading.Snapshot.Pods {
		for _, a := range p.Addresses {
			switch peers := s.data.Peers(a.Addr()); {
			case len(peers) > 0:
				return a.Addr(), peers[0].Addr
			case !pod.IsValid():
				pod = a.Addr()
			}
		}
	}
	return pod, to
}

// View draws what Update left, and only when that changed.
func (s *screen) View() tea.View {
	if s.frame == "" {
		s.frame = s.draw()
	}
	v := tea.NewView(s.frame)
	v.AltScreen = s.started
	return v
}

func (s *screen) draw() string {
	if !s.started {
		return view.Gate(s.theme, s.data, s.opts.Intro, s.width)
	}
	return view.Draw(s.frameNow())
}

// frameNow is what is to be drawn.
func (s *screen) frameNow() view.Frame {
	f := view.Frame{
		Width: s.width, Height: s.height, Theme: s.theme, Data: s.data,
		Mode: s.mode(), Window: s.windows[s.window], Tab: s.tab, Path: s.path, Page: s.page, Scroll: s.scroll,
		Finding: s.finding, Preview: s.preview,
		Filter: s.filter.Value(), Editing: s.filter.Focused(), Caret: s.filter.Position(), FilterError: s.filterErr,
		Status: s.status, Hints: s.hints(),
	}
	if c := s.list(); c != nil {
		f.List = view.List{Rows: s.rows, Cursor: c.cursor, By: c.by, Reverse: c.reverse}
	}
	return f
}

// mode says whether the screen shows the present or something else.
func (s *screen) mode() string {
	at := s.data.Reading.At.Format("15:04:05")
	switch {
	case s.data.Reading.At.IsZero() && s.ended:
		return "ENDED"
	case s.data.Reading.At.IsZero():
		return "WAIT"
	case s.ended:
		return "ENDED " + at
	case s.player != nil:
		return replayMode(s.frozen, s.speed) + " " + at
	case s.still():
		return "RECORDED " + at
	case s.frozen:
		return "FROZEN " + at
	}
	return "LIVE"
}
