package view

import (
	"cmp"
	"image/color"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/lasthop/lasthop/probe/model"
)

// Style says what a piece of text is, not how it looks.
type Style uint8

// The styles.
const (
	Plain Style = iota
	Strong
	Dim
	Critical
	Warning
	Info
	Heading
	Selected
	Tab
	styles
)

// Theme is how styles look, and which characters may be drawn.
type Theme struct {
	Name string
	// ASCII uses only 7 bits, for terminals that do not show UTF-8.
	ASCII  bool
	styles [styles]lipgloss.Style
	glyphs
}

// glyphs are the characters besides text that frames are drawn with.
type glyphs struct {
	more    string // text was cut here
	bar     string // between panes
	rule    string // under lists
	levels  []string
	pointer string
}

var (
	plainGlyphs = glyphs{more: "~", bar: "|", rule: "-", levels: []string{".", ":", "|"}, pointer: ">"}
	richGlyphs  = glyphs{more: "…", bar: "│", rule: "─", levels: []string{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, pointer: ">"}
)

// palettes use only the 16 ANSI colours, in hues that colour-blind people can tell
// apart: no red beside green. Colours add nothing to what words say.
var palettes = map[string]struct{ critical, warning, info color.Color }{
	"dark": {lipgloss.Magenta, lipgloss.Yellow, lipgloss.Cyan},
	// Yellow and cyan are hard to see on white.
	"light": {lipgloss.Magenta, lipgloss.Blue, lipgloss.Black},
	"mono":  {lipgloss.NoColor{}, lipgloss.NoColor{}, lipgloss.NoColor{}},
}

func stylesOf(theme string) [styles]lipgloss.Style {
	base, colors := lipgloss.NewStyle(), palettes[theme]
	return [styles]lipgloss.Style{
		Plain:    base,
		Strong:   base.Bold(true),
		Dim:      base.Faint(true),
		Critical: base.Bold(true).Foreground(colors.critical),
		Warning:  base.Bold(true).Foreground(colors.warning),
		Info:     base.Foreground(colors.info),
		Heading:  base.Faint(true),
		Selected: base.Reverse(true),
		Tab:      base.Bold(true).Reverse(true),
	}
}

// Themes lists the themes; the first is the default, the last has no colours.
func Themes() []string { return []string{"dark", "light", "mono"} }

// NewTheme returns the named theme, or the default if there is none of that name.
func NewTheme(name string, ascii bool) Theme {
	if !slices.Contains(Themes(), name) {
		name = Themes()[0]
	}
	t := Theme{Name: name, ASCII: ascii, styles: stylesOf(name), glyphs: richGlyphs}
	if ascii {
		t.glyphs = plainGlyphs
	}
	return t
}

// paint styles text that is clean already.
func (t Theme) paint(s Style, text string) string {
	if s == Plain || text == "" {
		return text
	}
	return t.styles[s].Render(text)
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

// severityWord is a severity in four letters.
func severityWord(s model.Severity) string {
	if s.Rank() < 0 {
		return "?"
	}
	return strings.ToUpper(string(s[:4]))
}

// spark draws the last rates, as many as fit, scaled to the highest.
func (t Theme) spark(rates []float64, width int) string {
	if width <= 0 {
		return ""
	}
	if len(rates) > width {
		rates = rates[len(rates)-width:]
	}
	// The order of cmp has NaN first.
	top := slices.MaxFunc(append([]float64{0}, rates...), cmp.Compare[float64])
	var b strings.Builder
	for _, r := range rates {
		i := 0
		if top > 0 && r > 0 {
			i = min(int(r/top*float64(len(t.levels))), len(t.levels)-1)
		}
		b.WriteString(t.levels[max(i, 0)])
	}
	return b.String()
}
