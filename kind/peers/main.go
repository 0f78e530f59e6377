// Command peers measures what watching packets costs: lasthop's, and that of tools an
// engineer would use instead.
//
// Each tool watches the same path, by turns and in an order that changes, and
// each turn sends the same packets. The cost of a packet is the CPU time of the
// sender, in which the kernel also forwards and receives the packet, of
// ksoftirqd, and of the tool. What a tool adds is the difference to the mean of two
// turns in which none ran, the one before and the one after.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"text/tabwriter"
)

// packets are how many each turn sends and measures, by default.
const packets = 300_000

// What small and large packets carry, in bytes: with their headers these are frames of 64
// and 1,442 bytes.
const small, large = 22, 1400

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	if len(args) < 2 || len(args) > 3 {
		return errors.New("usage: peers LASTHOP ROUNDS [PACKETS]: give the binary, how often each tool takes its turn, and how many packets that sends")
	}
	numbers := []int{1, packets}
	for i, arg := range args[1:] {
		if numbers[i], err = strconv.Atoi(arg); err != nil || numbers[i] < 1 {
			return fmt.Errorf("%q: not a positive number", arg)
		}
	}
	rounds, packets := numbers[0], numbers[1]
	p, err := newPath()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, w := range []workload{
		{"forwarded", "a packet of 64 bytes that passes two hooks of the node", small, server, packets, here(hooked, byTCX, byClsact, following, capturing)},
		{"forwarded, large", "one of 1,442 bytes", large, server, packets, here(byTCX, byClsact, following, capturing)},
		{"dropped", "a packet that a full socket of its pod drops, on no hook", small, full, packets, here(traced, byTCX, byClsact, following, tracing)},
		{"dropped, on a hook", "a packet that passes one hook of the node, whose blackhole route drops it", small, blackhole, packets, here(byTCX, byClsact, following, tracing)},
	} {
		turns, err := w.measure(ctx, p, args[0], rounds)
		if err != nil {
			return err
		}
		if err := w.print(turns, rounds); err != nil {
			return err
		}
	}
	return nil
}

// workload is what is sent, and who watches it.
type workload struct {
	name, about string
	data        int // bytes in a packet
	to          string
	packets     int
	tools       []tool
}

// turn is what one tool's turn in one round was.
type turn struct {
	cost             // per packet, in nanoseconds of CPU time
	without  float64 // what a packet cost before and after, in nanoseconds
	lost     int
	received int
	own      string // what the tool says that it lost
}

// measure returns each tool's turns, by round. Between two turns none runs.
func (w workload) measure(ctx context.Context, p *path, binary string, rounds int) (map[string][]turn, error) {
	turns := map[string][]turn{}
	before, err := none.turn(ctx, p, binary, w)
	if err != nil {
		return nil, err
	}
	for round := range rounds {
		for i := range w.tools {
			t := w.tools[(i+round)%len(w.tools)]
			fmt.Fprintf(os.Stderr, "%s, round %d of %d: %s\n", w.name, round+1, rounds, t.name)
			got, err := t.turn(ctx, p, binary, w)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.name, err)
			}
			after, err := none.turn(ctx, p, binary, w)
			if err != nil {
				return nil, err
			}
			got.without = (before.kernel + after.kernel) / 2
			turns[t.name] = append(turns[t.name], got)
			before = after
		}
	}
	return turns, nil
}

// turn starts the tool, sends the packets, and ends the tool. A tenth as many go first,
// which are not measured.
func (t tool) turn(ctx context.Context, p *path, binary string, w workload) (_ turn, err error) {
	running, err := t.start(ctx, binary)
	if err != nil {
		return turn{}, err
	}
	defer func() { err = errors.Join(err, running.stop()) }()
	if _, err := p.send(ctx, w.to, w.data, w.packets/10); err != nil {
		return turn{}, err
	}
	before, err := running.cpu()
	if err != nil {
		return turn{}, err
	}
	received := p.received
	sent, err := p.send(ctx, w.to, w.data, w.packets)
	if err != nil {
		return turn{}, err
	}
	after, err := running.cpu()
	if err != nil {
		return turn{}, err
	}
	sent.tool = after - before
	out := turn{cost: sent.each(w.packets), received: p.received - received}
	if err := running.stop(); err != nil {
		return turn{}, err
	}
	out.own = t.losses(running.output())
	return out, nil
}

// spread is the median of some figures, and their extremes.
type spread struct{ median, low, high float64 }

func spreadOf(v []float64) spread {
	v = slices.Sorted(slices.Values(v))
	return spread{v[len(v)/2], v[0], v[len(v)-1]}
}

func (s spread) String() string {
	return fmt.Sprintf("%.0f (%.0f to %.0f)", s.median, s.low, s.high)
}

// print writes a table in Markdown. Tools are compared with the last. What a tool itself
// uses is the mean of all turns: one that reads its counters once a second does so in some
// turns and not in others.
func (w workload) print(turns map[string][]turn, rounds int) error {
	last := w.tools[len(w.tools)-1]
	var base []float64
	added := func(t tool) (kernel, all spread) {
		var own float64
		for _, got := range turns[t.name] {
			own += got.tool / float64(rounds)
		}
		var k, a []float64
		for _, got := range turns[t.name] {
			k = append(k, got.kernel-got.without)
			a = append(a, got.kernel-got.without+own)
			base = append(base, got.without)
		}
		return spreadOf(k), spreadOf(a)
	}
	_, reference := added(last)
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n%s: ns of CPU time for %s; medians of %d rounds of %d packets, and the extremes\n\n", w.name, w.about, rounds, w.packets)
	tw := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprintf(tw, "| tool\t| added in the kernel\t| added in all\t| of what %s adds\t| packets lost on the way\t| lost by the tool\t|\n", last.name)
	fmt.Fprintln(tw, "|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, t := range w.tools {
		kernel, all := added(t)
		worst := slices.MaxFunc(turns[t.name], func(x, y turn) int { return cmp.Compare(x.lost, y.lost) })
		fmt.Fprintf(tw, "| %s\t| %v\t| %v\t| %.2f\t| %s\t| %s\t|\n", t.name, kernel, all, all.median/reference.median, w.missing(turns[t.name]), worst.own)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\nWithout a tool: %v.\n", spreadOf(base))
	_, err := os.Stdout.Write(b.Bytes())
	return err
}

// missing is the largest share of the packets that did not arrive, where they
// were meant to.
func (w workload) missing(turns []turn) string {
	if w.to != server {
		return "–"
	}
	least := math.MaxInt
	for _, t := range turns {
		least = min(least, t.received)
	}
	return fmt.Sprintf("%.2f %%", 100*float64(w.packets-least)/float64(w.packets))
}
