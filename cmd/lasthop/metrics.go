package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lasthop/lasthop/probe/diagnose"
	"github.com/lasthop/lasthop/probe/fault/silence"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// sums are what the agent counted since it started, over all of its observations.
type sums struct {
	opened, lost map[model.Code]uint64
	drops        map[dropKind]uint64
	unexplained  uint64
	// own is what lasthop itself did not count.
	own map[string]uint64

	// began is when the observation began of which id is the last finding that opened.
	began time.Time
	id    int
}

// dropKind is what a count of drops is by. Both are words of the kernel's or of the catalogue.
type dropKind struct{ reason, cause string }

// mostDropKinds bounds the series of drops; what is beyond is of the reason "other".
const mostDropKinds = 48

// count adds what was counted up to a reading.
func (t *sums) count(r model.Reading) {
	if t.opened == nil {
		t.opened, t.lost, t.drops = map[model.Code]uint64{}, map[model.Code]uint64{}, map[dropKind]uint64{}
		t.own = map[string]uint64{}
	}
	if began := r.Point.Snapshot.Window.Start; !t.began.Equal(began) {
		t.began, t.id = began, 0
	}
	id := t.id
	for _, f := range r.Findings {
		if f.ID > t.id {
			t.opened[f.Code]++
			id = max(id, f.ID)
		}
	}
	t.id = id
	v := r.Since
	if !r.Point.Whole || v.On == nil {
		return
	}
	for what, n := range ownLosses(v.On.Traffic.Lost) {
		t.own[what] += n
	}
	dropped, lost := map[model.Code]uint64{}, map[model.Code]uint64{}
	for i, d := range v.On.Traffic.Drops {
		dropped[v.Causes[i].Code] += d.Packets
		t.addDrop(d, v.Causes[i])
	}
	for _, f := range v.Findings {
		lost[f.Code] += f.Packets
	}
	for _, k := range diagnose.Kinds() {
		t.lost[k.Code] += max(lost[k.Code], dropped[k.Code])
	}
}

func (t *sums) addDrop(d model.Drop, why model.DropCause) {
	kind := dropKind{string(d.Reason), string(why.Code)}
	if d.Is(model.Unspecified) {
		kind.reason = "NOT_SPECIFIED"
	}
	switch {
	case why.Expected():
		kind.cause = "expected"
	case why.Code == "", why.Code == silence.UnexplainedDrop.Code:
		kind.cause = cmp.Or(kind.cause, "none")
		t.unexplained += d.Packets
	}
	if _, known := t.drops[kind]; !known && len(t.drops) >= mostDropKinds-1 {
		kind = dropKind{"other", "other"}
	}
	t.drops[kind] += d.Packets
}

// ownLosses are by the label of their metric.
func ownLosses(l model.Lost) map[string]uint64 {
	return map[string]uint64{
		"events": l.Events, "counters": l.Counters, "macs": l.MACs, "others": l.Others, "unparsed": l.Unparsed, "gaps": l.Gaps,
	}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lasthop_"+name, help, labels, nil)
}

// The metrics. No label has a name or an address.
var (
	metricBuild       = describe("build_info", "The version of lasthop; always 1.", "version", "goversion")
	metricReady       = describe("ready", "1 while the node is observed and recorded, 0 otherwise; /readyz has the reason.")
	metricReading     = describe("last_reading_timestamp_seconds", "Time of the latest reading.")
	metricSource      = describe("source_complete", "1 for each source that was read completely, 0 for others.", "source")
	metricActive      = describe("finding_active", "Number of open findings, by code.", "code", "severity")
	metricFindings    = describe("findings_total", "Findings that opened, by code.", "code")
	metricLost        = describe("lost_packets_total", "Packets lost by the cause of findings, by code.", "code")
	metricDrops       = describe("drops_total", "Packets that the kernel dropped, by reason and cause: a finding's code, expected for ordinary drops, or none.", "reason", "cause")
	metricUnexplained = describe("unexplained_packets_total", "Dropped packets that no finding explains.")
	metricOwn         = describe("own_losses_total", "What lasthop itself missed.", "what")
	metricRingBytes   = describe("ring_bytes", "The size of the agent's recordings.")
	metricRingSpan    = describe("ring_seconds", "Recorded time in the agent's recordings.")
	metricRingFailing = describe("ring_failing", "1 while the latest readings cannot be read back from the agent's recordings.")
	metricRingMissed  = describe("ring_missed_readings_total", "Readings that were not recorded.")
)

// Describe is part of prometheus.Collector.
func (g *agent) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, out) }

// Collect is part of prometheus.Collector.
func (g *agent) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	counter := func(d *prometheus.Desc, value uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(metricBuild, 1, version(), runtime.Version())
	gauge(metricReady, truth(g.unready(time.Now()) == ""))
	if !g.at.IsZero() {
		gauge(metricReading, float64(g.at.UnixMilli())/1000)
	}
	for _, s := range g.sources {
		gauge(metricSource, truth(s.Status == model.OK), s.Name)
	}
	type kind struct {
		code     model.Code
		severity model.Severity
	}
	active := map[kind]int{}
	for _, k := range diagnose.Kinds() {
		active[kind{k.Code, k.Severity}] = 0
		counter(metricFindings, g.opened[k.Code], string(k.Code))
		counter(metricLost, g.lost[k.Code], string(k.Code))
	}
	for _, f := range g.findings {
		active[kind{f.Code, f.Severity}]++
	}
	for k, n := range active {
		gauge(metricActive, float64(n), string(k.code), string(k.severity))
	}
	for k, n := range g.drops {
		counter(metricDrops, n, k.reason, k.cause)
	}
	counter(metricUnexplained, g.unexplained)
	for what := range ownLosses(model.Lost{}) {
		counter(metricOwn, g.own[what], what)
	}
	gauge(metricRingBytes, float64(g.size))
	gauge(metricRingSpan, g.span.Seconds())
	gauge(metricRingFailing, truth(g.unrecorded() != ""))
	counter(metricRingMissed, g.missed)
}

func truth(b bool) float64 { return model.Either[float64](b, 1, 0) }

// serve serves metrics and health at an address, until stop is called. It serves nothing where the address is empty.
func (g *agent) serve(address string) (stop func() error, err error) {
	if address == "" {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &statusError{exitCannot, fmt.Sprintf("serve metrics: %v", err)}
	}
	g.say("serving /metrics, /healthz and /readyz at %s", listener.Addr())
	registry := prometheus.NewRegistry()
	registry.MustRegister(g, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4}))
	serve := func(path string, why func(*health) string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			text := ""
			g.update(func(h *health) { text = why(h) })
			answer(w, text)
		})
	}
	serve("/readyz", func(h *health) string { return h.unready(time.Now()) })
	serve("/healthz", func(h *health) string { return model.Either(h.stuck(time.Now()), h.unready(time.Now()), "") })
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	return func() error {
		err := server.Close()
		if served := <-done; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}, nil
}

// answer says that all is well, or why not.
func answer(w http.ResponseWriter, why string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if why == "" {
		why = "ok"
	} else {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, report.Clean(why)+"\n") // who asked has gone away
}
