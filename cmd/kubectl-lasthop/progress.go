package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// toldEvery is how often it is told which nodes others wait for.
const toldEvery = 10 * time.Second

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
		text += ", all but " + strings.Join(p.nodes, " and ")
	}
	return text
}

// tell says how far several nodes are, until all have ended.
func (p *pending) tell(say func(string, ...any), over <-chan struct{}) {
	of, began, again := len(p.nodes), time.Now(), time.NewTicker(toldEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			say("%v: %s", time.Since(began).Round(time.Second), p.text(of))
		case <-over:
			return
		}
	}
}
