package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/kind/scenario"
	"github.com/lasthop/lasthop/probe/ring"
	"github.com/lasthop/lasthop/probe/timeline"
)

// running is an agent that runs, or another process of a test.
type running struct {
	*exec.Cmd
	lines chan string
}

// startProcess starts a process that tells on its standard error what it does.
func startProcess(t *testing.T, tool string, args ...string) *running {
	t.Helper()
	cmd := exec.Command(tool, args...)
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &running{cmd, make(chan string, 1000)}
	go func() {
		defer close(r.lines)
		for in := bufio.NewScanner(errs); in.Scan(); {
			r.lines <- in.Text()
		}
	}()
	t.Cleanup(func() { r.end(os.Kill) })
	return r
}

// says waits until the process says something, and gives the rest of that line.
func (r *running) says(t *testing.T, what string) string {
	t.Helper()
	var before []string
	for line := range r.lines {
		if _, rest, found := strings.Cut(line, what); found {
			return rest
		}
		before = append(before, line)
	}
	t.Fatalf("it ended without %q: %q", what, before)
	return ""
}

// end ends the process, if it has not ended, and waits for that.
func (r *running) end(by os.Signal) int {
	_ = r.Process.Signal(by)
	for range r.lines {
	}
	_ = r.Wait()
	return r.ProcessState.ExitCode()
}

func get(t *testing.T, url string) (status int, text string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// alert is what Prometheus sends to an Alertmanager.
type alert struct {
	Labels map[string]string
	EndsAt time.Time
}

// alertmanager serves what Prometheus sends alerts to.
func alertmanager(t *testing.T) (address string, alerts <-chan alert) {
	t.Helper()
	out := make(chan alert, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list []alert
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		for _, a := range list {
			out <- a
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), out
}

// startPrometheus runs the real one, which scrapes an agent once a second.
func startPrometheus(t *testing.T, agent, alerts string) {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs("../../charts/lasthop/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [%q],
		"scrape_configs": [{"job_name": "lasthop", "static_configs": [{"targets": [%q]}]}],
		"alerting": {"alertmanagers": [{"static_configs": [{"targets": [%q]}]}]}}`, rules, agent, alerts)
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	p.says(t, "Server is ready")
	go func() {
		for range p.lines { // nobody waits for it to be read
		}
	}()
}

// TestAgent: a fault that came and went is told afterwards by what the agent kept, with its
// time and its end; Prometheus fires and resolves an alert for it; and a killed agent loses
// nothing of that.
func TestAgent(t *testing.T) {
	t.Parallel()
	l := upLab(t, "healthy-kubenet")
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	node, dir := l.Nodes()[0], filepath.Join(t.TempDir(), "ring")
	args := []string{"agent", "--netns", node.Netns, "--dir", dir, "--listen", "127.0.0.1:0"}
	lasthop := func(want int, args ...string) string {
		t.Helper()
		cmd := exec.Command("lasthop", append(args, "--dir", dir)...)
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("lasthop %v: status %d, want %d: %v: %s", args, code, want, err, out)
		}
		return string(out)
	}
	lasthop(exitCannot, "check", "--last", "1m")
	lasthop(npdUnknown, "npd")
	a := startProcess(t, "lasthop", args...)
	address := strings.TrimSpace(a.says(t, "/readyz at "))
	a.says(t, "observing")
	hook, alerts := alertmanager(t)
	startPrometheus(t, address, hook)
	if out, err := exec.Command("lasthop", args...).CombinedOutput(); !strings.Contains(string(out), "another agent") {
		t.Errorf("a second agent: %v: %s", err, out)
	}

	fault := scenario.Fault{Type: scenario.DropForward, Node: node.Name, Pod: node.Name + "/" + l.Scenario().Topology.Nodes[0].Pods[0].Name}
	if err := l.Inject(t.Context(), fault); err != nil {
		t.Fatal(err)
	}
	await(t, alerts, false)
	if line := lasthop(npdProblem, "npd"); !strings.HasPrefix(line, "PolicyDrop: ") {
		t.Errorf("npd: %s", line)
	}
	_, text := get(t, "http://"+address+"/metrics")
	wantMetrics(t, text)
	if err := l.Undo(t.Context(), fault); err != nil {
		t.Fatal(err)
	}
	await(t, alerts, true)
	lasthop(npdOK, "npd")
	if status, text := get(t, "http://"+address+"/readyz"); status != http.StatusOK {
		t.Errorf("not ready: %s", text)
	}
	wantClosed(t, lasthop(exitFindings, "check", "--last", "5m", "-o", "json"))

	a.end(os.Kill)
	lasthop(npdUnknown, "npd")
	wantClosed(t, lasthop(exitFindings, "check", "--last", "5m", "-o", "json"))
	a = startProcess(t, "lasthop", args...)
	a.says(t, "observing")
	wantClosed(t, lasthop(exitFindings, "check", "--last", "5m", "-o", "json"))
	if status := a.end(unix.SIGTERM); status != exitInterrupted {
		t.Errorf("status %d", status)
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.rec"))
	if err != nil || len(segments) < 2 {
		t.Fatalf("%v, %v", segments, err)
	}
	wantClosed(t, lasthop(exitFindings, "check", "--at", time.Now().Add(-5*time.Minute).Format("15:04:05"), "-o", "json"))
	for _, file := range segments {
		if out, err := exec.Command("lasthop", "check", "--replay", file, "--fail-on", "critical").CombinedOutput(); err != nil {
			t.Errorf("a segment: %v: %s", err, out)
		}
	}
	recording := filepath.Join(t.TempDir(), "a.rec")
	lasthop(exitClean, "record", recording, "--last", "5m")
	if out, err := exec.Command("lasthop", "replay", recording, "--fail-on", "critical").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// await waits for the alert of a finding that fires, or is resolved.
func await(t *testing.T, alerts <-chan alert, resolved bool) {
	t.Helper()
	for a := range alerts {
		if a.Labels["code"] == "PolicyDrop" && a.EndsAt.Before(time.Now()) == resolved {
			return
		}
		if a.Labels["severity"] == "critical" {
			t.Errorf("%v", a)
		}
	}
}

// wantMetrics wants metrics that promtool has nothing to say against, of few series, with no
// address in them, and the fault's counts.
func wantMetrics(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v: %s", err, out)
	}
	series := 0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	if series > 300 || strings.Contains(text, "10.244.") {
		t.Errorf("%d series:\n%s", series, text)
	}
	for _, want := range []string{
		`lasthop_finding_active{code="PolicyDrop",severity="warning"} 1`, `lasthop_findings_total{code="PolicyDrop"} 1`,
		`lasthop_finding_active{code="MissingUDR",severity="critical"} 0`, `lasthop_ready 1`,
		`lasthop_drops_total{cause="PolicyDrop",reason="NETFILTER_DROP"}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in:\n%s", want, text)
		}
	}
}

// wantClosed wants a report with one finding, which opened and closed.
func wantClosed(t *testing.T, text string) {
	t.Helper()
	var doc struct {
		Findings []struct {
			Code           string
			Opened, Closed time.Time
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if f := doc.Findings; len(f) != 1 || f[0].Code != "PolicyDrop" || f[0].Opened.IsZero() || f[0].Closed.Before(f[0].Opened) {
		t.Errorf("findings %+v", f)
	}
}

// TestAgentBrief: a row of the route table is missing, long after the agent read a state, until it opens a finding. It
// counts that, closes it, and tells it afterwards. How short a fault it sees is held by fixtures with times.
func TestAgentBrief(t *testing.T) {
	t.Parallel()
	l := upLab(t, "healthy-kubenet")
	stop, err := startTraffic(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stop() })
	dir := filepath.Join(t.TempDir(), "ring")
	a := startProcess(t, unspentName, "agent", "--netns", l.Nodes()[0].Netns, "--dir", dir, "--listen", "127.0.0.1:0")
	address := "http://" + strings.TrimSpace(a.says(t, "/readyz at ")) + "/metrics"
	a.says(t, "observing")
	metric := func(name string) (v float64) {
		_, text := get(t, address)
		for line := range strings.Lines(text) {
			if rest, found := strings.CutPrefix(line, name+" "); found {
				if v, err = strconv.ParseFloat(strings.TrimSpace(rest), 64); err != nil {
					t.Fatal(err)
				}
			}
		}
		return v
	}
	// Each second the agent has another reading.
	until := func(what string, done func() bool) {
		t.Helper()
		for latest := time.Now().Add(2 * time.Minute); !done(); {
			if time.Now().After(latest) {
				_, text := get(t, address)
				t.Fatalf("not %s:\n%s", what, text)
			}
			time.Sleep(timeline.Every)
		}
	}
	const opened, active = `lasthop_findings_total{code="MissingUDR"}`, `lasthop_finding_active{code="MissingUDR",severity="critical"}`
	quiet := time.Now().Add(30 * time.Second)
	until("quiet", func() bool { return metric("lasthop_last_reading_timestamp_seconds") > float64(quiet.Unix()) })
	row := scenario.Fault{Type: scenario.DeleteUDR, Prefix: l.Scenario().Topology.Nodes[1].PodCIDR}
	began := time.Now()
	if err := l.Inject(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	until("opened", func() bool { return metric(opened) == 1 })
	lasted := time.Since(began)
	if err := l.Undo(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	until("closed", func() bool { return metric(active) == 0 })
	for _, window := range [][]string{
		{"--last", time.Since(began).Round(time.Second).String()}, {"--at", began.Format("15:04:05"), "--for", (lasted + 5*time.Second).Round(time.Second).String()},
	} {
		out, err := exec.Command("lasthop", append([]string{"check", "-o", "json", "--dir", dir}, window...)...).Output()
		if !strings.Contains(string(out), `"MissingUDR"`) {
			t.Errorf("after %v: check %v: %v: %s", lasted, window, err, out)
		}
	}
}

// unspentName is the command that is lasthop as if it took no CPU time: how often its agent reads the state is not
// decided by how busy the machine is.
const unspentName = "lasthop-unspent"

func init() {
	commands[unspentName] = func() {
		ctx, stop := interruptible()
		defer stop()
		a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, used: func() time.Duration { return 0 }}
		os.Exit(a.execute(ctx, os.Args[1:]))
	}
}

// TestAgentDisk: an agent whose disk is full, or whose directory was removed, goes on, says so, and records again
// once it can.
func TestAgentDisk(t *testing.T) {
	t.Parallel()
	l := upLab(t, "healthy-kubenet")
	dir := tmpfs(t, "2m")
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, make([]byte, 2<<20-4096), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startProcess(t, "lasthop", "agent", "--netns", l.Nodes()[0].Netns, "--dir", filepath.Join(dir, "ring"), "--listen", "127.0.0.1:0")
	address := strings.TrimSpace(a.says(t, "/readyz at "))
	a.says(t, "no space left on device")
	if status, text := get(t, "http://"+address+"/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(text, "no space left") {
		t.Errorf("%d: %s", status, text)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	a.says(t, "the ring is written again")
	if err := os.RemoveAll(filepath.Join(dir, "ring")); err != nil {
		t.Fatal(err)
	}
	a.says(t, "no such file or directory")
	a.says(t, "the ring is written again")
	if _, err := ring.Latest(filepath.Join(dir, "ring")); err != nil {
		t.Error(err)
	}
	if status := a.end(unix.SIGTERM); status != exitInterrupted {
		t.Errorf("status %d", status)
	}
}
