package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// Drawing is a path as it is drawn: a box for each hop, from the pod at the left to the other
// end at the right, the forward path above the return path.
type Drawing struct {
	Path *model.Path
	// Names are those of Called.
	Names Names
	// Findings are those that a hop may be the end for.
	Findings []model.Finding
	// Window is the time that the counts are of, Scope says of which packets; it may be empty.
	Window time.Duration
	Scope  string
	// Width is filled. Rows bounds the lines, 0 does not.
	Width, Rows int
	// Return and Hop choose the hop at an index of a direction, -1 for none.
	Return bool
	Hop    int
}

// Meaning is what a piece of a drawing says, for those who colour it.
type Meaning uint8

// The meanings.
const (
	Around Meaning = iota // what packets do not concern: names, frames of what is idle
	Alive                 // packets pass, and none is lost
	Lossy                 // some are lost
	Ends                  // they end here
	Unseen                // nothing is counted here
	Ended                 // none is left to come here
	Both                  // names of both ends, and of nodes
)

// Piece is text of one meaning.
type Piece struct {
	Text string
	Is   Meaning
}

// strokes are the characters of a drawing. A text with 7 bits has others in their place (ASCII), each as wide.
var strokes = struct {
	// Corners from the upper left clockwise, then horizontal, vertical.
	solid, dashed, chosen [6]string
	live, idle, ended     string
	// Arrowheads, where a path ends, what was cut, and the line to a note.
	right, left, end, more, stem, elbow, mirrored string
}{
	solid: [6]string{"╭", "╮", "╯", "╰", "─", "│"}, dashed: [6]string{"┌", "┐", "┘", "└", "╌", "┆"}, chosen: [6]string{"┏", "┓", "┛", "┗", "━", "┃"},
	live: "━", idle: "─", ended: "╌", right: "►", left: "◄", end: "✕", more: "⋯", stem: "┬", elbow: "╰─ ", mirrored: " ─╯",
}

// box is a hop as it is drawn or, with folded, several that are not.
type box struct {
	hop            *model.PathHop
	index, folded  int
	title, body    string
	is             Meaning
	dashed, chosen bool
	// width is in columns; at is the first. gap is the length of the edge behind it.
	width, at, gap int
}

// Lines draws the path. Where there is no room for boxes, it is one line a direction.
func (d Drawing) Lines() [][]Piece {
	if d.Path == nil || d.Width < 8 {
		return nil
	}
	from, to := PathEnds(d.Names, d.Path)
	ends := d.ends(CleanColumns(from), CleanColumns(to))
	// Only the direction in which packets end is drawn, or that of the chosen hop.
	drawn := d.hops(true).dead() != nil && d.hops(false).dead() == nil
	if d.Hop >= 0 {
		drawn = d.Return
	}
	boxes, line := d.direction(drawn), d.summary(!drawn)
	if d.Rows > 0 && len(boxes)+2 > d.Rows {
		boxes = d.summary(drawn)
	}
	return slices.Concat([][]Piece{ends}, model.Either(drawn, line, boxes), model.Either(drawn, boxes, line))
}

// wide is the drawing at another width.
func (d Drawing) wide(columns int) Drawing {
	d.Width = columns
	return d
}

// ends has the pod at the left, the other end at the right.
func (d Drawing) ends(from, to string) []Piece {
	if room := d.Width - 2; Width(from)+Width(to)+3 > room {
		half := max(room/2-2, room-3-Width(to))
		from, to = d.cut(from, half), d.cut(to, room-3-min(Width(from), half))
	}
	gap, scope := max(d.Width-2-Width(from)-Width(to), 1), ""
	// Of all of a pod's packets only losses have figures.
	lossy := func(h *model.PathHop) bool { return h.Kind != model.HopBeyond && h.Lost.N > 0 }
	figures := d.Path.Pair || model.First(slices.Concat(d.Path.Forward, d.Path.Return), lossy) != nil
	if n := Width(d.Scope); figures && n > 0 && n+4 <= gap {
		scope = strings.Repeat(" ", (gap-n)/2) + d.Scope
	}
	return []Piece{{" " + from, Both}, {scope + strings.Repeat(" ", gap-Width(scope)), Unseen}, {to, Both}}
}

func (d Drawing) cut(s string, w int) string {
	if Width(s) <= w {
		return s
	}
	return ansi.Truncate(s, max(w, 0), strokes.more)
}

func (d Drawing) hops(back bool) direction {
	return model.Either(back, direction{"return", d.Path.Return}, direction{"forward", d.Path.Forward})
}

// direction draws one direction: the nodes where there are several, boxes, and what decides where
// packets end.
func (d Drawing) direction(back bool) [][]Piece {
	hops := d.hops(back).hops
	if len(hops) == 0 {
		return d.summary(back)
	}
	boxes := d.fit(d.boxes(back, hops), back)
	if boxes == nil {
		return d.summary(back)
	}
	c, top := &canvas{w: d.Width}, 0
	if slices.ContainsFunc(hops, func(h model.PathHop) bool { return h.Node != "" }) {
		d.nodes(c, boxes)
		top = 1
	}
	for i := range boxes {
		c.box(top, &boxes[i])
		if i+1 < len(boxes) {
			d.edge(c, top+1, boxes, i, back)
		}
	}
	if noted, note, is := d.notable(boxes); noted != nil {
		d.note(c, top+3, noted, note, is)
	}
	return c.lines()
}

func (d Drawing) boxes(back bool, hops []model.PathHop) []box {
	out, ended := make([]box, 0, len(hops)), false
	for i := range hops {
		h := &hops[i]
		b := box{hop: h, index: i, title: hopTitle(h), is: d.health(h), dashed: h.Kind == model.HopBeyond || h.Kind == model.HopBetween, chosen: d.Hop == i && d.Return == back}
		b.body = d.figures(h)
		switch {
		case ended:
			// What is counted here are other packets.
			b.is, b.dashed = Ended, true
			b.body = model.Either(d.Path.Pair, b.body, uncounted)
		case h.Dead:
			b.body, ended = strokes.end+" "+b.body, true
		}
		if h.Kind == model.HopBeyond {
			text := "not visible from this node"
			if h.Dead {
				text = strokes.end + " no reply"
				if h.Unanswered > 0 && d.Width >= 100 {
					text += " to " + model.Quantity(h.Unanswered, "packet")
				}
			} else if d.Width < 100 {
				text = model.Either(d.Width < 60, "unseen", "not visible")
			}
			b.body = text
		}
		out = append(out, b)
	}
	if last := hops[len(hops)-1]; last.Dead && last.Kind != model.HopBeyond && last.Kind != model.HopPod && last.Kind != model.HopLocal {
		// What the packets are for is drawn all the same.
		b := box{hop: &model.PathHop{Kind: model.HopPod}, index: -2, title: "pod", body: "not reached", is: Ended, dashed: true}
		if !back {
			name := d.Names[d.Path.To]
			last := name.Other[strings.LastIndex(name.Other, "/")+1:]
			b.title = CleanColumns(cmp.Or(name.Pod, last, name.String(), addrText(d.Path.To)))
		}
		out = append(out, b)
	}
	if back {
		slices.Reverse(out)
	}
	return out
}

func (d Drawing) health(h *model.PathHop) Meaning {
	seen := h.Counted()
	switch {
	case h.Dead:
		return Ends
	case h.Lost.Known && h.Lost.N > 0, h.Finding != "":
		return Lossy
	case !seen.Known:
		return Unseen
	case seen.N == 0:
		return Around
	}
	return Alive
}

const uncounted = "    -  "

// figures are a hop's packets per second and what it loses, as wide as they ever are. Of all of a pod's packets,
// fewer go on at each hop, since not all have one way: as figures these would look like a loss.
func (d Drawing) figures(h *model.PathHop) string {
	seen := h.Counted()
	switch {
	case !seen.Known:
		return uncounted
	case !d.Path.Pair && d.health(h) == Alive:
		return " passes"
	}
	per := func(n uint64) string {
		if d.Window <= 0 {
			return SI(n)
		}
		return Rate(float64(n)/d.Window.Seconds()) + "/s"
	}
	text := fmt.Sprintf("%7s", per(seen.N))
	switch {
	case h.Dead && h.Lost.Known && h.Lost.N > seen.N:
		text = fmt.Sprintf("%7s", per(h.Lost.N)) // what comes is not counted, and nothing goes on
	case h.In.Known && h.Out.Known && h.In.N > 0 && h.Out.N == 0 && h.Dead:
		text = per(seen.N) + " > 0"
	case h.Lost.Known && h.Lost.N > 0 && seen.N > 0:
		text += fmt.Sprintf(" -%d%%", max(1, min(100, int(math.Round(100*float64(h.Lost.N)/float64(seen.N))))))
	}
	return text
}

// hopNames are the titles of the kinds of hop that do not name a link.
var hopNames = map[model.HopKind]string{
	model.HopPod: "pod", model.HopConntrack: "NAT", model.HopPolicy: "rules", model.HopRoute: "route", model.HopNeighbor: "neighbour",
	model.HopLocal: "this node", model.HopBeyond: "network", model.HopBetween: "between the nodes",
}

func hopTitle(h *model.PathHop) string {
	name := hopNames[h.Kind]
	switch {
	case h.Kind == model.HopBridge:
		name = strings.TrimSpace("bridge " + h.Link)
	case h.Kind == model.HopQueue:
		name = strings.TrimSpace("queue " + h.Link)
	case h.Kind == model.HopLink && h.Role == model.RoleUplink:
		name = strings.TrimSpace("uplink " + h.Link)
	}
	return CleanColumns(cmp.Or(name, h.Link, string(h.Kind)))
}

// rank orders hops by how much is lost with them where not all fit.
func (d Drawing) rank(boxes []box, i int, back bool) int {
	b, next := &boxes[i], model.Either(back, i-1, i+1)
	switch {
	case b.folded > 0:
		return 0
	case b.chosen:
		return 9
	case b.is == Ends || b.hop.Finding != "":
		return 10
	case next >= 0 && next < len(boxes) && boxes[next].is == Ends:
		return 8
	case b.hop.Kind == model.HopBeyond || b.hop.Kind == model.HopBetween || i == 0 || i == len(boxes)-1:
		return 7
	case b.is == Lossy:
		return 6
	}
	return map[model.HopKind]int{model.HopLink: 4, model.HopBridge: 3, model.HopPolicy: 2, model.HopConntrack: 2}[b.hop.Kind] + 1
}

// foldText stands for hops that are not drawn.
func (d Drawing) foldText(n int) string {
	return fmt.Sprintf("%s %s %s", strokes.more, model.Quantity(n, "hop"), strokes.more)
}

const least = 3

// fit folds hops until the rest fits, and gives boxes their places and the edges their length.
// It is nil where not even two boxes fit.
func (d Drawing) fit(boxes []box, back bool) []box {
	// What is drawn narrower has shorter titles.
	for _, most := range []int{18, 12, 9, 7} {
		out := slices.Clone(boxes)
		for {
			if used := d.measure(out, most); used <= d.Width {
				place(out, d.Width-used)
				return out
			}
			lowest := -1
			for i := range out {
				if out[i].folded == 0 && d.rank(out, i, back) < 7 && (lowest < 0 || d.rank(out, i, back) < d.rank(out, lowest, back)) {
					lowest = i
				}
			}
			if lowest < 0 {
				break
			}
			out = fold(out, lowest)
		}
	}
	return nil
}

// fold folds the box at i together with folded ones beside it.
func fold(boxes []box, i int) []box {
	b, from, to := box{folded: 1, is: boxes[i].is, index: boxes[i].index}, i, i+1
	if i > 0 && boxes[i-1].folded > 0 {
		from--
		b.folded += boxes[from].folded
	}
	if to < len(boxes) && boxes[to].folded > 0 {
		b.folded += boxes[to].folded
		to++
	}
	return slices.Replace(boxes, from, to, b)
}

// measure gives boxes their widths, and returns that of all with the shortest edges.
func (d Drawing) measure(boxes []box, most int) int {
	used := 0
	for i := range boxes {
		b := &boxes[i]
		if b.folded > 0 {
			b.title = d.foldText(b.folded)
			if most < 18 {
				b.title = strokes.more + strconv.Itoa(b.folded) + strokes.more
			}
			b.width = Width(b.title) + 2
		} else {
			b.title = d.cut(b.title, most)
			b.width = max(Width(b.title), Width(b.body)) + 4
		}
		used += b.width
	}
	return used + least*(len(boxes)-1)
}

// place spreads boxes over the width.
func place(boxes []box, spare int) {
	edges, at := max(len(boxes)-1, 1), 0
	for i := range boxes {
		boxes[i].at, boxes[i].gap = at, least+spare/edges+model.Either(i < spare%edges, 1, 0)
		at += boxes[i].width + boxes[i].gap
	}
}

// edge draws what leads from a box to the next, in the direction of the packets.
func (d Drawing) edge(c *canvas, y int, boxes []box, i int, back bool) {
	from, to := &boxes[i], &boxes[i+1]
	if back {
		from, to = to, from
	}
	line, is := strokes.idle, Unseen
	switch {
	case from.is == Ends || from.is == Ended:
		line, is = strokes.ended, Ended
		if from.is == Ends {
			is = Ends
		}
	case from.is == Around || to.is == Around:
		is = Around
	case from.is == Alive || from.is == Lossy || to.is == Alive || from.is == Unseen && to.is == Ends && to.hop.In.N > 0:
		line, is = strokes.live, Alive
		if from.is == Lossy {
			is = Lossy
		}
	}
	at, n := boxes[i].at+boxes[i].width, boxes[i].gap
	run := strings.Repeat(line, n-1)
	switch {
	case is == Ends:
		run = strings.Repeat(line, (n-1)/2) + strokes.end + strings.Repeat(line, n-1-(n-1)/2)
	case to.folded > 0:
		run += line
	case back:
		run = strokes.left + run
	default:
		run += strokes.right
	}
	c.put(at, y, run, is)
	for _, b := range []*box{&boxes[i], &boxes[i+1]} {
		if b.folded > 0 {
			// It is part of the line.
			pad := (b.width - Width(b.title)) / 2
			c.put(b.at, y, strings.Repeat(line, pad), is)
			c.put(b.at+b.width-pad, y, strings.Repeat(line, pad), is)
		}
	}
}

// nodes writes each node's name above its first box.
func (d Drawing) nodes(c *canvas, boxes []box) {
	name := ""
	for i, b := range boxes {
		if b.hop == nil || b.hop.Node == "" || b.hop.Node == name {
			continue
		}
		name = b.hop.Node
		end := d.Width
		if n := slices.IndexFunc(boxes[i:], func(next box) bool { return next.hop != nil && next.hop.Node != name }); n > 0 {
			end = boxes[i+n].at
		}
		c.put(b.at, 0, d.cut(" "+CleanColumns(name), end-b.at), Both)
	}
}

// notable is the box that most has to be said of: where packets end, or else are lost.
func (d Drawing) notable(boxes []box) (b *box, text string, is Meaning) {
	lossy := model.First(boxes, func(b *box) bool { return b.is == Lossy && b.hop != nil })
	b = cmp.Or(model.First(boxes, func(b *box) bool { return b.is == Ends }), lossy)
	if b == nil || b.is == Ends && b.hop.Kind == model.HopBeyond {
		return nil, "", 0
	}
	text = d.why(b.hop)
	switch end := strokes.end; {
	case b.hop.Dead && b.hop.Lost.Known && b.hop.Lost.N > 0:
		text = end + " " + model.Quantity(b.hop.Lost.N, "packet") + " end here: " + text
	case b.hop.Dead && b.hop.Kind == model.HopConntrack:
		// They go on, and what answers them does not come back.
		text = end + " packets go astray from here: " + text
	case b.hop.Dead:
		text = end + " packets end here: " + text
	case b.hop.Lost.N > 0:
		text = model.Quantity(b.hop.Lost.N, "packet") + " lost here: " + text
	}
	return b, text, b.is
}

// why is what the tables decide at a hop or, where that lets packets on and they end all the same, what the finding says.
func (d Drawing) why(h *model.PathHop) string {
	text := h.Decision
	if h.Dead && h.Finding != "" && (h.Passes || (h.Kind == model.HopRoute || h.Kind == model.HopPod) && h.Reason == "") {
		f := model.Find(d.Findings, func(f model.Finding) bool { return f.Code == h.Finding && slices.Contains(f.Pods, d.Path.Pod) })
		text = cmp.Or(f.Title, string(h.Finding))
	}
	return CleanColumns(Prose(d.Names, text))
}

// twoRows wraps a text. What does not fit into two rows is cut.
func (d Drawing) twoRows(text string, room int) []string {
	rows := Wrap(text, room)
	if len(rows) > 2 {
		rows = []string{rows[0], strings.Join(rows[1:], " ")}
	}
	for i := range rows {
		rows[i] = d.cut(rows[i], room)
	}
	return rows
}

// note stands at y, below a box.
func (d Drawing) note(c *canvas, y int, b *box, text string, is Meaning) {
	at := b.at + b.width/2
	c.put(at, y-1, strokes.stem, is)
	if room := d.Width - at - Width(strokes.elbow); Width(text) <= room || room*2 > d.Width {
		for i, row := range d.twoRows(text, room) {
			c.put(at+Width(strokes.elbow), y+i, row, is)
		}
		c.put(at, y, strokes.elbow, is)
		return
	}
	room := at - Width(strokes.mirrored) + 1
	c.put(at+1-Width(strokes.mirrored), y, strokes.mirrored, is)
	for i, row := range d.twoRows(text, room) {
		c.put(room-Width(row), y+i, row, is)
	}
}

// summary is a direction in one line.
func (d Drawing) summary(back bool) [][]Piece {
	x := d.hops(back)
	arrow := model.Either(back, strokes.left+strokes.live+strokes.live, strokes.live+strokes.live+strokes.right)
	text, is := "unknown", Unseen
	if h := x.dead(); h != nil {
		text, is = fmt.Sprintf("%s ends at %s: %s", strokes.end, h.Name(), d.why(h)), Ends
	} else if sent := d.Path.Dead(); back && !d.Path.Pair && sent != nil && sent.Kind == model.HopBeyond {
		// What was counted are others' replies.
		text, is, arrow = "no reply from "+addrText(d.Path.To), Around, strings.ReplaceAll(arrow, strokes.live, strokes.idle)
	} else if h := model.First(x.hops, func(h *model.PathHop) bool { return h.Counted().Known && h.Kind != model.HopBeyond }); h != nil {
		n := h.Counted().N
		text, is = fmt.Sprintf("%s in %s at %s", model.Quantity(n, "packet"), Duration(d.Window), h.Name()), Alive
		if n == 0 {
			is, arrow = Around, strings.ReplaceAll(arrow, strokes.live, strokes.idle)
		}
	} else if len(x.hops) > 0 {
		text = "not counted"
	}
	return [][]Piece{{{d.cut(fmt.Sprintf(" %-7s %s ", x.name, arrow)+CleanColumns(text), d.Width), is}}}
}

// canvas is rows of cells, each with what it means. A cell behind a wide character is empty.
type canvas struct {
	w    int
	rows [][]Piece
}

func (c *canvas) put(x, y int, text string, is Meaning) {
	for len(c.rows) <= y {
		row := make([]Piece, c.w)
		for i := range row {
			row[i].Text = " "
		}
		c.rows = append(c.rows, row)
	}
	for text != "" {
		char, w := ansi.FirstGraphemeCluster(text, ansi.GraphemeWidth)
		if char == "" || x < 0 || x+w > c.w {
			return
		}
		for i := range w {
			c.rows[y][x+i] = Piece{"", is}
		}
		c.rows[y][x].Text, x, text = char, x+w, text[len(char):]
	}
}

// box draws a box of three rows.
func (c *canvas) box(y int, b *box) {
	if b.folded > 0 {
		c.put(b.at+(b.width-Width(b.title))/2, y+1, b.title, Around)
		return
	}
	s := strokes.solid
	switch {
	case b.chosen:
		s = strokes.chosen
	case b.dashed:
		s = strokes.dashed
	}
	inner, title := b.width-2, " "+b.title+" "
	c.put(b.at, y, s[0]+title+strings.Repeat(s[4], max(inner-Width(title), 0))+s[1], b.is)
	c.put(b.at, y+1, s[5]+strings.Repeat(" ", inner)+s[5], b.is)
	c.put(b.at+2, y+1, b.body, b.is)
	c.put(b.at, y+2, s[3]+strings.Repeat(s[4], inner)+s[2], b.is)
}

// lines joins the cells of one meaning.
func (c *canvas) lines() [][]Piece {
	out := make([][]Piece, len(c.rows))
	for y, row := range c.rows {
		for _, cell := range row {
			if n := len(out[y]); n > 0 && (out[y][n-1].Is == cell.Is || cell.Text == " ") {
				out[y][n-1].Text += cell.Text
			} else {
				out[y] = append(out[y], cell)
			}
		}
	}
	return out
}

// SI is a count in at most five columns.
func SI(n uint64) string {
	for _, u := range []struct {
		n    uint64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		// Below ten thousand all digits fit.
		switch {
		case n < u.n || n < 10_000:
		case n < 100*u.n:
			return fmt.Sprintf("%d.%d%s", n/u.n, n%u.n*10/u.n, u.name)
		default:
			return strconv.FormatUint(n/u.n, 10) + u.name
		}
	}
	return strconv.FormatUint(n, 10)
}

// Rate is a number per second; small ones keep a decimal.
func Rate(f float64) string {
	switch {
	case math.IsNaN(f) || f < 0:
		return "-"
	case f == 0:
		return "0"
	case f < 0.05:
		return "<0.1"
	case f < 10:
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	case f < math.MaxInt64:
		return SI(uint64(f + 0.5))
	}
	return "-"
}

// wideColumns is the width of what is drawn where no terminal has another.
const wideColumns = 120

// drawing prints a drawing, each line behind some text.
func (p *printer) drawing(before string, d Drawing) {
	code := map[Meaning]string{Alive: cyan, Lossy: yellow, Ends: magenta, Both: bold}
	for _, line := range d.Lines() {
		if n := len(line); n > 0 {
			line[n-1].Text = strings.TrimRight(line[n-1].Text, " ")
		}
		b := strings.Builder{}
		b.WriteString(before)
		for _, x := range line {
			b.WriteString(p.paint(code[x.Is], x.Text))
		}
		p.line(b.String())
	}
}
