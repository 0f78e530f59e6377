package flags

import (
	"strings"
	"testing"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

func TestWindow(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10s": 10 * time.Second, "1h30m": 90 * time.Minute, "24h": 24 * time.Hour, "1ms": time.Millisecond,
		"": 0, "10": 0, "0s": 0, "-1s": 0, "25h": 0, "9223372036s": 0, "1e9h": 0,
	} {
		var w Window
		err := w.Set(text)
		if (err == nil) != (want > 0) || time.Duration(w) != want {
			t.Errorf("--for %q: got %v, %v; want %v", text, time.Duration(w), err, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"256MiB": 256 << 20, "1GiB": 1 << 30, "12KiB": 12 << 10, "100B": 100,
		"": 0, "256": 0, "0MiB": 0, "-1MiB": 0, "1.5GiB": 0, "256MB": 0, "MiB": 0,
	} {
		var b Bytes
		if err := b.Set(text); (err == nil) != (want > 0) || b != want || err == nil && b.String() != text {
			t.Errorf("--space %q: %v, %v", text, b.String(), err)
		}
	}
}

func TestTime(t *testing.T) {
	now := time.Date(2026, 3, 2, 3, 15, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"03:12": time.Date(2026, 3, 2, 3, 12, 0, 0, time.Local), "03:20": time.Date(2026, 3, 1, 3, 20, 0, 0, time.Local),
		"03:14:59": time.Date(2026, 3, 2, 3, 14, 59, 0, time.Local), "2026-03-01 23:00": time.Date(2026, 3, 1, 23, 0, 0, 0, time.Local),
		"2026-03-01T23:00:00Z": time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC),
		"":                     {}, "3:12pm": {}, "yesterday": {}, "25:00": {},
	} {
		var at Time
		if err := at.Set(text); (err == nil) == want.IsZero() || err == nil && !at.Before(now).Equal(want) {
			t.Errorf("--at %q: %v, %v", text, at.Before(now), err)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for text, ok := range map[string]bool{
		"10.244.0.0/16": true, "fd00:10::/56": true, "0.0.0.0/0": true,
		"10.244.0.1/16": false, "10.244.0.0": false, "10.244.0.0/33": false, "": false,
	} {
		var p Prefixes
		if err := p.Set(text); (err == nil) != ok {
			t.Errorf("--pod-cidr %q: %v", text, err)
		}
	}
}

func TestFindPage(t *testing.T) {
	for code, want := range map[string]model.Code{
		"MissingUDR": "MissingUDR", "missingudr": "MissingUDR", "STALEARPREPLY": "StaleARPReply",
	} {
		if p, err := FindPage(code); err != nil || p.Code != want {
			t.Errorf("FindPage(%q) = %q, %v; want %q", code, p.Code, err, want)
		}
	}
	for code, hint := range map[string]string{
		"MissingURD": "did you mean MissingUDR?", "StaleMacRewrit": "did you mean StaleMACRewrite?",
		"": "lists them", "Nonsense": "lists them",
	} {
		if _, err := FindPage(code); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("FindPage(%q): %v, want %q", code, err, hint)
		}
	}
}
