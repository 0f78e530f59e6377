package diagnose

import (
	"fmt"
	"testing"

	"github.com/lasthop/lasthop/probe/growth"
)

func TestGrowth(t *testing.T) {
	for broken, want := range map[bool]func(scale int) int{
		false: func(int) int { return 0 },
		true:  func(scale int) int { return 50*scale + 2 },
	} {
		t.Run(fmt.Sprintf("broken=%v", broken), func(t *testing.T) {
			growth.Test(t, func(scale int) func() {
				n := large(scale, broken)
				return func() {
					if found := Diagnose(&n.Snapshot); len(found) != want(scale) {
						t.Errorf("%d findings at size %d, not %d", len(found), scale, want(scale))
					}
				}
			})
		})
	}
	t.Run("routes", func(t *testing.T) {
		growth.Test(t, func(scale int) func() {
			n := manyRoutes(scale*60, scale*1200)
			return func() {
				if found := Diagnose(&n.Snapshot); len(found) > 0 {
					t.Errorf("%d findings at size %d: %s", len(found), scale, brief(found[0]))
				}
			}
		})
	})
	t.Run("ranges", func(t *testing.T) {
		growth.Test(t, func(scale int) func() {
			n := large(scale, false)
			n.inCluster(scale * 250)
			return func() {
				if found := len(RemoteRanges(&n.Snapshot)); found < scale*250 {
					t.Errorf("%d ranges at size %d", found, scale)
				}
			}
		})
	})
}
