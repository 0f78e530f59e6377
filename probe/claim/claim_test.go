package claim

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/netns/nstest"
)

// TestClaim: a claim is seen in its namespace, by nobody elsewhere, and no longer than
// it is held.
func TestClaim(t *testing.T) {
	here, there := nstest.New(t), nstest.New(t)
	held := func(ns *nstest.NS, program uint32) (is bool) {
		if err := ns.Do(func() error {
			is = Held(program)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return is
	}
	var c *Claim
	if err := here.Do(func() (err error) {
		c, err = Take(41, 42)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !held(here, 41) || !held(here, 42) || held(here, 4) || held(there, 41) {
		t.Error("want 41 and 42 claimed, in one namespace")
	}
	if err := here.Do(func() error {
		_, err := Take(43, 42)
		return err
	}); !errors.Is(err, unix.EADDRINUSE) || held(here, 43) {
		t.Errorf("42 was claimed twice: %v", err)
	}
	if err := c.Close(); err != nil || held(here, 41) || held(here, 42) {
		t.Errorf("a claim outlives its end: %v", err)
	}
}
