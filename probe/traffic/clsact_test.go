package traffic

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/collect/dump"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// verdict is what a program of somebody else's says of each packet. redirectTo
// says it with a helper, which sends the packet out of a link.
type verdict struct {
	name       string
	code       int32
	redirectTo int
}

var verdicts = []verdict{
	{"UNSPEC", -1, 0}, {"OK", 0, 0}, {"RECLASSIFY", 1, 0}, {"SHOT", 2, 0}, {"PIPE", 3, 0}, {"STOLEN", 4, 0}, {"REDIRECT", 7, loopback},
}

// passes reports whether a filter with the verdict lets packets go on.
func (v verdict) passes() bool { return v.code < 2 || v.code == 3 }

// passesTCX reports whether a tcx program with the verdict lets packets go on: tcx
// takes what it does not know for next (tcx_action_code).
func (v verdict) passesTCX() bool { return v.code != 2 && v.code != 7 }

// counting makes a program of somebody else's, which counts IPv4 packets.
func counting(t testing.TB, v verdict) (*ebpf.Program, func() uint64) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const protocol, ipv4 = 16, 0x0008 // offset in struct __sk_buff; in network byte order
	code := asm.Instructions{
		asm.LoadMem(asm.R3, asm.R1, protocol, asm.Word),
		asm.JNE.Imm(asm.R3, ipv4, "next"),
		asm.LoadMapValue(asm.R1, m.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, v.code).WithSymbol("next"),
	}
	if v.redirectTo != 0 {
		code = append(code, asm.Mov.Imm(asm.R1, int32(v.redirectTo)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call())
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "MIT", Name: "foreign", Instructions: append(code, asm.Return()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, func() uint64 {
		var n uint64
		if err := m.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// clsactOf makes the qdisc as somebody else does.
func clsactOf(t testing.TB, ns *netns.NS, l Link) {
	t.Helper()
	inside(t, ns, func() error { return netlink.QdiscReplace(qdiscOf(l.Index)) })
}

// foreignFilter makes a filter of somebody else's, on ingress.
func foreignFilter(t testing.TB, ns *netns.NS, l Link, priority uint16, p *ebpf.Program) {
	t.Helper()
	clsactOf(t, ns, l)
	f := filter{Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL, Name: "foreign"}
	m := f.message(l.Index, hooks[0], p.FD())
	inside(t, ns, func() error { return netlink.FilterAdd(m) })
}

// await waits until a condition holds that some other process or the kernel makes
// true.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// beside is a program of somebody else's beside lasthop's on a link.
type beside struct {
	*testing.T
	ends *twoEnds
	e    *Engine
	// passes says that the program lets packets go on, seen how many it has counted.
	passes bool
	seen   func() uint64
}

const besidePackets = 20

// pass sends packets, all of which the other program counts.
func (b beside) pass(when string) {
	b.Helper()
	before := b.seen()
	if b.passes {
		b.ends.exchange(b, besidePackets)
	} else {
		b.ends.send(b, besidePackets)
	}
	await(b, "the other program counts all packets", func() bool { return b.seen()-before >= besidePackets })
	if n := b.seen() - before; n != besidePackets {
		b.Errorf("%s: the other program saw %d packets, want %d", when, n, besidePackets)
	}
}

// counted wants lasthop to count them as well.
func (b beside) counted(when string) {
	b.Helper()
	ours := func() uint64 {
		return hopOf(poll(b, b.e), podIP.String(), model.Ingress, model.AsSource).Packets
	}
	before := ours()
	b.pass(when)
	if n := ours() - before; n != besidePackets {
		b.Errorf("%s: lasthop saw %d packets, want %d", when, n, besidePackets)
	}
}

func (b beside) attach(links ...Link) {
	b.Helper()
	if err := b.e.Attach(links, time.Time{}); err != nil {
		b.Fatal(err)
	}
}

// TestForeignFilters has filters of somebody else's on a link, of each verdict,
// before ours came and after. Their counts and the traffic are the same as without
// lasthop, and ours are right.
func TestForeignFilters(t *testing.T) {
	ends := newTwoEnds(t)
	setMAC(t, ends)
	e := ends.watched(t, Config{Attach: AttachClsact})
	for _, v := range verdicts {
		t.Run(v.name, func(t *testing.T) {
			p, seen := counting(t, v)
			b := beside{t, ends, e, v.passes(), seen}
			foreignFilter(t, ends.node, ends.nodeLink, 1, p)
			b.pass("without lasthop")
			b.attach(ends.nodeLink)
			b.counted("before lasthop")
			b.attach()
			clean(t, ends)
			b.attach(ends.nodeLink)
			foreignFilter(t, ends.node, ends.nodeLink, 1, p)
			// Ours is behind, which a poll sees and mends.
			b.counted("after lasthop")
			b.attach()
			left, qdisc := filtersOn(t, ends.node, ends.nodeLink.Index)
			if qdisc != "clsact" || len(left[0]) != 1 || left[0][0].Name != "foreign" || len(left[1]) != 0 {
				t.Errorf("left behind: %s %+v", qdisc, left)
			}
			clean(t, ends)
		})
	}
}

// send sends packets from the pod that nobody may receive.
func (e *twoEnds) send(t testing.TB, n int) {
	t.Helper()
	for range n {
		if _, err := e.podConn.WriteToUDPAddrPort([]byte("lost"), netip.AddrPortFrom(nodeIP, 7000)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForeignTCX has tcx programs of somebody else's on the link, of each verdict,
// before ours came, and put before ours later.
func TestForeignTCX(t *testing.T) {
	if len(modes(t)) < 2 {
		t.Log("this kernel has no tcx")
		return
	}
	ends := newTwoEnds(t)
	setMAC(t, ends)
	e := ends.watched(t, Config{Attach: AttachTCX})
	for _, v := range verdicts {
		t.Run(v.name, func(t *testing.T) {
			p, seen := counting(t, v)
			b := beside{t, ends, e, v.passesTCX(), seen}
			detach := foreignTCX(t, ends, p, link.Tail())
			b.pass("without lasthop")
			b.attach(ends.nodeLink)
			b.counted("before lasthop")
			detach()
			detach = foreignTCX(t, ends, p, link.Head())
			// Ours is behind, which a poll sees and mends.
			b.counted("after lasthop")
			b.attach()
			b.pass("without lasthop again")
			detach()
		})
	}
}

// foreignTCX attaches a program of somebody else's to ingress, and returns what
// detaches it.
func foreignTCX(t testing.TB, ends *twoEnds, p *ebpf.Program, where link.Anchor) (detach func()) {
	t.Helper()
	inside(t, ends.node, func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: ends.nodeLink.Index, Program: p, Attach: ebpf.AttachTCXIngress, Anchor: where})
		if err == nil {
			detach = sync.OnceFunc(func() { l.Close() })
			t.Cleanup(detach)
		}
		return err
	})
	return detach
}

// TestFreePriority puts ours before the filters of others.
func TestFreePriority(t *testing.T) {
	bpf := func(priority uint16) filter {
		return filter{Kind: "bpf", Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL}
	}
	ours := filter{Kind: "bpf", Handle: filterHandle | 7, Priority: usualPriority, Protocol: unix.ETH_P_ALL, Name: filterName}
	for name, tt := range map[string]struct {
		present []filter
		want    uint16
	}{
		"none":                 {nil, usualPriority},
		"another lasthop's":    {[]filter{ours}, usualPriority},
		"one behind":           {[]filter{bpf(49152)}, usualPriority},
		"one at the usual":     {[]filter{bpf(usualPriority)}, usualPriority - 1},
		"one before":           {[]filter{bpf(7), bpf(9)}, 6},
		"one at the first":     {[]filter{bpf(1)}, 1},
		"another chain":        {[]filter{{Kind: "u32", Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL, Chain: 4}}, usualPriority},
		"another kind first":   {[]filter{{Kind: "u32", Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}}, usualPriority},
		"another protocol":     {[]filter{{Kind: "bpf", Handle: 1, Priority: 1, Protocol: unix.ETH_P_IP}}, usualPriority},
		"no usual one is free": {[]filter{{Kind: "u32", Handle: 1, Priority: 1}, {Kind: "u32", Handle: 1, Priority: usualPriority}}, usualPriority + 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := freePriority(tt.present); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// TestBehind has a filter of another protocol at priority 1, which nothing can run
// before: the source says so.
func TestBehind(t *testing.T) {
	ends := newTwoEnds(t)
	p, _ := counting(t, verdicts[0])
	clsactOf(t, ends.node, ends.nodeLink)
	f := filter{Handle: 1, Priority: 1, Protocol: unix.ETH_P_IP, Name: "foreign"}
	m := f.message(ends.nodeLink.Index, hooks[0], p.FD())
	inside(t, ends.node, func() error { return netlink.FilterAdd(m) })
	e := ends.watched(t, Config{Attach: AttachClsact})
	if err := e.Attach([]Link{ends.nodeLink}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := e.Poll(epoch(100 * (i + 1))); err != nil {
			t.Fatal(err)
		}
		s := sourceStatus(e, model.SourceTC)
		if s.Status != model.Partial || !strings.Contains(s.Detail, "foreign (pref 1) runs before") || !strings.Contains(s.Detail, ends.nodeLink.Name) {
			t.Errorf("source %+v", s)
		}
		if n := e.Traffic().Lost.Gaps; n != uint64(i+1) {
			t.Errorf("%d gaps after %d polls", n, i+1)
		}
	}
	ends.exchange(t, 5)
	if h := hopOf(poll(t, e), podIP.String(), model.Ingress, model.AsSource); h.Packets != 5 {
		t.Errorf("%d packets behind a filter that passes them on, want 5", h.Packets)
	}
}

// TestIngressQdisc has the qdisc ingress in the place of clsact: that link cannot
// be watched, others can.
func TestIngressQdisc(t *testing.T) {
	ends := newTwoEnds(t)
	inside(t, ends.node, func() error {
		return netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ends.nodeLink.Index, Handle: dump.ClsactHandle, Parent: netlink.HANDLE_INGRESS}})
	})
	second, _ := veth(t, ends.node, "host1", "", ends.pod, "pod1", "")
	e := ends.watched(t, Config{Attach: AttachClsact})
	if err := e.Attach([]Link{ends.nodeLink, second}, time.Time{}); err == nil {
		t.Error("attached to a link without an egress hook")
	}
	s := sourceStatus(e, model.SourceTC)
	if s.Status != model.Partial || !strings.Contains(s.Detail, "qdisc ingress") || !strings.Contains(s.Detail, ends.nodeLink.Name) {
		t.Errorf("source %+v", s)
	}
	if n := programsOn(t, ends.node, second.Index); n != 2 {
		t.Errorf("%d programs on the other link, want 2", n)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if h, kind := filtersOn(t, ends.node, ends.nodeLink.Index); kind != "ingress" || len(h[0])+len(h[1]) != 0 {
		t.Errorf("after: %s %+v", kind, h)
	}
}

// TestQdiscs wants a qdisc to go only if a lasthop made it and nobody else may
// use it.
func TestQdiscs(t *testing.T) {
	ends := newTwoEnds(t)
	second, _ := veth(t, ends.node, "host1", "", ends.pod, "pod1", "")
	links := []Link{ends.nodeLink, second}
	var open []*Engine
	attach := func() *Engine {
		t.Helper()
		e := ends.watched(t, Config{Attach: AttachClsact})
		if err := e.Attach(links, time.Time{}); err != nil {
			t.Fatal(err)
		}
		open = append(open, e)
		return e
	}
	closed := func(e *Engine) {
		t.Helper()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, l Link, qdisc string, filters int) {
		t.Helper()
		h, kind := filtersOn(t, ends.node, l.Index)
		if n := len(h[0]) + len(h[1]); kind != qdisc || n != filters {
			t.Errorf("%s: %s has qdisc %q and %d filters, want %q and %d", what, l.Name, kind, n, qdisc, filters)
		}
	}

	// The first leaves before the second: that one uses the qdisc, and takes it
	// away.
	first, last := attach(), attach()
	want("two lasthops", ends.nodeLink, "clsact", 4)
	closed(first)
	want("the first has left", ends.nodeLink, "clsact", 2)
	ends.exchange(t, 5)
	if h := hopOf(poll(t, last), podIP.String(), model.Ingress, model.AsSource); h.Packets != 5 {
		t.Errorf("the second saw %d packets, want 5", h.Packets)
	}
	closed(last)
	want("both have left", ends.nodeLink, "", 0)

	// Somebody else made one.
	clsactOf(t, ends.node, second)
	closed(attach())
	want("somebody else's", second, "clsact", 0)
	want("ours beside it", ends.nodeLink, "", 0)

	// Somebody else has a filter on another link, and may be about to use ours.
	e := attach()
	p, _ := counting(t, verdicts[0])
	foreignFilter(t, ends.node, second, 1, p)
	closed(e)
	want("with a filter of somebody else's", second, "clsact", 1)
	want("ours, while somebody else has filters", ends.nodeLink, "clsact", 0)

	for _, e := range open {
		closed(e)
	}
}

// TestSameCounts watches the same packets by tcx and by clsact.
func TestSameCounts(t *testing.T) {
	if len(modes(t)) < 2 {
		t.Log("this kernel has no tcx: nothing to compare")
		return
	}
	ends := newTwoEnds(t)
	second, _ := veth(t, ends.node, "host1", "10.78.0.1/24", ends.pod, "pod1", "10.78.0.2/24")
	ends.exchange(t, 1)
	nodeLink := ends.nodeLink
	nodeLink.Uplink = true
	var counts []model.Traffic
	var engines []*Engine
	for _, mode := range []string{AttachTCX, AttachClsact} {
		e := ends.watched(t, Config{Attach: mode})
		if err := e.Attach([]Link{nodeLink, second}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	ends.exchange(t, 100)
	for _, e := range engines {
		if err := e.Poll(epoch(100)); err != nil {
			t.Fatal(err)
		}
		if s := sourceStatus(e, model.SourceTC); s.Status != model.OK {
			t.Errorf("%s: %+v", e.AttachMode(), s)
		}
		counts = append(counts, e.Traffic())
	}
	a, b := counts[0], counts[1]
	if len(a.Hops) != 4 || !slices.Equal(a.Hops, b.Hops) {
		t.Errorf("hops by tcx and by clsact:\n%+v\n%+v", a.Hops, b.Hops)
	}
	if !slices.Equal(a.MACs, b.MACs) {
		t.Errorf("MACs by tcx and by clsact:\n%+v\n%+v", a.MACs, b.MACs)
	}
}

// TestAuto attaches by tcx as long as that takes no time that matters.
func TestAuto(t *testing.T) {
	few := AttachClsact
	if len(modes(t)) > 1 {
		few = AttachTCX
	}
	ends := newTwoEnds(t)
	links := []Link{ends.nodeLink}
	for i := range mostTCX {
		l, _ := veth(t, ends.node, "host"+string(rune('A'+i)), "", ends.pod, "pod"+string(rune('A'+i)), "")
		links = append(links, l)
	}
	attach := func(links []Link) string {
		t.Helper()
		e := ends.watched(t, Config{})
		if err := errors.Join(e.Attach(links, time.Time{}), e.Close()); err != nil {
			t.Fatal(err)
		}
		return e.AttachMode()
	}
	if mode := attach(links[:1]); mode != few {
		t.Errorf("one link: by %s, want %s", mode, few)
	}
	// Making so many qdiscs would lose packets.
	if mode := attach(links); mode != few {
		t.Errorf("%d links: by %s, want %s", len(links), mode, few)
	}
	for _, l := range links {
		clsactOf(t, ends.node, l)
	}
	if mode := attach(links); mode != AttachClsact {
		t.Errorf("%d links with clsact: by %s, want clsact", len(links), mode)
	}
	if few == AttachTCX {
		p, _ := counting(t, verdicts[1])
		foreignTCX(t, ends, p, link.Tail())
		if mode := attach(links); mode != AttachTCX {
			t.Errorf("%d links with clsact, one with another tcx program: by %s, want tcx", len(links), mode)
		}
	}
}

// TestNoTCX asks for tcx where there is none.
func TestNoTCX(t *testing.T) {
	ns := newNS(t)
	e, err := Open(Config{NS: ns, Attach: AttachTCX})
	var u *model.UnsupportedError
	switch {
	case err == nil:
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	case !errors.As(err, &u) || len(modes(t)) > 1:
		t.Fatal(err)
	case !strings.Contains(err.Error(), "6.6"):
		t.Errorf("the error does not name the kernel: %v", err)
	}
	if _, err := Open(Config{NS: ns, Attach: "xdp"}); err == nil {
		t.Error("attached by something unknown")
	}
}
