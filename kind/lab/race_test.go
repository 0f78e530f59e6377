package lab

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// insertFailed is what the kernel counted of entries that it refused, on all
// CPUs.
func insertFailed(t *testing.T, l *Lab, node string) uint64 {
	t.Helper()
	sp, err := l.open(node)
	if err != nil {
		t.Fatal(err)
	}
	defer sp.close()
	var data []byte
	err = sp.ns.Do(func() (err error) {
		data, err = os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	column := slices.Index(strings.Fields(lines[0]), "insert_failed")
	if column < 0 {
		t.Fatalf("no insert_failed in %q", lines[0])
	}
	var sum uint64
	for _, line := range lines[1:] {
		n, err := strconv.ParseUint(strings.Fields(line)[column], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// TestConntrackRace: the kernel refuses the second datagram of each pair, and
// nothing else; the first is answered. Undone, nothing is refused any more.
func TestConntrackRace(t *testing.T) {
	t.Parallel()
	s := parse(t, `
name: race
topology: {plugin: azure-overlay, nodes: [{name: a, pods: [p, q]}, {name: b, pods: [r]}]}
traffic:
  - {from: a/p, to: 10.0.0.9, proto: udp, port: 53, rate: 10}
  - {from: [a/q, b/r], to: [a/q, a/p], proto: udp, port: 53, rate: 10}
faults: [{type: conntrack-race, node: a, prefix: 10.0.0.8/31, via: a/q}]
`)
	l := up(t, s, "race")
	trial(t, l, 4, 0, alive)
	refused := insertFailed(t, l, "a")
	if refused == 0 {
		t.Error("no entry was refused")
	}
	if other := insertFailed(t, l, "b"); other != 0 {
		t.Errorf("%d entries refused on the other node", other)
	}
	if err := l.Undo(t.Context(), s.Faults[0]); err != nil {
		t.Fatal(err)
	}
	trial(t, l, 2, 0, func(f FlowStats) bool { return f.To.Place == "" })
	if again := insertFailed(t, l, "a"); again != refused {
		t.Errorf("%d more entries refused without the rules", again-refused)
	}
}

func FuzzPacketID(f *testing.F) {
	f.Add([]byte{2, 0, 0, 53, 11, 0, 1, 0, 0, 0, 0, 7, 8, 0, 2, 0})
	f.Add([]byte{2, 0, 0, 53, 6, 0, 1, 0, 0, 7})
	f.Add([]byte{2, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		if id, err := packetID(m); err == nil && !bytes.Contains(m, id[:]) {
			t.Errorf("id %x from %x", id, m)
		}
	})
}
