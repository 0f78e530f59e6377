package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/lasthop/lasthop/probe/catalogue"
)

// shipped is where the files are that come with lasthop for Prometheus and Grafana.
const shipped = "../../charts/lasthop/files"

// golden compares a file with what it should be; -update writes it.
func golden(t *testing.T, name string, want []byte) {
	t.Helper()
	file := filepath.Join(shipped, name)
	if *testWrite {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is not what the catalogue says (%v): go test ./cmd/lasthop -run TestCharts -update", file, err)
	}
}

type rule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// TestCharts: every finding of the catalogue has an alert, and every metric a place on the
// dashboard. Prometheus takes the rules.
func TestCharts(t *testing.T) {
	t.Parallel()
	next := "kubectl lasthop check {{ $labels.node }} --last 20m"
	rules := []rule{
		{"LasthopUnexplainedPackets", "rate(lasthop_unexplained_packets_total[5m]) > 0", "10m", map[string]string{"severity": "warning"},
			map[string]string{"summary": "packets are dropped that no finding explains", "command": next}},
		{"LasthopNotReady", "lasthop_ready == 0", "10m", map[string]string{"severity": "warning"},
			map[string]string{"summary": "lasthop does not observe or record this node: /readyz says why"}},
		{"LasthopAbsent", "absent(lasthop_build_info)", "10m", map[string]string{"severity": "warning"},
			map[string]string{"summary": "no lasthop agent is scraped"}},
	}
	var meanings strings.Builder
	for _, p := range catalogue.Pages() {
		severity := string(p.Severity)
		rules = append(rules, rule{"Lasthop" + string(p.Code), `max without (severity) (lasthop_finding_active{code="` + string(p.Code) + `"}) > 0`, "",
			map[string]string{"severity": severity},
			map[string]string{"summary": p.Title, "meaning": "lasthop findings " + string(p.Code), "command": next}})
		meanings.WriteString("- **" + string(p.Code) + "**: " + p.Title + "\n")
	}
	var text bytes.Buffer
	text.WriteString("# Written from the catalogue of findings: go test ./cmd/lasthop -run TestCharts -update\n")
	to := yaml.NewEncoder(&text)
	to.SetIndent(2)
	if err := to.Encode(map[string]any{"groups": []any{map[string]any{"name": "lasthop", "rules": rules}}}); err != nil {
		t.Fatal(err)
	}
	golden(t, "alerts.yaml", text.Bytes())
	if out, err := exec.Command("promtool", "check", "rules", filepath.Join(shipped, "alerts.yaml")).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
	golden(t, "dashboard.json", dashboard(t, meanings.String()))
	source, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	board := string(dashboard(t, ""))
	for _, m := range regexp.MustCompile(`describe\("(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		if !strings.Contains(board, "lasthop_"+m[1]) {
			t.Errorf("lasthop_%s is on no panel", m[1])
		}
	}
	var npd struct{ Conditions []struct{ Reason string } }
	plugin, err := os.ReadFile(filepath.Join(shipped, "npd.json"))
	if err == nil {
		err = json.Unmarshal(plugin, &npd)
	}
	if err != nil || len(npd.Conditions) != 1 {
		t.Errorf("npd.json: %v", err)
	}
}

// dashboard is that for Grafana.
func dashboard(t *testing.T, meanings string) []byte {
	t.Helper()
	var panels []any
	y := 0
	panel := func(kind, title, unit string, height int, more map[string]any, queries ...string) {
		p := map[string]any{
			"id": len(panels) + 1, "type": kind, "title": title, "gridPos": map[string]int{"x": 0, "y": y, "w": 24, "h": height},
			"datasource":  map[string]string{"type": "prometheus", "uid": "${datasource}"},
			"fieldConfig": map[string]any{"defaults": map[string]any{"unit": unit}, "overrides": []any{}},
		}
		var targets []any
		for i, q := range queries {
			expr, legend, _ := strings.Cut(q, " | ")
			targets = append(targets, map[string]any{"refId": string(rune('A' + i)), "expr": expr, "legendFormat": legend})
		}
		p["targets"] = targets
		for k, v := range more {
			p[k] = v
		}
		panels = append(panels, p)
		y += height
	}
	panel("timeseries", "Open findings", "none", 8, nil, `sum by (node, code, severity) (lasthop_finding_active) > 0 | {{node}} {{severity}} {{code}}`)
	panel("timeseries", "Findings that opened, an hour", "none", 6, nil, `sum by (code) (increase(lasthop_findings_total[1h])) > 0 | {{code}}`)
	panel("timeseries", "Packets lost, by finding", "pps", 8, nil, `sum by (code) (rate(lasthop_lost_packets_total[5m])) > 0 | {{code}}`)
	panel("timeseries", "Packets dropped, by reason and cause", "pps", 8, nil, `sum by (reason, cause) (rate(lasthop_drops_total{cause!="expected"}[5m])) > 0 | {{reason}}: {{cause}}`,
		`sum(rate(lasthop_unexplained_packets_total[5m])) | unexplained`)
	panel("timeseries", "Agents", "none", 6, nil, `min by (node) (lasthop_ready) | {{node}} ready`, `max by (node) (lasthop_ring_failing) | {{node}} cannot record`,
		`time() - max by (node) (lasthop_last_reading_timestamp_seconds) | {{node}} age of the reading`,
		`count by (source) (lasthop_source_complete == 0) | nodes without {{source}}`, `count by (version) (lasthop_build_info) | {{version}}`)
	panel("timeseries", "What lasthop did not count or record", "none", 6, nil, `sum by (what) (increase(lasthop_own_losses_total[5m])) | {{what}}`,
		`sum(increase(lasthop_ring_missed_readings_total[5m])) | readings`)
	panel("timeseries", "Cost", "percentunit", 6, nil, `rate(process_cpu_seconds_total{job=~".*lasthop.*"}[5m]) | {{node}} of a core`)
	panel("timeseries", "Memory and disk", "bytes", 6, nil, `process_resident_memory_bytes{job=~".*lasthop.*"} | {{node}} memory`, `lasthop_ring_bytes | {{node}} disk`)
	panel("timeseries", "Recorded time", "s", 6, nil, `lasthop_ring_seconds | {{node}}`)
	panel("text", "What the findings mean", "none", 12, map[string]any{"options": map[string]string{"mode": "markdown", "content": meanings}})
	text, err := json.MarshalIndent(map[string]any{
		"title": "lasthop", "uid": "lasthop", "schemaVersion": 39, "tags": []string{"network"}, "panels": panels,
		"time": map[string]string{"from": "now-6h", "to": "now"}, "refresh": "1m",
		"templating": map[string]any{"list": []any{map[string]string{"name": "datasource", "type": "datasource", "query": "prometheus"}}},
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return append(text, '\n')
}
