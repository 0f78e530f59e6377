package session_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/collect"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
	"github.com/lasthop/lasthop/probe/session"
)

// childOf names the namespace that this binary, run again by a test, is to
// watch until it is killed.
const childOf = "LASTHOP_TEST_WATCH"

func TestMain(m *testing.M) {
	if path := os.Getenv(childOf); path != "" {
		if err := watchForever(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// watchForever says "attached" on stdout once packets are counted.
func watchForever(path string) error {
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	said := false
	_, err = session.Observe(context.Background(), session.Options{
		Options: collect.Options{NS: ns, HostRoot: "/nonexistent"}, For: time.Hour,
		Progress: func(model.Window, time.Time) {
			if !said {
				fmt.Println("attached")
				said = true
			}
		},
	})
	return err
}
