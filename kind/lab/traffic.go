package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/netns"
)

// FlowStats counts the requests of one flow.
type FlowStats struct {
	// Flow is its name, as "a/web > b/db tcp/8080".
	Flow     string
	From, To scenario.Endpoint
	Proto    scenario.Proto
	Port     uint16
	// Denied says that no request may be answered.
	Denied bool
	// Sent requests are Answered (with what was sent; one-way ones when they
	// were sent), Failed (another answer, an error, or none in time), or still waiting.
	Sent, Answered, Failed uint64
	// LastError is why the latest failed.
	LastError string
}

// flow is a running flow.
type flow struct {
	scenario.Flow
	// from is where its sockets are made.
	from *netns.NS
	// also are asked from the same socket at once; one answer is enough.
	also []netip.Addr
	// slots are held while a request has their source port.
	slots                  []sync.Mutex
	sent, answered, failed atomic.Uint64
	lastError              atomic.Pointer[string]
}

func (f *flow) stats() FlowStats {
	s := FlowStats{Flow: f.String(), From: f.From, To: f.To, Proto: f.Proto, Port: f.Port, Denied: f.Denied}
	// In this order no request is counted as ended that was not as sent.
	s.Answered, s.Failed = f.answered.Load(), f.failed.Load()
	s.Sent = f.sent.Load()
	if e := f.lastError.Load(); e != nil {
		s.LastError = *e
	}
	return s
}

// traffic is all flows of a lab, running or ended.
type traffic struct {
	cancel context.CancelFunc
	// all are its goroutines.
	all sync.WaitGroup
	// failure is why a server could not go on.
	failure atomic.Pointer[error]
	// done is closed when all its goroutines have ended.
	done    chan struct{}
	timeout time.Duration
	flows   []*flow
	// scenario says which servers are missing, or read nothing.
	scenario *scenario.Scenario
	// spaces are the open namespaces, by place.
	spaces map[string]*netns.NS
	// datagramPort is that of the lab.
	datagramPort func() uint16

	mu sync.Mutex
	// changed is closed and replaced when a count has changed.
	changed chan struct{}
}

// ErrBusy says that traffic of the lab runs already.
var ErrBusy = errors.New("traffic is running already")

// RunTraffic runs the scenario's traffic until ctx ends or the scenario's time
// is over, neither of which is an error. It calls ready once, when every flow
// has sent its first request. When it returns, all its goroutines have ended.
func (l *Lab) RunTraffic(ctx context.Context, ready func()) error {
	return wrap(l.runTraffic(ctx, ready), "run traffic of lab %q", l.id)
}

func (l *Lab) runTraffic(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithTimeout(ctx, l.s.Duration)
	defer cancel()
	t := &traffic{
		cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		timeout: l.s.Timeout, scenario: l.asItIs(), spaces: map[string]*netns.NS{}, datagramPort: l.datagramPort,
	}
	defer close(t.done)
	defer t.close()
	if err := t.open(l); err != nil {
		return err
	}
	if !l.replace(t) {
		return ErrBusy
	}
	defer t.all.Wait()
	defer cancel()
	if err := t.serve(ctx); err != nil {
		return err
	}
	if err := t.holdPackets(ctx, l); err != nil {
		return err
	}
	var first sync.WaitGroup
	first.Add(len(t.flows))
	for i, f := range t.flows {
		t.all.Go(func() { t.repeat(ctx, i, f, first.Done) })
	}
	first.Wait()
	if err := l.turn(ctx); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	if err := t.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// BeginTraffic runs the scenario's traffic in the background, and returns when every flow
// has sent its first request. The returned function ends the traffic and returns its error.
func (l *Lab) BeginTraffic(ctx context.Context) (end func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- l.RunTraffic(ctx, func() { close(ready) }) }()
	end = func() error {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
	select {
	case <-ready:
		return end, nil
	case err := <-done:
		cancel()
		if err == nil {
			err = fmt.Errorf("run traffic of lab %q: it ended immediately", l.id)
		}
		return nil, err
	}
}

// replace makes t the lab's latest traffic, unless another runs.
func (l *Lab) replace(t *traffic) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.traffic != nil && !l.traffic.ended() {
		return false
	}
	l.traffic = t
	return true
}

// fail ends the traffic: without a server the counts would lie.
func (t *traffic) fail(err error) {
	t.failure.CompareAndSwap(nil, &err)
	t.cancel()
}

func (t *traffic) ended() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// open opens the namespaces of all flows.
func (t *traffic) open(l *Lab) error {
	for _, f := range t.scenario.Traffic {
		if scenario.OnEachNode(f.To.Addr) {
			// Each node has its own; on which link, if any, a fault says.
			f.To.Place, _, _ = strings.Cut(f.From.Place, "/")
		}
		for _, place := range []string{f.From.Place, f.To.Place} {
			if _, ok := t.spaces[place]; ok || place == "" {
				continue
			}
			ns, err := netns.Named(l.netns(place))
			if err != nil {
				return err
			}
			t.spaces[place] = ns
		}
		t.flows = append(t.flows, &flow{Flow: f, from: t.spaces[f.From.Place], also: t.scenario.Raced(f), slots: make([]sync.Mutex, f.Ports)})
	}
	return nil
}

func (t *traffic) close() {
	for _, ns := range t.spaces {
		ns.Close()
	}
}

// repeat sends a flow's requests at its rate, without waiting for answers: a
// dead flow sends as much as a live one. It calls first after the first: after its
// end where the server hangs, which answers the end of its first connections too.
func (t *traffic) repeat(ctx context.Context, index int, f *flow, first func()) {
	var pending sync.WaitGroup
	defer pending.Wait()
	hung := t.scenario.Afflicted(scenario.PodHung, f.To.Place)
	send := func(seq int, sent func()) {
		f.sent.Add(1)
		pending.Go(func() {
			if hung {
				defer sent()
				sent = func() {}
			}
			from := uint16(0)
			if n := len(f.slots); n > 0 {
				from = firstSourcePort + uint16(index*maxSlots+seq%n)
				f.slots[seq%n].Lock()
				defer f.slots[seq%n].Unlock()
			} else if f.Proto == scenario.UDP {
				from = t.datagramPort()
			}
			t.count(ctx, f, request(ctx, f, from, t.timeout, payload(f, index, seq), sent))
		})
	}
	if f.Keep {
		f.sent.Add(1)
		t.keep(ctx, f, payload(f, index, 0), sync.OnceFunc(first))
		return
	}
	send(0, sync.OnceFunc(first))
	period := time.Duration(float64(time.Second) / f.Rate)
	// Flows that started together are spread over the period.
	start := time.NewTimer(period + period*time.Duration(index)/time.Duration(len(t.flows)))
	defer start.Stop()
	select {
	case <-ctx.Done():
		return
	case <-start.C:
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for seq := 1; ; seq++ {
		send(seq, func() {})
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// firstSourcePort is the first port of flows that choose theirs, below those
// that the kernel chooses.
const firstSourcePort, maxSlots = 20000, 64

// datagramPort is the source port of the lab's next request by UDP. Connection tracking
// remembers those without a reply for half a minute. A socket that the kernel gives the port
// of such an entry goes by it, whatever rules were mended meanwhile, so each gets another of
// the ports that the kernel chooses from (net.ipv4.ip_local_port_range).
func (l *Lab) datagramPort() uint16 {
	const first, after = 32768, 61000
	return uint16(first + l.datagrams.Add(1)%(after-first))
}

// keep makes one connection, sends one request by it, and leaves it open until
// ctx ends. The kernel sends keep-alives meanwhile.
func (t *traffic) keep(ctx context.Context, f *flow, payload []byte, sent func()) {
	c, err := converse(ctx, f, 0, t.timeout, payload, sent)
	if err == nil {
		err = keepAlive(c)
	}
	t.count(ctx, f, err)
	if err != nil {
		return
	}
	defer c.Close()
	defer expire(ctx, c)()
	if _, err := c.Read(make([]byte, 1)); ctx.Err() == nil {
		f.sent.Add(1)
		t.count(ctx, f, fmt.Errorf("kept connection: %w", cmp.Or(err, errAnswer)))
	}
}

// count records how a request ended. One that the end of the traffic cut off
// was never sent.
func (t *traffic) count(ctx context.Context, f *flow, err error) {
	switch {
	case err == nil:
		f.answered.Add(1)
	case ctx.Err() != nil:
		f.sent.Add(^uint64(0))
	default:
		f.failed.Add(1)
		msg := err.Error()
		f.lastError.Store(&msg)
	}
	t.mu.Lock()
	close(t.changed)
	t.changed = make(chan struct{})
	t.mu.Unlock()
}

// What is in requests that servers do not answer, or late.
const (
	oneWay = "one-way"
	slow   = "slow"
)

// lateness is how late.
const lateness = 800 * time.Millisecond

// payload is what a request sends and wants back, different for each, and as
// long as the flow wants.
func payload(f *flow, index, seq int) []byte {
	kind := "flow"
	if f.OneWay {
		kind = oneWay
	}
	if f.Slow {
		kind = slow
	}
	msg := fmt.Appendf(nil, "lasthop %s %06d request %012d", kind, index, seq)
	return append(msg, bytes.Repeat([]byte{'.'}, max(f.Size-len(msg), 0))...)
}

// latest is the traffic that this process ran last; nil when it ran none.
func (l *Lab) latest() *traffic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.traffic
}

// Stats are the counts of all flows of the latest traffic: that of this
// process or, when it ran none, what the process that StartTraffic started
// wrote down last. Nil when there was none.
func (l *Lab) Stats() []FlowStats {
	t := l.latest()
	if t == nil {
		var out []FlowStats
		if err := readJSON(l.id, statsFile, &out); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return out
	}
	return t.stats()
}

func (t *traffic) stats() []FlowStats {
	out := make([]FlowStats, len(t.flows))
	for i, f := range t.flows {
		out[i] = f.stats()
	}
	return out
}

// Await blocks until enough is content with the counts of the traffic that
// this process runs. It is an error if ctx or the traffic ends before. As Rewrite it is for
// tests.
func Await(ctx context.Context, l *Lab, enough func([]FlowStats) bool) error {
	t := l.latest()
	if t == nil {
		return fmt.Errorf("await traffic of lab %q: none runs here", l.id)
	}
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		if enough(t.stats()) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await traffic of lab %q: %w", l.id, ctx.Err())
		case <-t.done:
			return fmt.Errorf("await traffic of lab %q: it has ended", l.id)
		}
	}
}

// server is what flows ask: one for all flows to the same port.
type server struct {
	place string
	addr  netip.AddrPort
	proto scenario.Proto
}

// serve starts a server for each port that flows go to. ICMP is answered by
// the kernel, and an address that no machine has is not answered.
func (t *traffic) serve(ctx context.Context) error {
	started := map[server]bool{}
	for _, f := range t.flows {
		s := server{f.To.Place, netip.AddrPortFrom(f.To.Addr, f.Port), f.Proto}
		stopped := slices.ContainsFunc(t.scenario.Faults, func(x scenario.Fault) bool {
			return x.Type == scenario.LocalDNSStopped && x.Node == s.place && slices.Contains(scenario.LocalDNSes, s.addr.Addr())
		})
		if s.place == "" || s.proto == scenario.ICMP || started[s] || stopped || t.scenario.Afflicted(scenario.NoListener, s.place) {
			continue
		}
		started[s] = true
		if t.scenario.Afflicted(scenario.LoopbackListener, s.place) {
			loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
			if s.addr.Addr().Is6() {
				loopback = netip.IPv6Loopback()
			}
			s.addr = netip.AddrPortFrom(loopback, s.addr.Port())
		}
		hung := t.scenario.Afflicted(scenario.PodHung, s.place)
		var err error
		if s.proto == scenario.UDP {
			err = t.serveUDP(ctx, t.spaces[s.place], s.addr, !hung && !t.scenario.Afflicted(scenario.DeafServer, s.place))
		} else {
			err = t.serveTCP(ctx, t.spaces[s.place], s.addr, !hung)
		}
		if err != nil {
			return fmt.Errorf("serve %s %s in %s: %w", s.proto, s.addr, s.place, err)
		}
	}
	return nil
}
