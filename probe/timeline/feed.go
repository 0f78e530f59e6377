package timeline

import (
	"sync"

	"github.com/lasthop/lasthop/probe/model"
)

// Feed hands readings to whoever shows them, and what that one asks for to whoever makes
// them. Neither waits for the other. A is what was asked for since the last Take.
type Feed[A any] struct {
	// Readings has the latest reading. Only who publishes may close it.
	Readings chan model.Reading
	// Asked has a value when there is something to Take.
	Asked chan struct{}

	mu   sync.Mutex
	asks A
}

// NewFeed returns a feed without a reading.
func NewFeed[A any]() *Feed[A] {
	return &Feed[A]{Readings: make(chan model.Reading, 1), Asked: make(chan struct{}, 1)}
}

// Publish replaces a reading that was not received yet.
func (f *Feed[A]) Publish(r model.Reading) {
	select {
	case <-f.Readings:
	default:
	}
	f.Readings <- r
}

// Ask has what add to what is asked for.
func (f *Feed[A]) Ask(what func(*A)) {
	f.mu.Lock()
	what(&f.asks)
	f.mu.Unlock()
	select {
	case f.Asked <- struct{}{}:
	default:
	}
}

// Take returns what was asked for since the last call.
func (f *Feed[A]) Take() A {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.asks
	f.asks = *new(A)
	return a
}
