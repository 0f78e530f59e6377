package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
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

// show changes the line.
func (s *statusLine) show(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = fmt.Sprintf(format, args...)
	fmt.Fprint(s.to, clearLine+s.text)
}

// progress shows how far several nodes are, if standard error is a terminal: changed is
// for the gate, done counts the nodes that have ended.
func (r *runner) progress(nodes int, done *atomic.Int32) (changed func(*gate), stop func()) {
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
			line.show("watching: %v; %d of %d nodes are done", time.Since(began).Round(time.Second), done.Load(), nodes)
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
