package main

import (
	"errors"
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
			"eth0 > fabric", "✕ packets end here: no reply to", "Cause Packets from pods to any other node's pods",
			"Fix az network vnet subnet update", "az network route-table route create",
		},
		tabs: map[string]string{"0": "map", "2": "pods", "3": "path", "4": "events", "5": "node"},
	},
	{
		scenario: "stale-mac-rewrite", code: "StaleMACRewrite",
		shows: []string{
			"fabric > eth0", "✕ packets end here: frames are for", "Cause An ebtables rule sets the destination MAC",
			"Fix ebtables-nft -t nat -D PREROUTING",
		},
		tour: []struct{ key, caption string }{
			{"", "lasthop: the worst finding, where its packets end, why, and the fix"},
			{"0", "0  who reaches whom"},
			{"2", "2  the pods, with what came, went, and was lost"},
			{"3", "3  a path hop by hop, there and back"},
			{"4", "4  what happened when"},
		},
	},
	{
		scenario: "policy-drop", code: "PolicyDrop",
		shows: []string{
			"fabric > eth0", "packets end here: dropped by filter FORWARD rule 1", "Cause A rule in table filter, chain FORWARD",
			"Fix iptables-nft -t filter -D FORWARD -d",
		},
	},
	{
		scenario: "missing-masquerade", code: "MissingMasquerade",
		shows: []string{
			"eth0 > fabric", "✕ packets end here: no reply to", "Cause No MASQUERADE rule matches",
			"Fix iptables-nft -t nat -A IP-MASQ-AGENT",
		},
	},
}

// TestPictures shows labs on the live screen. The first screenful has where packets end, why, and what
// to do, without a key. With -update the frames become the pictures of the documentation; otherwise
// those have to be of the same screen: its tabs, columns, keys, finding, path, cause and fix.
func TestPictures(t *testing.T) {
	t.Parallel()
	for _, p := range pictured {
		t.Run(p.scenario, func(t *testing.T) {
			t.Parallel()
			m := startMuxed(t, 120, 40, `export TERM=xterm-256color COLORTERM=truecolor LANG=C.UTF-8
				sh -c 'echo "pid $$."; exec lasthop demo `+p.scenario+`'`)
			_, pid, _ := strings.Cut(m.awaitWords("pid "), "pid ")
			pid, _, _ = strings.Cut(pid, ".")
			m.awaitWords("Enter to start")
			m.keys("Enter")
			first := m.shot("the finding with its path", func(text string) bool {
				found := strings.Contains(text, " "+p.code+": ") && strings.Contains(text, "end here")
				return found && !strings.Contains(text, "<10s ")
			})
			flat := strings.Join(strings.Fields(first.text), " ")
			for _, words := range append(p.shows, "Verify lasthop check --only "+p.code) {
				if !strings.Contains(flat, words) {
					t.Errorf("the first screenful does not show %q:\n%s", words, first.text)
				}
			}
			held(t, filepath.Join("screen", p.scenario+".svg"), p.scenario, first)
			for key, name := range p.tabs {
				held(t, filepath.Join("screen", name+".svg"), name, m.tab(key))
			}
			var scenes []scene
			for _, s := range p.tour {
				x := scene{first.frame, s.caption}
				if s.key != "" {
					x.frame = m.tab(s.key).frame
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

// shot is what a terminal shows, without and with its colours.
type shot struct{ text, frame string }

// shot waits until the terminal shows what is wanted, and for a moment nothing else: then no frame is
// half drawn.
func (m *muxed) shot(what string, shows func(text string) bool) shot {
	m.t.Helper()
	last := ""
	text := m.await(what, func(text string) bool {
		same := text == last
		last = text
		return same && shows(text)
	})
	return shot{text, m.tmux("capture-pane", "-p", "-e")}
}

// tab opens another tab by its key.
func (m *muxed) tab(key string) shot {
	m.t.Helper()
	m.keys(key)
	return m.shot("tab "+key, func(text string) bool { return strings.Contains(text, "["+key+"]") })
}

// held wants a picture to be of the same kind of screen, or writes it.
func held(t *testing.T, file, label string, s shot) {
	t.Helper()
	if *testWrite {
		writePicture(t, file, picture("lasthop's screen: "+label, 120, scene{frame: s.frame}))
	}
	svg, err := os.ReadFile(filepath.Join("..", "..", "docs", file))
	if err != nil {
		t.Fatal(err)
	}
	got, want := layout(strings.Split(s.text, "\n")), layout(lettered(string(svg)))
	if !slices.Equal(got, want) {
		t.Errorf("docs/%s shows\n%q\nand the screen (go test ./cmd/lasthop -run TestPictures -update, then look)\n%q",
			file, want, got)
	}
}

func writePicture(t *testing.T, file, svg string) {
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
	sign := regexp.MustCompile(`^[✕▲] [A-Z]`)
	if at := slices.IndexFunc(lines, sign.MatchString); at > 0 {
		end := slices.IndexFunc(lines, func(s string) bool { return strings.HasPrefix(s, "Evidence") })
		kept = append(kept, lines[at:max(end, at)]...)
	}
	return letters.FindAllString(strings.Join(kept, " "), -1)
}
