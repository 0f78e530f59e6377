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
