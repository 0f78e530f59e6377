// Package words puts findings into words, last of all: what a kind of finding knows are
// values, and the sentences with these are in pages, a file for each kind.
//
// A page has a line for each part of a finding:
//
//	PART: TEXT
//	PART if CONDITION: TEXT
//	PART each LIST: TEXT
//
// Text goes on in the lines below that are indented. PART is title, why, unseen, else (an
// alternative), fix, or the source of an observation. The title is the first whose condition
// holds, why is all of them in a row, the others are lists. TEXT and CONDITION are those of
// text/template, with the values by their names, and CONDITION as after its "if". In a line
// with a LIST the dot is one of its elements, and $ the values. "PART each LIST" without a
// text takes the elements as they are: texts, or observations with sources of their own.
// What several pages say is a template in a file of its own.
package words

import (
	"cmp"
	"embed"
	"fmt"
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

// line is a line of a page.
type line struct {
	part string
	// list names the list whose elements are taken as they are, where there is no text.
	list string
	// text includes the condition or, for each element of a list, what separates them.
	text *template.Template
}

// pages are the lines by the name of the page.
var pages = sync.OnceValue(func() map[string][]line {
	out := map[string][]line{}
	entries, err := files.ReadDir("pages")
	if err != nil {
		panic(err) // embedded
	}
	shared := pageSet()
	for _, e := range entries {
		text, err := files.ReadFile("pages/" + e.Name())
		if err != nil {
			panic(err)
		}
		if name, is := strings.CutSuffix(e.Name(), ".txt"); is {
			if out[name], err = parse(shared, name, string(text)); err != nil {
				panic(err) // a test parses all pages
			}
		}
	}
	return out
})

// pageSet are the texts that pages share.
func pageSet() *template.Template {
	return template.Must(template.New("").Funcs(functions).ParseFS(files, "pages/*.tmpl"))
}

// parse reads a page, whose texts may use shared ones.
func parse(shared *template.Template, name, text string) ([]line, error) {
	var out []line
	text = strings.ReplaceAll(text, "\n\t", " ")
	for _, l := range strings.Split(text, "\n") {
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		head, body, found := strings.Cut(l, ": ")
		part, rest, _ := strings.Cut(head, " ")
		how, what, _ := strings.Cut(rest, " ")
		x := line{part: part}
		switch {
		case how == "" && what == "":
		case how == "if" && what != "":
			body = "{{if " + what + "}}" + body + "{{end}}"
		case how == "each" && what != "":
			if x.list = strings.TrimPrefix(what, "."); found {
				body = "{{range " + what + "}}" + body + separator + "{{end}}"
			}
		default:
			found = false
		}
		if !found && x.list == "" {
			return nil, fmt.Errorf("page %s: %q is no line of a page", name, l)
		}
		if found {
			t, err := shared.New(name + " " + head).Parse(body)
			if err != nil {
				return nil, fmt.Errorf("read page: %w", err)
			}
			x.text = t
		}
		out = append(out, x)
	}
	return out, nil
}

// separator stands between the texts of a list's elements. No name from outside holds it.
const separator = "\x00"

// texts are those of a line with these values: none where its condition does not hold.
func (l *line) texts(facts Facts) []string {
	var b strings.Builder
	if err := l.text.Execute(&b, map[string]any(facts)); err != nil {
		b.WriteString(err.Error()) // a mistake in the page, which a test of the finding meets
	}
	return slices.DeleteFunc(strings.Split(b.String(), separator), func(s string) bool { return s == "" })
}

// Put gives a finding the texts of a page with these values. What it has already of evidence,
// fixes and the like stands behind.
func Put(page string, facts Facts, f *model.Finding) { put(pages()[page], facts, f) }

func put(lines []line, facts Facts, f *model.Finding) {
	var said model.Finding
	for l := range model.Each(lines) {
		if l.text == nil {
			switch list := facts[l.list].(type) {
			case []model.Evidence:
				said.Evidence = append(said.Evidence, list...)
			case []string:
				add(&said, l.part, list)
			}
			continue
		}
		add(&said, l.part, l.texts(facts))
	}
	f.Title, f.Why = cmp.Or(said.Title, f.Title), cmp.Or(said.Why, f.Why)
	f.Evidence, f.Fix = append(said.Evidence, f.Evidence...), append(said.Fix, f.Fix...)
	f.Unseen, f.Alternatives = append(said.Unseen, f.Unseen...), append(said.Alternatives, f.Alternatives...)
}

func add(f *model.Finding, part string, texts []string) {
	switch part {
	case "title":
		f.Title = cmp.Or(f.Title, strings.Join(texts, " "))
	case "why":
		f.Why = strings.TrimSpace(f.Why + " " + strings.Join(texts, " "))
	case "unseen":
		f.Unseen = append(f.Unseen, texts...)
	case "else":
		f.Alternatives = append(f.Alternatives, texts...)
	case "fix":
		f.Fix = append(f.Fix, texts...)
	default:
		for _, t := range texts {
			f.Evidence = append(f.Evidence, model.Evidence{Source: part, Text: t})
		}
	}
}

// Evidence are the observations of a page with these values.
func Evidence(page string, facts Facts) []model.Evidence {
	var f model.Finding
	Put(page, facts, &f)
	return f.Evidence
}

// Title is that of a page with these values.
func Title(page string, facts Facts) string {
	var f model.Finding
	Put(page, facts, &f)
	return f.Title
}
