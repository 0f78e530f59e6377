// Package report writes what was observed and judged, as text for people and as documents for other programs.
//
// It is pure: values in, bytes out. Untrusted text, such as the names of links and pods or the comments of rules, is
// escaped before it reaches a terminal.
package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lasthop/lasthop/probe/model"
)

// Report is one observation and its findings.
type Report struct {
	Snapshot *model.Snapshot
	// Findings are shown in this order: the worst first.
	Findings []model.Finding
	Rewrites []model.MACRewrite
	// Ledger balances each pod's packets; nil where that was not done.
	Ledger []model.LedgerRow
	// Causes say of each drop of the snapshot what accounts for it; nil where that was not judged.
	Causes []model.DropCause
	// Silences are the pairs of addresses that got no reply.
	Silences []model.Silence
	// Matrix is who reaches whom.
	Matrix model.Matrix
	// Focus are the addresses that were asked about; empty means the whole node. The text formats list the traffic
	// of these alone. The caller decides which findings concern them.
	Focus []netip.Addr
	// Audit is what the tables do with connections that nobody made, where that was asked for: then no packet was watched.
	Audit *model.Audit
	// Policies: the text lists all that a policy denies.
	Policies bool
	// Limits say what was not judged, by request.
	Limits []string
	// Paths are those that show the findings best, in their order, for text and what draws them; nil where there is none.
	Paths []*model.Path
}

// Format is a way to write a report.
type Format string

// The formats.
const (
	Text     Format = "text"
	Wide     Format = "wide"
	InBrief  Format = "brief"
	JSON     Format = "json"
	YAML     Format = "yaml"
	NDJSON   Format = "ndjson"
	Markdown Format = "markdown"
	// HTML is one file that needs no other, SVG the path that shows the worst finding.
	HTML Format = "html"
	SVG  Format = "svg"
	// MCP is for the tools of `lasthop mcp`: a text, and the document of JSON.
	MCP Format = "mcp"
)

// Formats lists the formats in the order in which help names them.
func Formats() []Format {
	return []Format{Text, Wide, InBrief, JSON, YAML, NDJSON, Markdown, HTML, SVG, MCP}
}

// Style is how text is drawn.
type Style struct {
	// Color uses the terminal's 16 colours. They add nothing to what the words say.
	Color bool
	// Columns are those of what is drawn, 0 is as many as a wide terminal has.
	Columns int
}

// ASCII writes a text with 7 bits: signs of ours as others, letters as escapes.
func ASCII(s string) string {
	var b strings.Builder
	for _, r := range s {
		if sign := plainSigns[r]; sign != "" {
			b.WriteString(sign)
		} else if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
	}
	return b.String()
}

// plainSigns are signs of ours with 7 bits. Those that are drawn have one character.
var plainSigns = func() map[rune]string {
	out := map[rune]string{'…': "...", '→': "->", '←': "<-", '≥': ">=", '≤': "<="}
	for plain, rich := range map[string]string{
		"-": "—–─", "=": "━", "|": "│┃▆▇", "+": "╭╮╯╰┬●", ".": "┌┐┘└╌▁▂", ":": "┆▃▄▅", "#": "┏┓┛┗", ">": "►", "<": "◄",
		"X": "✕", "!": "▲", "*": "·", "~": "≈⋯", "?": "○", "v": "✓", "x": "×",
	} {
		for _, r := range rich {
			out[r] = plain
		}
	}
	return out
}()

// PlainSign is a sign of ours with one character of 7 bits; empty for anything else.
func PlainSign(r rune) string { return model.Either(len(plainSigns[r]) == 1, plainSigns[r], "") }

// Getenv is a variable of an environment as os.Environ gives it; empty if it is not set.
func Getenv(env []string, name string) (value string) {
	for _, e := range env {
		if v, is := strings.CutPrefix(e, name+"="); is {
			value = v
		}
	}
	return value
}

// UTF8 reports whether an environment is that of a terminal which shows UTF-8. As for any
// program, the first locale variable that is set decides.
func UTF8(env []string) bool {
	text := strings.ToLower(cmp.Or(Getenv(env, "LC_ALL"), Getenv(env, "LC_CTYPE"), Getenv(env, "LANG")))
	return strings.Contains(text, "utf-8") || strings.Contains(text, "utf8")
}

// Document is a Report, a Joint or a Path.
type Document interface {
	outline() outline
	text(p *printer, wide bool)
	markdown(w *bufio.Writer)
	ndjson(w io.Writer) error
	// doc is what JSON and YAML encode.
	doc() any
}

// Write writes a document. Only Text and Wide heed the style.
func Write(to io.Writer, r Document, f Format, style Style) error {
	w := bufio.NewWriter(to)
	var err error
	switch f {
	case Text, Wide:
		r.text(&printer{w: w, style: style, wide: f == Wide}, f == Wide)
	case InBrief:
		err = r.outline().brief(w)
	case MCP:
		err = tool(w, r)
	case JSON:
		err = writeJSON(w, r.doc(), "  ")
	case YAML:
		err = writeYAML(w, r.doc())
	case NDJSON:
		err = r.ndjson(w)
	case Markdown:
		r.markdown(w)
	case HTML:
		err = writeHTML(w, r)
	case SVG:
		err = writeSVG(w, r.outline())
	default:
		err = fmt.Errorf("no format %q", f)
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (r Report) doc() any { return r.document() }

func (r Report) inFocus(a netip.Addr) bool { return len(r.Focus) == 0 || slices.Contains(r.Focus, a) }

// allPods are the pods of the window, the gone ones last.
func allPods(s *model.Snapshot) []model.Pod { return slices.Concat(s.Pods, s.PastPods) }

func linkRoles(s *model.Snapshot) func(*model.HopCount) model.Role {
	type link struct {
		index int
		name  string
	}
	roles := model.Table(s.Links, func(l *model.Link) (link, model.Role) { return link{l.Index, l.Name}, l.Role })
	return func(h *model.HopCount) model.Role { return roles[link{h.IfIndex, h.Link}] }
}
