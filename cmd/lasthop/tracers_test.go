package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/lasthop/lasthop/probe/model"
)

// tracersFile is the environment variable that names where TestDemos writes what a
// tool would have shown that lists the packets which the kernel drops.
const tracersFile = "LASTHOP_TRACERS"

// traced is what such a tool shows of a drop: the kernel's reason, and the function.
type traced struct{ Reason, Location string }

func (d traced) String() string { return d.Reason + " in `" + d.Location + "`" }

// tracedDrops are the drops in a report of at least so many packets of the given
// pods, of all where none is given. It is the same tracepoint that tracers read.
func tracedDrops(doc []byte, pods []netip.Addr) (map[traced]bool, error) {
	const few = 3
	var r struct {
		Drops []struct {
			traced
			Pod     netip.Addr
			Packets uint64
		}
	}
	if err := json.Unmarshal(doc, &r); err != nil {
		return nil, err
	}
	out := map[traced]bool{}
	for _, d := range r.Drops {
		if d.Packets >= few && (len(pods) == 0 || slices.Contains(pods, d.Pod)) {
			out[d.traced] = true
		}
	}
	return out, nil
}

// tracers says of each finding what the drops of its pods were that no healthy node
// has, where a scenario expects that finding alone. They tell the cause if no other
// finding has the same.
func (m *matrix) tracers() string {
	byCode, codes, healthy := map[model.Code]map[traced]bool{}, map[traced]map[model.Code]bool{}, map[traced]bool{}
	for _, t := range m.trials {
		if t.expect.Healthy() {
			maps.Copy(healthy, t.drops)
		}
		if len(t.expect.Findings) != 1 {
			continue
		}
		code := t.expect.Findings[0].Code
		if byCode[code] == nil {
			byCode[code] = map[traced]bool{}
		}
		for d := range t.drops {
			byCode[code][d] = true
			if codes[d] == nil {
				codes[d] = map[model.Code]bool{}
			}
			codes[d][code] = true
		}
	}
	var b bytes.Buffer
	fmt.Fprintln(&b, "| cause | dropped on the node, beyond what a healthy one drops | also so with | tells the cause |\n|---|---|---|---|")
	silent, told := 0, 0
	for _, code := range slices.Sorted(maps.Keys(byCode)) {
		var shown []string
		others, only := map[string]bool{}, false
		for d := range byCode[code] {
			if healthy[d] {
				continue
			}
			shown = append(shown, d.String())
			for other := range codes[d] {
				if other != code {
					others[string(other)] = true
				}
			}
			only = only || len(codes[d]) == 1
		}
		slices.Sort(shown)
		verdict := "no"
		switch {
		case len(shown) == 0:
			silent++
			shown = []string{"nothing"}
		case only:
			told++
			verdict = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", code, strings.Join(shown, "; "), strings.Join(slices.Sorted(maps.Keys(others)), ", "), verdict)
	}
	fmt.Fprintf(&b, "\nOf %d causes, %d drop nothing more on the node than a healthy one, and %d have a reason and function of their own.\n", len(byCode), silent, told)
	return b.String()
}
