package traffic

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/lasthop/lasthop/probe/model"
)

// leaving is a program that drops packets, and leaves these words in them before.
func leaving(t testing.TB, words [5]uint32) *ebpf.Program {
	t.Helper()
	const cb = 48 // in struct __sk_buff
	var code asm.Instructions
	for i, w := range words {
		code = append(code, asm.LoadImm(asm.R2, int64(w), asm.DWord), asm.StoreMem(asm.R1, int16(cb+4*i), asm.R2, asm.Word))
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "MIT", Name: "cil_from_contai", Instructions: append(code, asm.Mov.Imm(asm.R0, 2), asm.Return()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// TestCiliumDrop wants Cilium's reason from the packet that its program dropped, and none from
// what other programs leave in the same place.
func TestCiliumDrop(t *testing.T) {
	denied := [5]uint32{9934, 3358, 133, 871, 2 | 2<<8 | 1234<<16}
	with := func(i int, w uint32) [5]uint32 {
		words := denied
		words[i] = w
		return words
	}
	for _, tt := range []struct {
		name  string
		words [5]uint32
		want  model.CiliumDrop
	}{
		{"a policy denied", denied, model.CiliumDrop{Reason: 133, SrcIdentity: 9934, DstIdentity: 3358, Endpoint: 871, File: 2, Line: 1234}},
		{"with an error", with(2, 155|uint32(0xf4)<<8), model.CiliumDrop{Reason: 155, Error: -12, SrcIdentity: 9934, DstIdentity: 3358, Endpoint: 871, File: 2, Line: 1234}},
		{"of a file that no version has yet", with(4, 2|200<<8|7<<16), model.CiliumDrop{Reason: 133, SrcIdentity: 9934, DstIdentity: 3358, Endpoint: 871, File: 200, Line: 7}},
		{"another verdict", with(4, 0|2<<8), model.CiliumDrop{}},
		{"no reason", with(2, 5), model.CiliumDrop{}},
		{"more than a reason", with(2, 133|1<<16), model.CiliumDrop{}},
		{"no file", with(4, 2|1234<<16), model.CiliumDrop{}},
		{"no endpoint", with(3, 1<<16), model.CiliumDrop{}},
		{"nothing", [5]uint32{}, model.CiliumDrop{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ends := newRouter(t)
			e := ends.watched(t, Config{})
			foreignFilter(t, ends.node, ends.nodeLink, 1, leaving(t, tt.words))
			ends.lose(t, netip.MustParseAddr("203.0.113.9"), 9)
			tr := dropped(t, e, 9)
			if len(tr.Drops) != 1 || tr.Drops[0].Cilium != tt.want || tr.Drops[0].Reason != "TC_INGRESS" {
				t.Errorf("drops %+v, want %+v", tr.Drops, tt.want)
			}
			for _, s := range tr.Samples {
				if s.Cilium != tt.want {
					t.Errorf("sample %+v, want %+v", s, tt.want)
				}
			}
		})
	}
}
