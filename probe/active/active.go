// Package active sends a few ICMP echo and ARP requests and reads the replies.
//
// It sends whole frames through packet sockets, with addresses of the node and the MAC of the egress link. On egress
// these bypass the node's firewall, connection tracking and neighbour table and leave no state there. The kernel also
// processes ARP replies and may update an existing neighbour entry. The plan must ask only for addresses for which this
// is harmless.
package active

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

const (
	// Most bounds the probes of a plan.
	Most = 16
	// patience is how long to wait for replies after the first packet of the last probe.
	patience = time.Second
	// again is when unanswered probes are sent once more: one lost packet is no silence.
	again = 400 * time.Millisecond
	// pace is the interval between two packets.
	pace = 5 * time.Millisecond
)

// Send sends the probes from a network namespace and waits a little more than a second for replies. It returns the
// probes that were sent; the error names the others. Without CAP_NET_RAW it is a *model.UnsupportedError. If ctx ends
// first, it is ctx's.
func Send(ctx context.Context, ns *netns.NS, plan []model.Probe) ([]model.Probe, error) {
	if len(plan) > Most {
		return nil, fmt.Errorf("send probes: want at most %d, got %d", Most, len(plan))
	}
	r := &run{id: uint16(rand.Uint32()), sockets: map[port]*os.File{}}
	var errs []error
	for i := range plan {
		if at := portOf(&plan[i]); r.sockets[at] == nil {
			s, err := open(ns, at, r.id)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", plan[i].Link, err))
				continue
			}
			r.sockets[at] = s
		}
		r.questions = append(r.questions, question{Probe: plan[i]})
	}
	r.ask(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var sent []model.Probe
	for q := range model.Each(r.questions) {
		if q.Sent > 0 && (q.Answered || r.failed[portOf(&q.Probe)] == nil) {
			sent = append(sent, q.Probe)
			continue
		}
		errs = append(errs, fmt.Errorf("%s: probe %s: %w", q.Link, q.To, cmp.Or(q.err, r.failed[portOf(&q.Probe)], errNotSent)))
	}
	return sent, errors.Join(errs...)
}

var errNotSent = errors.New("not sent")

// port is a link and a kind of request. Each has a socket of its own.
type port struct {
	ifindex int
	kind    model.ProbeKind
	isIPv6  bool
}

func portOf(p *model.Probe) port { return port{p.IfIndex, p.Kind, p.To.Is6()} }

type question struct {
	model.Probe
	// at are the times of its packets.
	at  []time.Time
	err error
}

type run struct {
	// id is the ICMP identifier of this run's echo requests.
	id        uint16
	sockets   map[port]*os.File
	questions []question
	failed    map[port]error
}

// heard is a reply and when it was read, or the error of reading.
type heard struct {
	reply
	port port
	at   time.Time
	err  error
}

// ask sends the probes and reads replies until no more are expected or time is up. It closes the sockets.
func (r *run) ask(ctx context.Context) {
	r.failed = map[port]error{}
	replies := make(chan heard, Most)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for at, s := range r.sockets {
		readers.Go(func() { read(s, at, replies, done) })
	}
	defer func() {
		close(done)
		for _, s := range r.sockets {
			s.Close() // makes a pending read return
		}
		readers.Wait()
	}()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	// due are the indexes of the questions to send next.
	var due []int
	for i := range r.questions {
		due = append(due, i)
	}
	// They run from when all are sent, however long that took.
	var end, second <-chan time.Time
	for !r.settled() {
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-second:
			for i := range r.questions {
				if !r.questions[i].Answered && !slices.Contains(due, i) {
					due = append(due, i)
				}
			}
		case h := <-replies:
			r.hear(h)
		case <-ticker.C:
			if len(due) > 0 {
				r.send(due[0])
				due = due[1:]
			}
			if len(due) == 0 && end == nil {
				end, second = time.After(patience), time.After(again)
			}
		}
	}
}

func (r *run) send(i int) {
	q := &r.questions[i]
	// Each packet has a number of its own, to match replies to packets.
	seq := uint16(len(q.at)*len(r.questions) + i)
	frame, err := craft(&q.Probe, r.id, seq)
	if err == nil {
		now := time.Now()
		if _, err = r.sockets[portOf(&q.Probe)].Write(frame); err == nil {
			q.at = append(q.at, now)
			q.Sent++
		} else {
			err = fmt.Errorf("send: %w", err)
		}
	}
	q.err = err
}

func (r *run) hear(h heard) {
	if h.err != nil {
		r.failed[h.port] = h.err
		return
	}
	for i := range r.questions {
		q := &r.questions[i]
		if q.IfIndex != h.port.ifindex || !h.answers(&q.Probe) || len(q.at) == 0 {
			continue
		}
		asked := q.at[0]
		if q.Kind == model.ProbeEcho {
			n := int(h.seq) / len(r.questions)
			if h.id != r.id || int(h.seq)%len(r.questions) != i || n >= len(q.at) {
				continue
			}
			asked = q.at[n]
		}
		if !q.Answered {
			q.Answered, q.RTT = true, h.at.Sub(asked)
		}
		if !h.mac.IsZero() && !slices.Contains(q.MACs, h.mac) && len(q.MACs) < Most {
			q.MACs = append(q.MACs, h.mac)
		}
	}
}

// settled reports whether no reply is expected any more. Several hosts may reply
// to an ARP request, so it always waits for those.
func (r *run) settled() bool {
	return !slices.ContainsFunc(r.questions, func(q question) bool {
		return r.failed[portOf(&q.Probe)] == nil && (!q.Answered || q.Kind == model.ProbeARP)
	})
}
