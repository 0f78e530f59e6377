package session

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestNewestOnly wants a reader that takes nothing to hold nothing up, and to
// get the newest when it does.
func TestNewestOnly(t *testing.T) {
	s := &Stream{readings: make(chan model.Reading, 1)}
	for i := range 5 {
		s.publish(model.Reading{At: time.Unix(int64(i), 0)})
	}
	if r := <-s.Readings(); r.At.Unix() != 4 {
		t.Errorf("got the reading of %v, want the newest", r.At)
	}
}
