package tui

import (
	"cmp"
	"fmt"
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

// screen is the Bubble Tea model: the newest reading, the one that is shown, and how.
type screen struct {
	// Frame is what is shown; shown completes it.
	view.Frame
	opts   Options
	keys   []binding
	player Player
	// next waits for a reading.
	next tea.Cmd

	// unsized says that the next size was not reported by the terminal but assumed, supposed that the last one was.
	unsized, supposed bool
	// started is false while the gate is shown.
	started bool
	// themed says that the user chose the theme.
	themed bool

	latest        model.Reading
	history       history
	frozen, ended bool
	speed         float64
	// window is the index of the selected one.
	windows []time.Duration
	window  int

	from  view.TabID // the tab before Path
	lists [view.Tabs]view.List
	under view.PageID // the page that the help covers

	filter textinput.Model
	query  view.Query

	pod, to  netip.Addr
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
		Frame: view.Frame{Theme: view.NewTheme(o.theme()), Data: view.NewData(model.Reading{}, 0, nil), Tab: view.Findings},
		opts:  o, history: history{at: -1},
		keys: keyTable(), next: next, filter: input, speed: 1, windows: windows,
	}
	if s.window = slices.Index(windows, o.Window); s.window < 0 {
		s.windows, s.window = append([]time.Duration{o.Window}, windows...), 0
	}
	s.player, _ = o.Source.(Player)
	for i := range s.lists {
		s.lists[i].By = -1
	}
	s.refresh()
	return s
}

func (s *screen) Init() tea.Cmd { return s.next }

// Update takes one message. It reads no clock and does no input or output.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case readingMsg:
		s.latest = msg.Reading
		s.history.add(msg.Reading, s.player != nil)
		if !s.frozen || s.player != nil {
			s.use(msg.Reading)
		}
		cmd = s.next
	case endedMsg:
		s.ended = true
	case exportedMsg:
		s.Status = "report written to " + msg.path
		if msg.err != nil {
			s.Status = "export failed: " + msg.err.Error()
		}
	case tea.WindowSizeMsg:
		cmd = s.resize(msg)
	case tea.BackgroundColorMsg:
		if !s.themed {
			s.setTheme(model.Either(msg.IsDark(), "dark", "light"))
		}
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
func (s *screen) resize(msg tea.WindowSizeMsg) (cmd tea.Cmd) {
	if s.Width > 0 && !s.unsized && (s.supposed || msg.Width != s.Width || msg.Height != s.Height) {
		cmd = s.start()
	}
	s.Width, s.Height = msg.Width, msg.Height
	s.supposed, s.unsized = s.unsized, false
	return cmd
}

// start leaves the gate. Only now someone is there whose terminal can be asked for its background.
func (s *screen) start() tea.Cmd {
	asked := s.started || s.opts.mono()
	s.started = true
	if asked {
		return nil
	}
	return tea.RequestBackgroundColor
}

func (s *screen) setTheme(name string) {
	_, profile, ascii := s.opts.theme()
	s.Theme = view.NewTheme(name, profile, ascii)
}

func (s *screen) key(k tea.KeyPressMsg) tea.Cmd {
	if k.Mod.Contains(tea.ModAlt) {
		return tea.Sequence(s.key(tea.KeyPressMsg{Code: tea.KeyEscape}), s.key(unescaped(k)))
	}
	s.Status = ""
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
		return s.start()
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		if s.opts.Job {
			return tea.Suspend
		}
	}
	return nil
}

func (s *screen) use(r model.Reading) {
	s.Data = view.NewData(r, s.windows[s.window], s.opts.Describe)
	if s.opts.Reach != nil && len(r.Nodes) == 0 {
		s.Data.Reach(func() model.Matrix { return s.opts.Reach(s.Data.Reading) })
	}
	s.refresh()
}

// list is how the tab's list is shown, nil if the tab has none.
func (s *screen) list() *view.List {
	if !s.Tab.HasList() {
		return nil
	}
	return &s.lists[s.Tab]
}

// refresh derives what is shown from the reading and the user's choices.
func (s *screen) refresh() {
	if l := s.list(); l != nil {
		s.reselect(l)
	}
	s.findFinding()
	s.Preview = nil
	if r := s.selected(); r != nil {
		s.Preview = s.trace(s.endsOf(r))
	}
	if s.Tab == view.Path {
		s.tracePath()
	}
}

// reselect filters and sorts the list again. The cursor stays on its row.
func (s *screen) reselect(l *view.List) {
	l.Rows = view.Select(s.Data.Rows(s.Tab), s.query, l.By, l.Reverse)
	at := slices.IndexFunc(l.Rows, func(r *view.Row) bool { return r.ID == l.ID })
	if r := l.Selected(); at < 0 || l.ID == "" || r != nil && r.ID == l.ID {
		at = l.Cursor
	}
	l.Choose(at)
}

func (s *screen) selected() *view.Row { return s.list().Selected() }

// findFinding looks up the shown finding in the newest reading. One that the reading no longer has stays as it was.
func (s *screen) findFinding() {
	if s.Finding == nil {
		return
	}
	id := view.FindingID(s.Finding)
	s.Finding = cmp.Or(model.First(s.Data.Reading.Findings, func(f *model.Tracked) bool { return view.FindingID(f) == id }), s.Finding)
}

// endsOf are the ends of the path that shows a row best.
func (s *screen) endsOf(r *view.Row) (pod, to netip.Addr) {
	if r.Finding != nil {
		return s.Data.Ends(&r.Finding.Finding)
	}
	if s.Tab == view.Map {
		return s.Data.WorstEnds(r.From)
	}
	if r.From.IsValid() && !r.To.IsValid() {
		return s.Data.PodEnds(r.From)
	}
	return r.From, r.To
}

func (s *screen) trace(pod, to netip.Addr) *model.Path {
	if s.opts.Trace == nil || !pod.IsValid() || !to.IsValid() {
		return nil
	}
	p := s.opts.Trace(s.Data.Reading, s.Data.Open(), pod, to)
	return &p
}

// tracePath follows the pod's packets to the selected peer.
func (s *screen) tracePath() {
	if !s.pod.IsValid() {
		s.pod, s.to = s.defaultEnds()
	}
	peers := s.Data.Peers(s.pod)
	if !s.to.IsValid() && len(peers) > 0 {
		s.to = peers[0]
	}
	fresh := s.Path.Path == nil
	s.Path.Path = s.trace(s.pod, s.to)
	if fresh {
		s.Path = s.Path.Turned()
		s.Path.Cursor = s.Path.Dead()
	}
	s.Path.Peers = len(peers)
	s.Path.Peer = max(slices.Index(peers, s.to), 0)
	s.Path.Cursor = max(0, min(s.Path.Cursor, len(s.Path.Hops())-1))
	switch {
	case s.Data.Reading.At.IsZero():
		s.Path.Why = "waiting for the first reading"
	case !s.pod.IsValid():
		s.Path.Why = "no known pod on this node"
	case !s.to.IsValid():
		s.Path.Why = "no packet of " + s.pod.String() + " was seen, so there is no path to show"
	}
}

// defaultEnds are those of the worst finding, or else of a pod, if possible one with traffic.
func (s *screen) defaultEnds() (pod, to netip.Addr) {
	for f := range model.Each(s.Data.Open()) {
		if pod, to := s.Data.Ends(f); pod.IsValid() && to.IsValid() {
			return pod, to
		}
	}
	for _, p := range s.Data.Reading.Snapshot.Pods {
		for _, a := range p.Addresses {
			if _, to := s.Data.PodEnds(a.Addr()); to.IsValid() {
				return a.Addr(), to
			}
			pod = cmp.Or(pod, a.Addr())
		}
	}
	return pod, to
}

// View draws what Update left, and only when that changed.
func (s *screen) View() tea.View {
	switch {
	case s.frame != "":
	case s.started:
		s.frame = view.Draw(s.shown())
	default:
		s.frame = view.Gate(s.Theme, s.Data, s.opts.Intro, s.Width)
	}
	v := tea.NewView(s.frame)
	v.AltScreen = s.started
	return v
}

// shown is the frame with what follows from the rest.
func (s *screen) shown() view.Frame {
	f := s.Frame
	f.Track = s.track()
	f.Mode, f.Window, f.Hints = s.mode(), s.windows[s.window], s.hints()
	f.Filter, f.Editing, f.Caret = s.filter.Value(), s.filter.Focused(), s.filter.Position()
	if l := s.list(); l != nil {
		f.List = *l
	}
	return f
}

// mode says whether the screen shows the present or something else.
func (s *screen) mode() string {
	at := s.Data.Reading.At.Format("15:04:05")
	switch {
	case s.Data.Reading.At.IsZero() && s.ended:
		return "ENDED"
	case s.Data.Reading.At.IsZero():
		return "WAIT"
	case s.ended:
		return "ENDED " + at
	case s.player != nil && s.frozen:
		return "PAUSED " + at
	case s.player != nil:
		return fmt.Sprintf("REPLAY x%g %s", s.speed, at)
	case s.still():
		return "RECORDED " + at
	case s.history.at >= 0:
		return "PAST " + at
	case s.frozen:
		return "FROZEN " + at
	}
	return "LIVE"
}
