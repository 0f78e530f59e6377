package timeline

import (
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestNewestOnly wants a reader that takes nothing to hold nothing up, and to
// get the newest when it does.
func TestNewestOnly(t *testing.T) {
	f := NewFeed[int]()
	for i := range 5 {
		f.Publish(model.Reading{At: time.Unix(int64(i), 0)})
	}
	if r := <-f.Readings; r.At.Unix() != 4 {
		t.Errorf("got the reading of %v, want the newest", r.At)
	}
}
