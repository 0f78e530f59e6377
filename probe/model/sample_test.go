package model_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// TestTransport finds what follows the network headers of a sampled packet.
func TestTransport(t *testing.T) {
	udp := []byte{0x9c, 0x40, 0, 53, 0, 12, 0, 0}
	v4 := func(fragment byte) []byte {
		return slices.Concat([]byte{0x45, 0, 0, 28, 0, 0, 0, fragment, 64, model.UDP}, make([]byte, 10))
	}
	v6 := func(next byte, headers ...byte) []byte {
		return slices.Concat([]byte{0x60, 0, 0, 0, 0, 24, next, 64}, make([]byte, 32), headers)
	}
	for name, x := range map[string]struct {
		head  []byte
		proto uint8
		next  []byte
	}{
		"IPv4":                    {append(v4(0), udp...), model.UDP, udp},
		"a later fragment":        {append(v4(5), udp...), model.UDP, nil},
		"IPv6":                    {append(v6(model.UDP), udp...), model.UDP, udp},
		"behind hop-by-hop":       {append(v6(0, model.UDP, 0, 0, 0, 0, 0, 0, 0), udp...), model.UDP, udp},
		"behind two":              {append(v6(0, 60, 0, 0, 0, 0, 0, 0, 0, model.UDP, 0, 0, 0, 0, 0, 0, 0), udp...), model.UDP, udp},
		"a first fragment":        {append(v6(44, model.UDP, 0, 0, 1, 0, 0, 0, 1), udp...), model.UDP, udp},
		"IPv6, a later fragment":  {append(v6(44, model.UDP, 0, 0, 8, 0, 0, 0, 1), udp...), model.UDP, nil},
		"a header that is cut":    {v6(0, model.UDP, 0, 0), 0, nil},
		"a header that is longer": {append(v6(0, model.UDP, 9, 0, 0, 0, 0, 0, 0), udp...), 0, nil},
		"no IP":                   {udp, 0, nil},
	} {
		s := model.Sample{Head: x.head}
		if s.Proto() != x.proto || !bytes.Equal(s.Transport(), x.next) {
			t.Errorf("%s: %d % x, want %d % x", name, s.Proto(), s.Transport(), x.proto, x.next)
		}
	}
}
