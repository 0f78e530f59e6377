package dump

import (
	"encoding/binary"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// one is a socket on which each dump has one message.
type one []byte

func (m one) Each(_ uint16, _ []byte, _ uint16, f func(m []byte) error) error { return f(m) }

// FuzzFilter decodes filters and qdiscs of any content.
func FuzzFilter(f *testing.F) {
	m := binary.NativeEndian.AppendUint32(make([]byte, 4), 9)
	m = binary.NativeEndian.AppendUint32(m, ClsactHandle)
	m = append(m, make([]byte, nl.SizeofTcMsg-len(m))...)
	f.Add(Append(m, nl.TCA_KIND, []byte("clsact\x00")))
	options := Append(Append(nil, nl.TCA_BPF_NAME, []byte("cil_from_netdev-eth0\x00")), nl.TCA_BPF_ID, []byte{7, 0, 0, 0})
	f.Add(Append(Append(m, nl.TCA_KIND, []byte("bpf\x00")), unix.NLA_F_NESTED|nl.TCA_OPTIONS, options))
	f.Fuzz(func(t *testing.T, m []byte) {
		if f, err := decodeFilter(m); err == nil && f.Program != 0 && f.Kind != "bpf" {
			t.Errorf("a %s filter has program %d", f.Kind, f.Program)
		}
		if kinds, _ := Clsact(t.Context(), one(m)); len(kinds) > 0 && len(m) < nl.SizeofTcMsg {
			t.Errorf("qdiscs %v from %d bytes", kinds, len(m))
		}
	})
}
