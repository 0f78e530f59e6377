package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pictured are the labs whose screens are pictures in the documentation.
var pictured = []struct {
	scenario, code string
	// shows is what the first screenful has without a key: where packets end, why, and what to do.
	shows []string
	// tabs are pictures of other tabs, by their keys.
	tabs map[string]string
	// tour says what is shown after each key; its picture is the one of the README.
	tour []struct{ key, caption string }
}{
	{
		scenario: "missing-udr", code: "MissingUDR",
		shows: []string{
			"✕ no reply to", "WHY Packets from pods to any other node's pods",
			"FIX az network vnet subnet update", "az network route-table route create",
		},
		tabs: map[string]string{"0": "map", "2": "pods", "3": "path", "4": "events", "5": "node"},
	},
	{
		scenario: "stale-mac-rewrite", code: "StaleMACRewrite",
		shows: []string{
			"✕ packets end here: frames are for", "WHY An ebtables rule sets the destination MAC",
			"FIX ebtables-nft -t nat -D PREROUTING",
		},
		tour: []struct{ key, caption string }{
			{"", "lasthop: the worst finding, where its packets end, the fix, and why"},
			{"0", "0  who reaches whom"},
			{"2", "2  the pods, with what came, went, and was lost"},
			{"3", "3  a path hop by hop, there and back"},
			{"4", "4  what happened when"},
		},
	},
	{
		scenario: "policy-drop", code: "PolicyDrop",
		shows: []string{
			"packets end here: dropped by filter FORWARD rule 1", "WHY A rule in table filter, chain FORWARD",
			"FIX iptables-nft -t filter -D FORWARD -d",
		},
	},
	{
		scenario: "missing-masquerade", code: "MissingMasquerade",
		shows: []string{
			"✕ no reply to", "WHY No MASQUERADE rule matches",
			"FIX iptables-nft -t nat -A IP-MASQ-AGENT",
		},
	},
}

// TestPictures shows labs on the live screen. The first screenful has where packets end, why, and what
// to do, without a key. With -update the frames become the pictures of the documentation; otherwise
// those have to be of the same screen: its tabs, columns, keys, finding, path, cause and fix.
func TestPictures(t *testing.T) {
	t.Parallel()
	for _, p := range few(pictured, 1) {
		t.Run(p.scenario, func(t *testing.T) {
			t.Parallel()
			m := startMuxed(t, 120, 40, `export TERM=xterm-256color COLORTERM=truecolor LANG=C.UTF-8
				sh -c 'echo "pid $$."; exec lasthop demo `+p.scenario+`'`)
			_, pid, _ := strings.Cut(m.awaitWords("pid "), "pid ")
			pid, _, _ = strings.Cut(pid, ".")
			m.awaitWords("Enter to start")
			m.keys("Enter")
			words := append(p.shows, " "+p.code+", ", "SEEN", "who reaches whom")
			first := m.shows(p.scenario, fmt.Sprintf("a finding with %q", words), func(text string) bool {
				flat := strings.Join(strings.Fields(text), " ")
				lacks := func(words string) bool { return !strings.Contains(flat, words) }
				return !slices.ContainsFunc(words, lacks) && !strings.Contains(text, "<10s ")
			})
			for key, name := range p.tabs {
				m.keys(key)
				m.shows(name, "tab "+key, onTab(key))
			}
			var scenes []scene
			for _, s := range p.tour {
				x := scene{first, s.caption}
				if s.key != "" {
					m.keys(s.key)
					x.frame = m.shot("tab "+s.key, onTab(s.key))
				}
				scenes = append(scenes, x)
			}
			if len(scenes) > 0 && *testWrite {
				writePicture(t, "screen.svg", picture("lasthop's screen on a broken node", 120, scenes...))
			}
			m.keys("q")
			m.awaitWords("left 0")
			nothingLeft(t, "demo"+pid)
		})
	}
}

// onTab reports whether the terminal shows the tab with a key.
func onTab(key string) func(text string) bool {
	return func(text string) bool { return strings.Contains(text, "["+key+"]") }
}

// shot waits until the terminal shows what is wanted, and for a moment nothing else, and returns it with its colours.
func (m *muxed) shot(what string, shows func(text string) bool) string {
	m.t.Helper()
	last := ""
	m.await(what, func(text string) bool {
		same := text == last
		last = text
		return same && shows(text)
	})
	return m.tmux("capture-pane", "-p", "-e")
}

// shows is a shot of the same kind of screen as a picture of the documentation, or it writes the picture. A slow
// terminal has half of a frame for a while, which is no screen yet: it is waited for, and what never comes fails.
func (m *muxed) shows(name, what string, shows func(text string) bool) string {
	m.t.Helper()
	file := filepath.Join("screen", name+".svg")
	if *testWrite {
		frame := m.shot(what, shows)
		writePicture(m.t, file, picture("lasthop's screen: "+name, 120, scene{frame: frame}))
		return frame
	}
	svg, err := os.ReadFile(filepath.Join("..", "..", "docs", file))
	if err != nil {
		m.t.Fatal(err)
	}
	want := layout(lettered(string(svg)))
	what += fmt.Sprintf(", and of docs/%s %q (go test ./cmd/lasthop -run TestPictures -update, then look)", file, want)
	return m.shot(what, func(text string) bool { return shows(text) && slices.Equal(layout(strings.Split(text, "\n")), want) })
}

func writePicture(t testing.TB, file, svg string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(svg), 0o644)); err != nil {
		t.Fatal(err)
	}
}

var letters = regexp.MustCompile(`[A-Za-z]{3,}`)

// layout is what pictures of the same screen have in common, whatever was counted: the words of the
// tabs, the headings and the keys, and of the selected finding up to its evidence.
func layout(lines []string) []string {
	lines = slices.DeleteFunc(slices.Clone(lines), func(s string) bool { return strings.TrimSpace(s) == "" })
	if len(lines) < 4 {
		return nil
	}
	kept := []string{lines[1], lines[2], lines[len(lines)-1]}
	sign := regexp.MustCompile(`^[✕▲] `)
	if at := slices.IndexFunc(lines, sign.MatchString); at > 0 {
		end := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "SEEN") })
		kept = append(kept, lines[at:max(end, at)]...)
	}
	return letters.FindAllString(strings.Join(kept, " "), -1)
}
