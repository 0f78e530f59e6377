// Package words puts findings into words, last of all: what a kind of finding knows are
// values, and the sentences with these are in pages, a file for each kind.
//
// A page has a line for each part of a finding:
//
//	PART: TEXT
//	PART if CONDITION: TEXT
//	PART each LIST: TEXT
//	SOURCE on NODE: TEXT
//
// Text goes on in the lines below that are indented. PART is title, why, unseen, else (an alternative), fix, next (what to
// do where no fix is known), or the source of an observation. In fix and next, which are pasted into a shell, each value
// but a Command is quoted for one. The title is the first whose condition holds, why is all of them in a row, the others
// are lists. TEXT and CONDITION are those of text/template, with the values by their names, and CONDITION as after its
// "if". In a line with a LIST the dot is one of its elements, and $ the values. "PART each LIST" without a text takes
// the elements as they are: texts, or observations with sources of their own. After "unseen by" and "else by" stand the
// model.Means that would show it, with commas, before "if" or "each". NODE is an expression too, before "if" or "each":
// the node that made the observation. What several pages say is a template in a file of its own. A line
// "about SECTION: TEXT" is of the kind of finding itself, for the catalogue and the docs.
package words

import (
	"cmp"
	"embed"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"

	"github.com/lasthop/lasthop/probe/model"
)

// Facts are the values that a page names.
type Facts map[string]any

//go:embed pages
var files embed.FS

type line struct {
	part string
	// list names the list whose elements are taken as they are or, of the part "page", the
	// page whose lines stand here; empty where there is a text.
	list string
	// text includes the condition or, for each element of a list, what separates them.
	text *template.Template
	// by are the means that would show what is unseen, or whether it is the alternative.
	by []model.Means
	// each: the text is said of each element of the list of this name.
	each []string
	// shows are what the text of an observation shows.
	shows []field
}

// pages are those that were asked for, by name: all of them take some MiB, and an agent needs few.
var pages = struct {
	sync.Mutex
	read map[string][]line
}{read: map[string][]line{}}

// pageLines are those of a page, none of one that is not there.
func pageLines(name string) []line {
	pages.Lock()
	defer pages.Unlock()
	lines, known := pages.read[name]
	if known {
		return lines
	}
	if text, err := files.ReadFile("pages/" + name + ".txt"); err == nil {
		if lines, err = readPage(sharedTexts(), name, string(text)); err != nil {
			panic(err) // a test parses all pages
		}
		pages.read[name] = lines
	}
	return lines
}

// sharedTexts are those that pages share, each also as a command has it.
var sharedTexts = sync.OnceValue(func() *template.Template {
	set := template.Must(template.New("").Funcs(functions).ParseFS(files, "pages/*.tmpl"))
	for _, t := range set.Templates() {
		tree := t.Tree.Copy()
		quoting(tree.Root)
		template.Must(set.AddParseTree(inCommand+t.Name(), tree))
	}
	return set
})

// Text is a text that pages share, with these values.
func Text(name string, facts Facts) string {
	var b strings.Builder
	if err := sharedTexts().ExecuteTemplate(&b, name, map[string]any(facts)); err != nil {
		b.WriteString(err.Error()) // a mistake, which a test meets
	}
	return b.String()
}

var aboutLine = regexp.MustCompile(`(?m)^about (\w+): (.*(?:\n\t.*)*)`)

// About is what a page says of its kind of finding, by section. It is empty of a page that is not there.
func About(page string) map[string]string {
	text, _ := files.ReadFile("pages/" + page + ".txt")
	out := map[string]string{}
	for _, m := range aboutLine.FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = strings.ReplaceAll(m[2], "\n\t", " ")
	}
	return out
}

// readPage reads a page, whose texts may use shared ones.
func readPage(shared *template.Template, name, text string) ([]line, error) {
	var out []line
	for _, l := range strings.Split(strings.ReplaceAll(text, "\n\t", " "), "\n") {
		if l == "" || strings.HasPrefix(l, "#") || strings.HasPrefix(l, "about ") {
			continue
		}
		x, err := parseLine(shared, l)
		if err != nil {
			return nil, fmt.Errorf("read page %s: %w", name, err)
		}
		out = append(out, x)
	}
	return out, nil
}

func parseLine(shared *template.Template, l string) (line, error) {
	head, body, worded := strings.Cut(l, ": ")
	part, rest, _ := strings.Cut(head, " ")
	how, what, _ := strings.Cut(rest, " ")
	node := ""
	if how == "on" {
		node, rest, _ = strings.Cut(what, " ")
		how, what, _ = strings.Cut(rest, " ")
	}
	x := line{part: part}
	if how == "by" {
		by, after, _ := strings.Cut(what, " ")
		for _, means := range strings.Split(by, ",") {
			x.by = append(x.by, model.Means(means))
		}
		how, what, _ = strings.Cut(after, " ")
	}
	text, err := shared.New(head).Parse(body)
	if err != nil {
		return x, err
	}
	if !slices.Contains(proseParts, part) {
		x.shows = shown(shared, text.Root)
	}
	if node != "" {
		body = "{{" + node + "}}" + ofNode + body
	}
	switch {
	case !worded && part == pagePart && what == "":
		return line{part: part, list: how}, nil
	case !worded && how == "each":
		return line{part: part, list: strings.TrimPrefix(what, ".")}, nil
	case worded && how == "":
	case worded && how == "if":
		body = "{{if " + what + "}}" + body + "{{end}}"
	case worded && how == "each":
		x.each = strings.Split(strings.TrimPrefix(what, "."), ".")
		body = "{{range " + what + "}}" + body + separator + "{{end}}"
	default:
		return x, fmt.Errorf("%q is no line of a page", l)
	}
	if x.text, err = shared.New(head).Parse(body); err == nil && (part == "fix" || part == "next") {
		quoting(x.text.Root)
	}
	return x, err
}

// pagePart is a line in whose place those of another page stand.
const pagePart = "page"

// separator stands between the texts of a list's elements, ofNode behind the name of a node.
// No name from outside holds them.
const separator, ofNode = "\x00", "\x01"

// sayings are what a line says with these values, each with the values that it shows: none
// where its condition does not hold.
func (l *line) sayings(facts Facts) []model.Evidence {
	var b strings.Builder
	if err := l.text.Execute(&b, map[string]any(facts)); err != nil {
		b.WriteString(err.Error()) // a mistake in the page, which a test of the finding meets
	}
	var elements reflect.Value
	if l.each != nil {
		elements = find(reflect.ValueOf(facts), l.each)
	}
	var out []model.Evidence
	for i, text := range strings.Split(b.String(), separator) {
		if text == "" {
			continue
		}
		e := model.Evidence{Source: l.part, Text: text}
		if node, rest, of := strings.Cut(text, ofNode); of {
			e.Node, e.Text = node, rest
		}
		if l.shows != nil {
			var element any
			if elements.Kind() == reflect.Slice && i < elements.Len() {
				element = elements.Index(i).Interface()
			}
			e.Values = values(l.shows, facts, element)
		}
		out = append(out, e)
	}
	return out
}

// Put gives a finding the texts of a page with these values. What it has already of evidence,
// fixes and the like stands behind.
func Put(page string, facts Facts, f *model.Finding) {
	var said model.Finding
	put(pageLines(page), facts, &said)
	f.Title, f.Why = cmp.Or(said.Title, f.Title), cmp.Or(said.Why, f.Why)
	f.Evidence, f.Fix, f.Next = append(said.Evidence, f.Evidence...), append(said.Fix, f.Fix...), append(said.Next, f.Next...)
	f.Unseen, f.Alternatives = append(said.Unseen, f.Unseen...), append(said.Alternatives, f.Alternatives...)
	f.Surer = append(said.Surer, f.Surer...)
}

func put(lines []line, facts Facts, f *model.Finding) {
	for l := range model.Each(lines) {
		switch list := facts[l.list].(type) {
		case []model.Evidence:
			f.Evidence = append(f.Evidence, list...)
		case []string:
			addTexts(f, l.part, list)
		case []Command:
			addTexts(f, l.part, texts(list))
		default:
			switch {
			case l.part == pagePart:
				put(pageLines(l.list), facts, f)
			case l.text != nil:
				l.add(f, facts)
			}
		}
	}
}

func (l *line) add(f *model.Finding, facts Facts) {
	said := l.sayings(facts)
	if !slices.Contains(proseParts, l.part) {
		f.Evidence = append(f.Evidence, said...)
		return
	}
	addTexts(f, l.part, model.Map(said, func(e model.Evidence) string { return e.Text }))
	if len(said) > 0 {
		f.Surer = model.With(f.Surer, l.by...)
	}
}

var proseParts = []string{"title", "why", "unseen", "else", "fix", "next"}

func addTexts(f *model.Finding, part string, texts []string) {
	switch part {
	case "title":
		f.Title = cmp.Or(f.Title, strings.Join(texts, " "))
	case "why":
		f.Why = strings.TrimSpace(f.Why + " " + strings.Join(texts, " "))
	case "unseen":
		f.Unseen = append(f.Unseen, texts...)
	case "else":
		f.Alternatives = append(f.Alternatives, texts...)
	case "next":
		f.Next = append(f.Next, model.Map(texts, fix)...)
	case "fix":
		f.Fix = append(f.Fix, model.Map(texts, fix)...)
	}
}

// Title is that of a page with these values.
func Title(page string, facts Facts) string {
	var f model.Finding
	Put(page, facts, &f)
	return f.Title
}

// Say are the observations of a page with these values.
func Say(page string, facts Facts) []model.Evidence {
	var f model.Finding
	Put(page, facts, &f)
	return f.Evidence
}

// PutRows puts the rows of a finding's fix before its other lines. That is done last of all:
// what several nodes know may name what is missing in a row.
// Where the finding is only possible, they may be well as they are.
func PutRows(f *model.Finding) {
	Put("rows", Facts{"rows": f.Rows}, f)
	if f.Confidence == model.Possible && len(f.Rows) > 0 {
		f.Fix, f.Next = nil, append(f.Fix, f.Next...)
	}
}
