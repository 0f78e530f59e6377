package main

import (
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// ink is how a piece of a frame is drawn.
type ink struct {
	fill, back           string
	bold, faint, reverse bool
}

// set applies the parameters of one SGR sequence.
func (k *ink) set(params string) {
	list := strings.Split(params, ";")
	for i := 0; i < len(list); i++ {
		switch list[i] {
		case "", "0":
			*k = ink{}
		case "1":
			k.bold = true
		case "2":
			k.faint = true
		case "7":
			k.reverse = true
		case "22":
			k.bold, k.faint = false, false
		case "27":
			k.reverse = false
		case "39":
			k.fill = ""
		case "49":
			k.back = ""
		case "38", "48":
			if i+4 < len(list) {
				color := fmt.Sprintf("rgb(%s)", strings.Join(list[i+2:i+5], ","))
				if list[i] == "38" {
					k.fill = color
				} else {
					k.back = color
				}
				i += 4
			}
		}
	}
}

// scene is a frame of the screen, and what a picture says below it.
type scene struct{ frame, caption string }

const (
	cellWidth, cellHeight = 8.428, 18
	paper, inked, margin  = "#1e2127", "#d7dae0", 12
	// shownFor is for how many seconds each of several scenes is shown.
	shownFor = 5
)

// picture is a frame as SVG, or several that are shown one after the other. Each run of one look is as
// wide as its columns, whatever the font is. Who does not show motion shows the first.
func picture(label string, columns int, scenes ...scene) string {
	rows := strings.Count(strings.TrimRight(scenes[0].frame, "\n"), "\n") + 1
	if scenes[0].caption != "" {
		rows += 2
	}
	var b strings.Builder
	w, h := float64(columns)*cellWidth+2*margin, rows*cellHeight+2*margin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d"`, w, h, w, h)
	fmt.Fprintf(&b, ` role="img" aria-label="%s">`+"\n", html.EscapeString(label))
	if n := len(scenes); n > 1 {
		fmt.Fprintf(&b, "<style>.s{visibility:hidden;animation:s %ds step-end infinite}"+
			"@keyframes s{0%%{visibility:visible}%.3f%%{visibility:hidden}}"+
			"@media (prefers-reduced-motion){.s{animation:none}}</style>\n", n*shownFor, 100/float64(n))
	}
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", paper)
	b.WriteString(`<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">` + "\n")
	for i, s := range scenes {
		if i > 0 {
			fmt.Fprintf(&b, `<g class="s" visibility="hidden" style="animation-delay:%ds">`+"\n", i*shownFor)
			fmt.Fprintf(&b, `<rect width="100%%" height="100%%" rx="8" fill="%s"/>`+"\n", paper)
		}
		s.draw(&b)
		if s.caption != "" {
			ink{fill: "rgb(255,214,102)", bold: true}.draw(&b, s.caption, 0, rows-1, ansi.StringWidth(s.caption))
		}
		if i > 0 {
			b.WriteString("</g>\n")
		}
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

func (s scene) draw(b *strings.Builder) {
	// tmux carries a look over to the next line.
	var look ink
	for y, line := range strings.Split(strings.TrimRight(s.frame, "\n"), "\n") {
		for x := 0; len(line) > 0; {
			if rest, found := strings.CutPrefix(line, "\x1b["); found {
				params, after, _ := strings.Cut(rest, "m")
				look.set(params)
				line = after
				continue
			}
			piece, _, _ := strings.Cut(line, "\x1b")
			line = line[len(piece):]
			n := ansi.StringWidth(piece)
			look.draw(b, piece, x, y, n)
			x += n
		}
	}
}

func (k ink) draw(b *strings.Builder, text string, x, y, n int) {
	fill, back := k.fill, k.back
	if fill == "" {
		fill = inked
	}
	if k.reverse {
		fill, back = paper, fill
	}
	left, top, width := margin+float64(x)*cellWidth, margin+y*cellHeight, float64(n)*cellWidth
	if back != "" {
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", left, top, width, cellHeight, back)
	}
	extra := ""
	if k.bold {
		extra += ` font-weight="bold"`
	}
	if k.faint {
		extra += ` opacity="0.6"`
	}
	for _, at := range spaced.FindAllStringIndex(text, -1) {
		words := text[at[0]:at[1]]
		left, width := left+float64(ansi.StringWidth(text[:at[0]]))*cellWidth, float64(ansi.StringWidth(words))*cellWidth
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" fill="%s" textLength="%.1f"%s>%s</text>`+"\n",
			left, float64(top)+13.5, fill, width, extra, html.EscapeString(words))
	}
}

// spaced are the words between wider spaces, which browsers would make one.
var spaced = regexp.MustCompile(`\S+(?: \S+)*`)

var drawnText = regexp.MustCompile(`<text x="([0-9.]+)" y="([0-9.]+)"[^>]*>([^<]*)</text>`)

// lettered are the lines of a picture of one frame.
func lettered(svg string) []string {
	var rows [][]rune
	for _, m := range drawnText.FindAllStringSubmatch(svg, -1) {
		left, _ := strconv.ParseFloat(m[1], 64)
		top, _ := strconv.ParseFloat(m[2], 64)
		x, y := int((left-margin)/cellWidth+.5), int(top-margin)/cellHeight
		for len(rows) <= y {
			rows = append(rows, nil)
		}
		text := []rune(html.UnescapeString(m[3]))
		for len(rows[y]) < x+len(text) {
			rows[y] = append(rows[y], ' ')
		}
		copy(rows[y][x:], text)
	}
	var out []string
	for _, r := range rows {
		out = append(out, string(r))
	}
	return out
}
