package words

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"text/template/parse"

	"github.com/lasthop/lasthop/probe/model"
)

func allPages(t *testing.T) map[string][]line {
	out := map[string][]line{}
	entries, err := files.ReadDir("pages")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), ".txt"); is {
			out[name] = pageLines(name)
		}
	}
	return out
}

// TestPages: all pages are read, and each tells a title and why, or observations alone.
func TestPages(t *testing.T) {
	for name, lines := range allPages(t) {
		parts := map[string]bool{}
		for _, l := range lines {
			parts[l.part] = true
			for _, m := range l.by {
				if !slices.Contains([]model.Means{model.Active, model.Routes, model.Nodes, model.Watch, model.Policies}, m) {
					t.Errorf("page %s: no means %q", name, m)
				}
			}
		}
		if strings.ToUpper(name[:1]) == name[:1] && (!parts["title"] || !parts["why"]) {
			t.Errorf("page %s has no title or no why", name)
		}
	}
}

// TestQuotesInFixes: no value stands behind an open quote, which would turn its own quotes inside out.
func TestQuotesInFixes(t *testing.T) {
	values := 0
	var look func(where string, before *string, list *parse.ListNode)
	look = func(where string, before *string, list *parse.ListNode) {
		if list == nil {
			return
		}
		branch := func(n *parse.BranchNode) {
			other := *before
			look(where, before, n.List)
			look(where, &other, n.ElseList)
		}
		for _, node := range list.Nodes {
			switch n := node.(type) {
			case *parse.TextNode:
				*before += string(n.Text)
			case *parse.ActionNode:
				if n.Pipe.Cmds[0].Args[0].String() == "next" {
					*before = ""
				}
				text, _, _ := strings.Cut(" "+*before, " # ")
				if values++; slices.ContainsFunc([]string{"'", `"`, "`"}, func(q string) bool { return strings.Count(text, q)%2 == 1 }) {
					t.Errorf("%s: %s stands behind %q", where, n, text)
				}
			case *parse.IfNode:
				branch(&n.BranchNode)
			case *parse.RangeNode:
				branch(&n.BranchNode)
			case *parse.WithNode:
				branch(&n.BranchNode)
			case *parse.TemplateNode:
				look(n.Name, before, sharedTexts().Lookup(n.Name).Root)
			}
		}
	}
	for name, lines := range allPages(t) {
		for _, l := range lines {
			if l.part == "fix" && l.text != nil {
				look(name, new(string), l.text.Root)
			}
		}
	}
	if values == 0 {
		t.Error("no value was found")
	}
}

// TestPut: the first title whose condition holds counts, every why, and each element of lists.
func TestPut(t *testing.T) {
	page, err := readPage(sharedTexts(), "Test", `# a comment
title if .known: no route to {{.to}}
title: no route
why: It goes
	nowhere.
why if .known: {{count .n "packet"}} died.
tc each .links: {{.}} egress: {{$.n}}
evidence each .more
unseen if not .known: where to
unseen by routes if not .known: the table
else by active,watch if .known: it is down
else by active: it hangs
else each .others
fix: ip link set dev {{sh .link}} up
`)
	if err != nil {
		t.Fatal(err)
	}
	var f model.Finding
	put(page, Facts{
		"known": true, "to": netip.MustParseAddr("192.0.2.1"), "n": uint64(1), "links": []string{"eth0", "eth1"}, "link": "a b",
		"more": []model.Evidence{{Source: "drops", Text: "x"}}, "others": []string{"a", "b"},
	}, &f)
	want := model.Finding{
		Title: "no route to 192.0.2.1", Why: "It goes nowhere. 1 packet died.",
		Evidence:     []model.Evidence{{Source: "tc", Text: "eth0 egress: 1"}, {Source: "tc", Text: "eth1 egress: 1"}, {Source: "drops", Text: "x"}},
		Alternatives: []string{"it is down", "it hangs", "a", "b"}, Surer: []model.Means{model.Active, model.Watch}, Fix: []string{"ip link set dev 'a b' up"},
	}
	if got, want := describe(&f), describe(&want); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, wrong := range []string{"title", "title if", "title sometimes .x: y", "title: {{.x", "why: {{nosuch .x}}"} {
		if _, err := readPage(sharedTexts(), "Test", wrong); err == nil {
			t.Errorf("%q is read as a line", wrong)
		}
	}
}

func describe(f *model.Finding) string {
	list := append([]string{f.Title, f.Why}, f.Unseen...)
	for _, e := range f.Evidence {
		list = append(list, e.Source+": "+e.Text)
	}
	return strings.Join(append(append(list, f.Alternatives...), append(f.Fix, f.Next...)...), "\n")
}

// TestValues: an observation has the values that its text shows, of all or of the element of a
// list that it is about, and none that only decide about it.
func TestValues(t *testing.T) {
	page, err := readPage(sharedTexts(), "Test", `tc if .dead: {{.link}} egress: {{count .n "packet"}} to {{few .to}}{{.unset}}{{if .some}}, {{.some}}{{end}}
pods each .pods: {{pod .Pod}} sent {{.Packets}} of {{$.n}}
nat: {{with .rule}}{{.Text}}{{end}}{{.rule.Table}}
`)
	if err != nil {
		t.Fatal(err)
	}
	type sender struct {
		Pod     *model.Pod
		Packets int
	}
	var f model.Finding
	put(page, Facts{
		"dead": true, "link": "eth0", "n": uint64(3), "to": []netip.Addr{netip.MustParseAddr("192.0.2.1")}, "unset": netip.Prefix{},
		"pods": []sender{{&model.Pod{Link: "veth1"}, 0}, {&model.Pod{Namespace: "shop", Name: "cart"}, 2}}, "rule": &model.PacketRule{Table: "nat", Text: "-j DROP"},
	}, &f)
	want := []model.Values{
		`{"link":"eth0","n":3,"to":["192.0.2.1"]}`,
		`{"n":3,"packets":0,"pod":"the pod behind veth1"}`, `{"n":3,"packets":2,"pod":"shop/cart"}`, `{"ruleTable":"nat"}`,
	}
	for i, e := range f.Evidence {
		if i >= len(want) || e.Values != want[i] {
			t.Errorf("%s has the values %s", e.Text, e.Values)
		}
	}
	text, err := json.Marshal(f.Evidence)
	if err != nil {
		t.Fatal(err)
	}
	var back []model.Evidence
	if err := json.Unmarshal(text, &back); err != nil || !slices.Equal(back, f.Evidence) {
		t.Errorf("read back from %s: %v, %v", text, back, err)
	}
	if len(f.Evidence) != len(want) {
		t.Errorf("got %d observations, want %d", len(f.Evidence), len(want))
	}
}
