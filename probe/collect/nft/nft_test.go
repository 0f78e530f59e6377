package nft

import (
	"fmt"
	"testing"
)

func FuzzRule(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		r, err := DecodeRule(m)
		if err != nil {
			return
		}
		for _, i := range r.Items {
			_ = fmt.Sprint(i)
		}
	})
}

func FuzzChain(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		_, _ = decodeChain(m)
	})
}

func FuzzSet(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		_, _ = decodeSet(m)
	})
}

func FuzzElements(f *testing.F) {
	f.Fuzz(func(t *testing.T, m []byte) {
		list, err := decodeElements(m)
		if err != nil {
			return
		}
		joinIntervals(list, true)
	})
}

func TestInterface(t *testing.T) {
	for _, tt := range []struct{ value, want, text string }{
		{"eth0\x00", "eth0", `"eth0"`},
		{"veth", "veth+", `"veth*"`},
		{"abcdefghijklmnop", "abcdefghijklmnop", `"abcdefghijklmnop"`},
		{"eth0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "eth0", `"eth0"`},
	} {
		got := Interface([]byte(tt.value))
		if got != tt.want || InterfaceText(got) != tt.text {
			t.Errorf("%q: %s %s, want %s %s", tt.value, got, InterfaceText(got), tt.want, tt.text)
		}
	}
}
