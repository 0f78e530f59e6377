package report

import (
	"bufio"
	"cmp"
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// The size of a character of a drawing, in pixels.
const cellWidth, cellHeight = 8, 17

// lineShapes are the characters that are drawn as lines, so that they meet in every font: SVG paths within a character.
var lineShapes = map[string]string{
	"─": "m0 8h8", "━": "m0 8h8", "╌": "m0 8h8", "│": "m4 0v17", "┆": "m4 0v17", "┬": "m0 8h8m-4 0v9",
	"╭": "m4 17v-5q0-4 4-4", "╮": "m0 8q4 0 4 4v5", "╯": "m0 8q4 0 4-4v-4", "╰": "m4 0v4q0 4 4 4",
	"┌": "m8 8h-4v9", "┐": "m0 8h4v9", "┘": "m0 8h4v-8", "└": "m8 8h-4v-8",
	"►": "m0 4l8 4-8 4z", "◄": "m8 4l-8 4 8 4z", "✕": "m1 4l6 8m0-8l-6 8",
}

// lineStyles are the classes of those that are not thin lines.
var lineStyles = map[string]string{"━": " thick", "✕": " thick", "╌": " dashed", "┆": " dashed", "►": " arrow", "◄": " arrow"}

// meanings are the classes of pieces.
var meanings = [...]string{Around: "around", Alive: "alive", Lossy: "lossy", Ends: "ends", Unseen: "unseen", Ended: "ended", Both: "both"}

// picture is lines of pieces as SVG.
type picture struct {
	// Class tells a wide and a narrow picture of the same apart.
	Class, Title  string
	Width, Height int
	Lines         []pictureLine
	Texts         []pictureText
}

// ViewWidth and ViewHeight are with a margin.
func (p *picture) ViewWidth() int  { return p.Width + 2*cellWidth }
func (p *picture) ViewHeight() int { return p.Height + 2*cellWidth }

// pictureLine is what is drawn with lines of one class, as the data of an SVG path.
type pictureLine struct{ Class, Data string }

type pictureText struct {
	Class, Text     string
	X, Y, TextWidth int
}

// newPicture draws lines. Where packets end for no critical finding, that has the colour of its severity.
func newPicture(title string, lines [][]Piece, worst model.Severity) *picture {
	p := &picture{Title: Clean(title), Height: len(lines)*cellHeight + 3}
	data, order := map[string]*strings.Builder{}, []string{}
	for y, line := range lines {
		x := 0
		for _, piece := range line {
			class := meanings[piece.Is]
			if piece.Is == Ends {
				class = cmp.Or(map[model.Severity]string{model.Warning: "lossy", model.Info: "info"}[worst], class)
			}
			for rest := piece.Text; rest != ""; {
				char, _ := ansi.FirstGraphemeCluster(rest, ansi.GraphemeWidth)
				if shape := lineShapes[char]; shape != "" {
					n := 1
					for shape == "m0 8h8" && strings.HasPrefix(rest[n*len(char):], char) {
						n++
					}
					key := class + lineStyles[char]
					if data[key] == nil {
						data[key], order = &strings.Builder{}, append(order, key)
					}
					if n > 1 {
						shape = fmt.Sprintf("m0 8h%d", n*cellWidth)
					}
					fmt.Fprintf(data[key], "M%d %d%s", x*cellWidth, y*cellHeight, shape)
					x, rest = x+n, rest[n*len(char):]
					continue
				}
				if char == " " {
					x, rest = x+1, rest[1:]
					continue
				}
				end := textEnd(rest)
				width := Width(rest[:end])
				p.Texts = append(p.Texts, pictureText{class, rest[:end], x * cellWidth, y*cellHeight + 12, width * cellWidth})
				x, rest = x+width, rest[end:]
			}
		}
		p.Width = max(p.Width, x*cellWidth)
	}
	p.Lines = model.Map(order, func(class string) pictureLine { return pictureLine{class, data[class].String()} })
	return p
}

// textEnd is where a text ends: at two spaces, which SVG would join, or at what is drawn with lines.
func textEnd(s string) int {
	for i, r := range s {
		if i > 0 && (lineShapes[string(r)] != "" || strings.HasPrefix(s[i:], "  ")) {
			s = s[:i]
			break
		}
	}
	return len(strings.TrimRight(s, " "))
}

// picture draws a path at a width in characters; nil where nothing is to be drawn.
func (o outline) picture(d *Drawing, width int) *picture {
	if d == nil {
		return nil
	}
	from, to := PathEnds(o.names, d.Path)
	worst := model.Critical
	if dead := d.Path.Dead(); dead != nil && dead.Finding != "" {
		worst = Worst(o.findings, dead.Finding)
	}
	return newPicture("path "+from+" > "+to, d.wide(width).Lines(), worst)
}

// writeSVG draws the path that the document is about, or that shows the worst finding; without one, what the verdict is.
func writeSVG(w *bufio.Writer, o outline) error {
	d := o.drawn
	for i := 0; i < len(o.findings) && d == nil; i++ {
		d = o.drawing(i)
	}
	p := o.picture(d, wideColumns)
	if p == nil {
		text := o.verdict
		if len(o.findings) > 0 {
			severity, rest := Headline(o.names, &o.findings[0])
			text = severity + " " + rest
		}
		lines := model.Map(Wrap(bound(text), wideColumns), func(row string) []Piece { return []Piece{{row, Both}} })
		p = newPicture("verdict", lines, "")
	}
	return pageTemplate().ExecuteTemplate(w, "alone", p)
}
