package view

import (
	"cmp"
	"slices"
	"strings"

	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"

	"github.com/lasthop/lasthop/probe/model"
)

// Style says what a piece of text means, not how it looks.
type Style uint8

// The styles.
const (
	Plain    Style = iota
	Strong         // the text that is read first
	Dim            // what is over, or only surrounds the rest
	Heading        // above columns, before values
	Critical       // packets end
	Warning        // some do, or will
	Info           // worth a look
	Likely         // inferred, not proven
	Healthy        // counted, and nothing is missing
	Unknown        // not counted, or not visible: never healthy
	Command        // to be pasted into a shell
	Selected       // the row or hop under the cursor
	Tab            // the tab that is shown
	styles
)

// ink is a colour: one of the terminal's own 16, and what it is where there are more.
type ink struct {
	basic ansi.BasicColor
	rgb   ansi.RGBColor
}

func rgb(n uint32) ansi.RGBColor {
	return ansi.RGBColor{R: uint8(n >> 16), G: uint8(n >> 8), B: uint8(n)}
}

// looks is the theme: how each style looks on dark and on light. A sign stands beside what a colour says. No pair of colours
// that must be told apart is red and green: what is healthy has blue in it.
var looks = [styles]struct {
	sign        string
	dark, light ink
	with        func(ansi.Style) ansi.Style
}{
	Plain:    {},
	Strong:   {with: ansi.Style.Bold},
	Dim:      {with: ansi.Style.Faint},
	Heading:  {with: ansi.Style.Faint},
	Critical: {"✕", ink{ansi.BrightRed, rgb(0xff5f6d)}, ink{ansi.Red, rgb(0xc2182b)}, ansi.Style.Bold},
	Warning:  {"▲", ink{ansi.BrightYellow, rgb(0xffb454)}, ink{ansi.Magenta, rgb(0x9a5b00)}, ansi.Style.Bold},
	Info:     {"·", ink{ansi.BrightBlue, rgb(0x82aaff)}, ink{ansi.Blue, rgb(0x2856b8)}, nil},
	Likely:   {"≈", ink{ansi.BrightMagenta, rgb(0xd7a6ff)}, ink{ansi.Magenta, rgb(0x7a3e9d)}, nil},
	Healthy:  {"●", ink{ansi.BrightCyan, rgb(0x4fd6be)}, ink{ansi.Cyan, rgb(0x00786a)}, nil},
	Unknown:  {"○", ink{ansi.White, rgb(0xaab2c5)}, ink{ansi.Black, rgb(0x3f4657)}, ansi.Style.Faint},
	Command:  {dark: ink{ansi.BrightWhite, rgb(0xf2f4f8)}, light: ink{ansi.Black, rgb(0x101418)}, with: ansi.Style.Bold},
	Selected: {sign: ">", dark: ink{rgb: rgb(0x2b3245)}, light: ink{rgb: rgb(0xdbe4f5)}},
	Tab:      {with: func(s ansi.Style) ansi.Style { return s.Bold().Reverse(true) }},
}

// Theme is how styles look, and which characters may be drawn.
type Theme struct {
	Name string
	// ASCII uses only 7 bits, for terminals that do not show UTF-8.
	ASCII bool
	// open begins a style, chosen begins it in a selected row.
	open, chosen [styles]string
	// inverted says that a selected row is inverted, in one colour.
	inverted bool
}

// The characters besides text that frames are drawn with.
const (
	more  = "…" // text was cut here
	bar   = "│" // between panes
	rule  = "─" // under lists
	solid = "━" // as long as a finding is open
	ended = "✓" // where a finding closed
)

var levels = []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇"}

// Themes lists the themes; the first is the default, the last has no colours.
func Themes() []string { return []string{"dark", "light", "mono"} }

// NewTheme returns the named theme, or the default if there is none of that name, in as many
// colours as the terminal has.
func NewTheme(name string, profile colorprofile.Profile, ascii bool) Theme {
	if !slices.Contains(Themes(), name) {
		name = Themes()[0]
	}
	if profile < colorprofile.ANSI {
		name = "mono"
	}
	t := Theme{Name: name, ASCII: ascii}
	// Of 16 colours none is a background on which all others can be read.
	t.inverted = t.Name == "mono" || profile == colorprofile.ANSI
	for s := range styles {
		style := t.style(s, profile)
		t.open[s] = style.String()
		back := ansi.NewStyle().Reverse(true)
		if !t.inverted {
			back = ansi.NewStyle().BackgroundColor(t.color(Selected, profile))
		}
		t.chosen[s] = append(back, style...).String()
	}
	return t
}

// style is how a style looks. An empty one would reset what surrounds it.
func (t Theme) style(s Style, profile colorprofile.Profile) ansi.Style {
	style := ansi.NewStyle()
	if c := t.color(s, profile); c != nil && s != Selected {
		style = style.ForegroundColor(c)
	}
	if with := looks[s].with; with != nil {
		style = with(style)
	}
	return style
}

func (t Theme) color(s Style, profile colorprofile.Profile) ansi.Color {
	c := model.Either(t.Name == "light", looks[s].light, looks[s].dark)
	switch {
	case t.Name == "mono" || c == ink{}:
		return nil
	case profile == colorprofile.ANSI:
		return c.basic
	}
	return profile.Convert(c.rgb)
}

// Sign stands beside text of a style, for those who do not see its colour.
func (t Theme) Sign(s Style) string { return looks[s].sign }

// paint styles text that is clean already.
func (t Theme) paint(s Style, text string) string { return t.on(s, false, text) }

// on is paint, in a row that may be selected.
func (t Theme) on(s Style, chosen bool, text string) string {
	open := model.Either(chosen, t.chosen[s], t.open[s])
	return model.Either(text == "" || open == "" || open == ansi.ResetStyle, text, open+text+ansi.ResetStyle)
}

func severityStyle(s model.Severity) Style {
	switch s {
	case model.Critical:
		return Critical
	case model.Warning:
		return Warning
	}
	return Info
}

func severityWord(s model.Severity) string {
	if s.Rank() < 0 {
		return "?"
	}
	return strings.ToUpper(string(s[:4]))
}

// spark draws the last rates, as many as fit, scaled to top.
func (t Theme) spark(rates []float64, top float64, width int) string {
	rates = rates[max(0, len(rates)-max(width, 0)):]
	return strings.Join(model.Map(rates, func(r float64) string { return t.level(r, top) }), "")
}

// highest is the highest of rates that are known, 0 without any. The order of cmp has NaN first.
func highest(rates []float64) float64 {
	return slices.MaxFunc(append([]float64{0}, rates...), cmp.Compare[float64])
}

// level draws a rate against the highest; one that is not known as none, and so all where the highest is not.
func (t Theme) level(r, top float64) string {
	if !(r > 0 && top > 0) {
		return levels[0]
	}
	return levels[min(int(r/top*float64(len(levels))), len(levels)-1)]
}
