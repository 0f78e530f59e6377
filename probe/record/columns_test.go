package record

import (
	"reflect"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// TestFields wants a column for every number and time of a count, in the order of the struct.
func TestFields(t *testing.T) {
	testFields(t, hop)
	testFields(t, peer)
	testFields(t, pair)
	testFields(t, mac)
	testFields(t, arp)
	testFields(t, drop)
}

func testFields[T any](t *testing.T, of func(*T) fields) {
	t.Helper()
	var x T
	var want fields
	numbers, times := 0, 0
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		for i := range v.NumField() {
			switch f := v.Field(i).Addr().Interface().(type) {
			case *uint64:
				want.numbers[numbers] = f
				numbers++
			case *time.Time:
				want.times[times] = f
				times++
			case *model.PeerCount:
				walk(v.Field(i))
			}
		}
	}
	walk(reflect.ValueOf(&x).Elem())
	if got := of(&x); got != want {
		t.Errorf("of %T got %v, want %v", x, got, want)
	}
}
