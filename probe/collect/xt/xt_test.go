package xt

import (
	"slices"
	"strings"
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

func FuzzExtension(f *testing.F) {
	f.Fuzz(func(t *testing.T, target bool, family byte, name string, rev uint32, info []byte) {
		r := model.PacketRule{Family: map[byte]string{4: "ip", 6: "ip6"}[family]}
		e := Extension{Name: name, Rev: rev, Info: info}
		text := ""
		if target {
			text = Target(&r, e)
		} else {
			text = Match(&r, e)
		}
		if !strings.HasPrefix(text, "-") {
			t.Errorf("text %q", text)
		}
	})
}

// TestShort truncates known extensions: none may be decoded as if it were whole.
func TestShort(t *testing.T) {
	for name := range matches {
		if slices.Contains([]string{"comment", "rpfilter", "socket"}, name) {
			// A comment of any length is a comment, and the others are one byte.
			continue
		}
		r := model.PacketRule{Family: "ip"}
		if text := Match(&r, Extension{Name: name, Rev: 4, Info: []byte{1}}); !strings.Contains(text, Undecoded) || len(r.Unknown) != 1 {
			t.Errorf("%s: %q, unknown %q", name, text, r.Unknown)
		}
	}
	for name := range targets {
		r := model.PacketRule{Family: "ip"}
		if text := Target(&r, Extension{Name: name, Rev: 2, Info: []byte{1}}); !slices.Contains([]string{"NOTRACK", "TRACE", "CHECKSUM"}, name) && !strings.Contains(text, Undecoded) {
			t.Errorf("%s: %q", name, text)
		}
	}
	r := model.PacketRule{}
	if text := Match(&r, Extension{Name: "osf"}); text != "-m osf "+Undecoded || len(r.Unknown) != 1 || r.Unknown[0] != "osf "+Undecoded {
		t.Errorf("unknown match: %q, %q", text, r.Unknown)
	}
}

// TestSet has a rule of Calico's and one of Azure NPM's as the kernel keeps them: a
// set's number, its dimensions and their directions.
func TestSet(t *testing.T) {
	for want, info := range map[string][]byte{
		"-m set --match-set [set 7] src":       {7, 0, 1, 2},
		"-m set ! --match-set [set 7] dst,dst": {7, 0, 2, 1},
		"-m set --match-set [set 258] dst,src": {2, 1, 2, 4},
	} {
		var r model.PacketRule
		if text := Match(&r, Extension{Name: "set", Rev: 4, Info: info}); text != want || len(r.Unknown) != 1 {
			t.Errorf("%q, unknown %q; want %q", text, r.Unknown, want)
		}
	}
}

// TestTwoAddrTypes gives a rule two matches on the type of the destination: the
// second is unknown and does not replace the first.
func TestTwoAddrTypes(t *testing.T) {
	info := func(invert byte) []byte { return []byte{0, 0, addrTypeLocal, 0, invert, 0, 0, 0} }
	var r model.PacketRule
	Match(&r, Extension{Name: "addrtype", Rev: 1, Info: info(0)})
	Match(&r, Extension{Name: "addrtype", Rev: 1, Info: info(2)})
	if r.DstLocal != 1 || len(r.Unknown) != 1 || r.Unknown[0] != "addrtype ! --dst-type LOCAL" {
		t.Errorf("%+v", r)
	}
}

func TestInterface(t *testing.T) {
	for _, tt := range []struct{ name, mask, want string }{
		{"eth0\x00\x00", "\xff\xff\xff\xff\xff\x00", "eth0"},
		{"veth\x00\x00", "\xff\xff\xff\xff\x00\x00", "veth+"},
		{"veth+\x00", "\xff\xff\xff\xff\x00\x00", "veth+"},
		{"\x00\x00", "\x00\x00", ""},
	} {
		if got := Interface([]byte(tt.name), []byte(tt.mask)); got != tt.want {
			t.Errorf("%q under %q: %q, want %q", tt.name, tt.mask, got, tt.want)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"plain":      "plain",
		"two words":  `"two words"`,
		`say "hi"`:   `"say \"hi\""`,
		"":           `""`,
		`back\slash`: `"back\\slash"`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
