package traffic

import (
	"time"
	"unsafe"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

type macs struct{ src, dst model.MAC }

// macKey is a pair of MACs at a hop counter, by the counter's number.
type macKey struct {
	hop uint32
	macs
}

type packets uint64

func (n packets) plus(m packets) packets { return n + m }

// moreMACs mirror the pairs of MACs that hop counters have no room for: on a bridge,
// a pod that many others talk to has a pair with each.
type moreMACs struct {
	*cpuTable[bpf.TCMacPair, macKey, packets]
	pairs map[macKey]tally
}

func newMoreMACs(m *mapped, cpus int) moreMACs {
	return moreMACs{pairs: map[macKey]tally{}, cpuTable: newCPUTable(m, cpus, macSize, int(unsafe.Offsetof(bpf.TCMacPair{}.Hop)),
		func(p *bpf.TCMacPair) (macKey, bool) {
			return macKey{p.Hop, macs{src: p.Src, dst: p.Dst}}, p.Hop != 0 && p.Hop != retired
		},
		func(p *bpf.TCMacPair) packets { return packets(p.Packets) })}
}

func (t *moreMACs) poll(now time.Time) {
	pairs := make(map[macKey]tally, len(t.pairs))
	for k, n := range t.sums() {
		e := t.pairs[k]
		if uint64(n) != e.packets {
			e.packets, e.last = uint64(n), now
		}
		pairs[k] = e
	}
	t.pairs = pairs
}

// evict makes room: it retires the pairs that were not seen since then.
func (t *moreMACs) evict(since time.Time) {
	if t.crowded() {
		t.retire(func(k macKey) bool { return t.pairs[k].last.Before(since) })
	}
}
