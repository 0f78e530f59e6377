package loss

import (
	"testing"

	"github.com/lasthop/lasthop/probe/model"
)

// FuzzSample: packets are cut off, and no sample is what it claims to be.
func FuzzSample(f *testing.F) {
	four := make([]byte, 40)
	four[0], four[9], four[33] = 0x45, model.TCP, 2
	f.Add(four)
	six := make([]byte, 48)
	six[0], six[6] = 0x60, 17
	f.Add(six)
	f.Add(six[:39])
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &model.Sample{Head: b}
		src, dst, ok := s.Ports()
		if !ok && (src != 0 || dst != 0) || ok && len(b) < 24 {
			t.Errorf("ports %d, %d, %v of %d bytes", src, dst, ok, len(b))
		}
		if s.Late() && (len(b) < 34 || s.Proto() != model.TCP) {
			t.Errorf("a late segment of protocol %d in %d bytes", s.Proto(), len(b))
		}
		if s.Proto() != 0 && len(b) < 20 {
			t.Errorf("protocol %d of %d bytes", s.Proto(), len(b))
		}
		s.Redirects()
	})
}

// TestLate: a segment within a connection or its reply is late where no socket takes it;
// a request is not. Without a sample nothing is known.
func TestLate(t *testing.T) {
	for flags, want := range map[byte]bool{0x02: false, 0x12: true, 0x10: true, 0x11: true, 0x04: true} {
		head := make([]byte, 40)
		head[0], head[9], head[33] = 0x45, model.TCP, flags
		if got := (&model.Sample{Head: head}).Late(); got != want {
			t.Errorf("flags %#x: %v", flags, got)
		}
	}
	if (*model.Sample)(nil).Late() {
		t.Error("no sample is late")
	}
}
