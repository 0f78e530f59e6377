package main

import (
	"context"
	"errors"
	"sync"
)

// gate lets nodes begin together: it opens once each of them is ready, or has failed.
type gate struct {
	mu                     sync.Mutex
	missing, ready, failed int
	// opened is called before it opens.
	opened func(ready, failed int)
	open   chan struct{}
}

// arrive says of one more node that it is ready, or will never be.
func (g *gate) arrive(ready bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.missing--
	if ready {
		g.ready++
	} else {
		g.failed++
	}
	if g.missing == 0 {
		g.opened(g.ready, g.failed)
		close(g.open)
	}
}

// wait waits until the gate is open. asked ends when the user interrupts.
func (g *gate) wait(ctx, asked context.Context) error {
	select {
	case <-g.open:
		return nil
	case <-asked.Done():
		return errors.New("before it started")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
