package view

import (
	"cmp"
	"math"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

func (c Cell) blank() bool { return !c.ByText && math.IsNaN(c.Order) }

func compare(a, b Cell) int {
	return model.Either(a.ByText && b.ByText, cmp.Compare(a.Text, b.Text), cmp.Compare(a.Order, b.Order))
}

// List is a list and how it is shown.
type List struct {
	Rows []*Row
	// Cursor is the selected row; -1 shows none. ID is the row's, empty at the top.
	Cursor int
	ID     string
	// By is the column that the list is sorted by, -1 for none.
	By      int
	Reverse bool
}

// window is the first of h rows to show. The selected one stays in the middle as far as there are rows.
func (l List) window(h int) int { return max(0, min(l.Cursor-h/2, len(l.Rows)-h)) }

// Selected is the row under the cursor, nil in an empty list or without any.
func (l *List) Selected() *Row {
	if l == nil || l.Cursor < 0 || l.Cursor >= len(l.Rows) {
		return nil
	}
	return l.Rows[l.Cursor]
}

// Choose puts the cursor on a row. At the top it stays at the top, whichever row
// comes there: that is the worst, or the latest.
func (l *List) Choose(at int) {
	l.Cursor, l.ID = max(0, min(at, len(l.Rows)-1)), ""
	if l.Cursor > 0 {
		l.ID = l.Rows[l.Cursor].ID
	}
}

// oneColumn is the width below which a list is one column.
const oneColumn = 72

// list draws a heading and the rows in exactly h lines.
func (t Theme) list(cols []Column, l List, w, h int, empty string) []string {
	if h <= 0 || w <= 0 {
		return nil
	}
	if w < oneColumn {
		return t.brief(l, w, h, empty)
	}
	widths := columnWidths(cols, l.Rows, w-1)
	lines := []string{t.paint(Heading, t.heading(cols, widths, l, w))}
	for i := l.window(h - 1); i < len(l.Rows) && len(lines) < h; i++ {
		lines = append(lines, t.row(cols, widths, l.Rows[i], i == l.Cursor, w))
	}
	if len(l.Rows) == 0 {
		lines = append(lines, model.Map(wrap(empty, w-1), func(row string) string { return " " + row })...)
	}
	return pad(lines, h)
}

// columnWidths gives each column its width, 0 where there is no room for it.
func columnWidths(cols []Column, rows []*Row, w int) []int {
	widths := make([]int, len(cols))
	flex, left := -1, w
	for i, c := range cols {
		switch {
		case c.From > w+1:
			continue
		case c.Width == 0:
			flex = i
		default:
			widths[i] = c.Width
			if c.Fit {
				widths[i] = c.fitted(rows, i)
			}
			left -= widths[i]
		}
		left--
	}
	if flex >= 0 {
		widths[flex] = max(left+1, 1)
	}
	return widths
}

// fitted is the width that the cells at i and the heading with its sort mark need, at most the column's own.
func (c Column) fitted(rows []*Row, i int) int {
	need := len(c.Title) + 1
	for _, r := range rows {
		if i < len(r.Cells) && (i == 0 || !r.Span) {
			need = max(need, width(r.Cells[i].Text)+model.Either(c.Sign, 2, 0))
		}
	}
	return min(need, c.Width)
}

func (t Theme) heading(cols []Column, widths []int, l List, w int) string {
	var r Row
	for i, c := range cols {
		title := c.Title
		if i == l.By && widths[i] > 0 {
			title = title[:min(len(title), widths[i]-1)] + model.Either(l.Reverse, "v", "^")
		}
		r.Cells = append(r.Cells, Cell{Text: title})
	}
	return t.row(cols, widths, &r, false, w)
}

func (t Theme) align(c Column, s string, w int) string {
	switch {
	case c.Right:
		return t.right(s, w)
	case c.Ends:
		s = t.ends(s, w)
	}
	return t.fit(s, w)
}

// ends cuts the middle out of what is wider than w.
func (t Theme) ends(s string, w int) string {
	if width(s) <= w || w <= 4 {
		return t.cut(s, w)
	}
	end := (w - 1) * 2 / 3
	return t.fit(s, w-end) + ansi.TruncateLeft(s, width(s)-end, "")
}

// row draws one row. The selected one is marked and inverted as a whole, so that it shows on terminals without colour.
func (t Theme) row(cols []Column, widths []int, r *Row, chosen bool, w int) string {
	var b strings.Builder
	used := 0
	for i, c := range cols {
		if widths[i] == 0 || i >= len(r.Cells) {
			continue
		}
		cell, room, span := r.Cells[i], widths[i], r.Span && c.Width == 0
		s := cell.Text
		if cell.Rates != nil {
			s = t.spark(cell.Rates, cell.Top, widths[i])
		}
		if span {
			room = max(w-1-used, room)
		}
		if sign := t.Sign(cell.Style); c.Sign && sign != "" {
			s = sign + " " + s
		}
		s = t.align(c, s, room)
		if used > 0 {
			s = " " + s
		}
		used += room + 1
		b.WriteString(t.cell(cell.Style, r, chosen, s))
		if span {
			break
		}
	}
	return t.mark(b.String(), r, chosen, w)
}

// cell paints a part of a row. A selected row keeps the colour of what it says.
func (t Theme) cell(s Style, r *Row, chosen bool, text string) string {
	switch {
	case r.Faint:
		s = Dim
	case chosen && t.inverted:
		s = r.Style
	}
	return t.on(s, chosen, text)
}

func (t Theme) mark(s string, r *Row, chosen bool, w int) string {
	if !chosen {
		return " " + t.cut(strings.TrimRight(s, " "), w-1)
	}
	return t.cell(r.Style, r, true, t.Sign(Selected)) + t.cut(s, w-1) + t.cell(Plain, r, true, strings.Repeat(" ", max(w-1-width(s), 0)))
}

// brief draws a list in one column, for narrow terminals.
func (t Theme) brief(l List, w, h int, empty string) []string {
	var lines []string
	for i := l.window(h); i < len(l.Rows) && len(lines) < h; i++ {
		r, chosen := l.Rows[i], i == l.Cursor
		word := model.Either(r.Word == "", "", r.Word+" ")
		brief := r.Brief
		if r.Pod != nil {
			brief = t.ends(brief, w-1-width(word))
		}
		lines = append(lines, t.mark(t.cell(r.Style, r, chosen, word)+t.cell(Plain, r, chosen, brief), r, chosen, w))
	}
	if len(l.Rows) == 0 {
		lines = append(lines, wrap(empty, w)...)
	}
	return pad(lines, h)
}

// limit gives exactly h lines. Where it leaves some out, the last line counts them if there is room for it.
func (t Theme) limit(lines []string, w, h int) []string {
	if over := len(lines) - h; over > 0 && h > 2 {
		lines = append(lines[:h-1:h-1], t.separator(model.Quantity(over+1, "more line"), w))
	}
	return pad(lines, h)
}

// pad gives exactly h lines.
func pad(lines []string, h int) []string {
	for len(lines) < h {
		lines = append(lines, "")
	}
	return lines[:max(h, 0)]
}

// beside puts two panes next to each other, the left one w columns wide.
func (t Theme) beside(left, right []string, w int) []string {
	h := max(len(left), len(right))
	left, right = pad(left, h), pad(right, h)
	out := make([]string, h)
	for i := range out {
		out[i] = strings.TrimRight(t.fit(left[i], w)+t.paint(Dim, bar)+right[i], " ")
	}
	return out
}

// separator is a line between panes, with a title.
func (t Theme) separator(title string, w int) string {
	s := strings.Repeat(rule, 3)
	if title != "" {
		s += " " + title + " "
	}
	return t.paint(Dim, t.cut(s+strings.Repeat(rule, max(w-width(s), 0)), w))
}
