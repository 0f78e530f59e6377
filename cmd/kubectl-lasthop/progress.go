package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/report"
)

// statusLine is a terminal with a line below all others, which is overwritten.
type statusLine struct {
	to   io.Writer
	mu   sync.Mutex
	text string
}

const clearLine = "\r\x1b[K"

// Write writes whole lines above the line.
func (s *statusLine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := fmt.Fprintf(s.to, clearLine+"%s%s", p, s.text)
	return len(p), err
}

func (s *statusLine) show(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = fmt.Sprintf(format, args...)
	fmt.Fprint(s.to, clearLine+s.text)
}

// pending are the nodes that have not ended.
type pending struct {
	mu    sync.Mutex
	nodes []string
}

func (p *pending) done(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nodes = slices.DeleteFunc(p.nodes, func(n string) bool { return n == node })
}

// text says how many have ended, and names the last ones that others wait for.
func (p *pending) text(of int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%d of %d nodes are done", of-len(p.nodes), of)
	if n := len(p.nodes); n > 0 && n <= 3 && n < of {
		text += ", all but " + report.Clean(strings.Join(p.nodes, " and "))
	}
	return text
}

// progress shows how far several nodes are, if standard error is a terminal: changed is
// for the gate, wait has the nodes that have not ended.
func (r *runner) progress(nodes int, wait *pending) (changed func(*gate), stop func()) {
	if !r.several || !flags.Terminal(r.stderr) {
		return func(*gate) {}, func() {}
	}
	plain := r.stderr
	line := &statusLine{to: plain}
	r.stderr = line
	over := make(chan struct{})
	var watching sync.WaitGroup
	watch := func() {
		began, again := time.Now(), time.NewTicker(time.Second)
		defer again.Stop()
		for {
			line.show("watching: %v; %s", time.Since(began).Round(time.Second), wait.text(nodes))
			select {
			case <-again.C:
			case <-over:
				return
			}
		}
	}
	changed = func(g *gate) {
		if g.missing > 0 {
			line.show("starting: %d of %d nodes are ready", g.ready, nodes)
			return
		}
		watching.Go(watch)
	}
	return changed, func() {
		close(over)
		watching.Wait()
		line.show("")
		r.stderr = plain
	}
}
