package timeline

import (
	"testing"
	"time"
)

// run reads the state for long, which takes cost each time, beside other work that takes
// 1/beside of the time. It returns how much of the time both took, and the longest pause.
func (p *Pace) run(cost, long time.Duration, beside int, changing bool) (share float64, longest time.Duration) {
	var now, used time.Duration
	passed, spent := time.Duration(0), cost
	for now < long {
		pause, _ := p.next(passed, spent, changing)
		passed, spent = pause, cost+pause/time.Duration(beside)
		now, used, longest = now+passed, used+spent, max(longest, pause)
	}
	return float64(used) / float64(now), longest
}

// TestPace reads a state that takes long: at first each second where something changes,
// but over time never beyond the share, until the state would become too old.
func TestPace(t *testing.T) {
	const cost, beside = 100 * time.Millisecond, 100
	var p Pace
	for i := range 4 {
		if pause, _ := p.next(Every, cost, true); pause != Every {
			t.Errorf("a change: pause %d is %v, want %v", i, pause, Every)
		}
	}
	for _, changing := range []bool{true, false} {
		for range 3 {
			share, longest := p.run(cost, time.Hour, beside, changing)
			if share > 1.01/stateShare || longest >= stateLatest {
				t.Errorf("changing %v: it took %.4f of a CPU, and %v between two reads", changing, share, longest)
			}
		}
	}
	if share, longest := new(Pace).run(cost, time.Hour, beside, true); share > 1.01/stateShare || longest >= stateLatest {
		t.Errorf("changes from the start: it took %.4f of a CPU, and %v between two reads", share, longest)
	}
	if _, longest := new(Pace).run(2*time.Second, time.Hour, beside, true); longest != stateLatest {
		t.Errorf("a state that takes 2 s is %v old", longest)
	}
	if _, longest := new(Pace).run(time.Millisecond, time.Hour, 1000, false); longest != Every {
		t.Errorf("a small state is %v old", longest)
	}
}

// TestPaceRarely: a stream that is to take little reads a small state every ten seconds, and
// follows a change at once.
func TestPaceRarely(t *testing.T) {
	p := Pace{Rarely: true}
	if _, longest := p.run(time.Millisecond, time.Hour, 1000, false); longest != rareEarliest {
		t.Errorf("at rest: %v", longest)
	}
	for i := range 3 {
		if pause, _ := p.next(rareEarliest, 50*time.Millisecond, true); pause != Every {
			t.Errorf("a change: pause %d is %v", i, pause)
		}
	}
	// So it does where the first reads, or all of them, take much.
	for _, cost := range []time.Duration{200 * time.Millisecond, 400 * time.Millisecond} {
		p = Pace{Rarely: true}
		if pause, _ := p.next(Every, cost, false); pause != rareEarliest {
			t.Errorf("after the start: %v", pause)
		}
		if pause, _ := p.next(15*time.Second, cost, true); pause != Every {
			t.Errorf("a change soon after the start, by reads that take %v: %v", cost, pause)
		}
	}
	share, longest := p.run(100*time.Millisecond, 2*time.Hour, 500, true)
	if share > 1.01/rareShare || longest >= rareLatest {
		t.Errorf("it took %.4f of a CPU, and %v between two reads", share, longest)
	}
}
