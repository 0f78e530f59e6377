package ebtables

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// reply is a table as the kernel gave it.
func reply(t testing.TB, table string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "legacy", table))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestLegacyAsPrinted wants of each table what ebtables-legacy printed of it: rules,
// counters, and the policies of chains.
func TestLegacyAsPrinted(t *testing.T) {
	for _, table := range tableNames {
		t.Run(table, func(t *testing.T) {
			got, err := decode(reply(t, table))
			if err != nil {
				t.Fatal(err)
			}
			var have []string
			for _, c := range got.Chains {
				have = append(have, fmt.Sprintf("%s policy %s", c.Name, c.Policy))
				for _, r := range got.Rules {
					if r.Chain == c.Name {
						have = append(have, fmt.Sprintf("%s %s, pcnt = %d -- bcnt = %d", c.Name, r.Text, r.Counter.Packets, r.Counter.Bytes))
					}
				}
			}
			want := listed(string(reply(t, table+".txt")))
			if !slices.Equal(have, want) {
				t.Errorf("\n got %s\nwant %s", strings.Join(have, "\n     "), strings.Join(want, "\n     "))
			}
		})
	}
}

var chainHead = regexp.MustCompile(`^Bridge chain: (\S+), entries: \d+, policy: (\S+)`)

// unprinted replaces what this package prints otherwise: a default that
// ebtables-legacy leaves out, and matches that have no decoder.
var unprinted = strings.NewReplacer(
	"-j redirect,", "-j redirect --redirect-target ACCEPT,",
	"--among-dst 02:00:00:00:00:01=10.0.0.1,02:00:00:00:00:02,", "among [options not decoded]",
	"--nflog-group 3", "nflog [options not decoded]",
	"--stp-type config --stp-root-prio 1:2 --stp-root-cost 7:9 --stp-hello-time 3", "stp [options not decoded]",
	"--802_3-sap 0x42", "802_3 [options not decoded]",
)

// listed are the chains and rules in the output of ebtables-legacy -L --Lc --Lmac2.
func listed(out string) []string {
	var list []string
	chain := ""
	for line := range strings.Lines(out) {
		line = strings.ReplaceAll(plain(strings.TrimSpace(line)), " , pcnt", ", pcnt")
		if m := chainHead.FindStringSubmatch(line); m != nil {
			chain = m[1]
			list = append(list, chain+" policy "+strings.ReplaceAll(m[2], "RETURN", ""))
		} else if strings.HasPrefix(line, "-") {
			list = append(list, chain+" "+unprinted.Replace(line))
		}
	}
	return list
}

// TestLegacyBadReplies wants an error for each reply that is cut short, and for each
// with a size that cannot be.
func TestLegacyBadReplies(t *testing.T) {
	whole := reply(t, "nat")
	for n := range whole {
		if _, err := decode(whole[:n]); err == nil {
			t.Fatalf("no error for %d of %d bytes", n, len(whole))
		}
	}
	size := int(binary.NativeEndian.Uint32(whole[sizeAt:]))
	first := replaceLen + chainLen
	for _, tt := range []struct {
		name  string
		at    int
		value uint32
	}{
		{"more rules than counters", rulesAt, 1 << 20},
		{"entries of no size", sizeAt, 0},
		{"entries beyond the reply", sizeAt, 0xffffffff},
		{"a rule before the first chain", replaceLen, 1},
		{"a rule without end", first + nextAt, 0},
		{"a rule beyond the table", first + nextAt, uint32(size)},
		{"a rule of 4 GiB", first + nextAt, 0xffffffff},
		{"watchers in the rule's head", first + watchersAt, 8},
		{"a target before the watchers", first + targetAt, ruleLen - 1},
		{"a target beyond the rule", first + targetAt, 0xfffffff0},
		{"an extension of 4 GiB", first + ruleLen + extensionSizeAt, 0xffffffff},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := slices.Clone(whole)
			binary.NativeEndian.PutUint32(bad[tt.at:], tt.value)
			if got, err := decode(bad); err == nil {
				t.Errorf("no error: %+v", got)
			}
		})
	}
}

func FuzzLegacy(f *testing.F) {
	for _, table := range tableNames {
		f.Add(reply(f, table))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _ := decode(b)
		for _, r := range got.Rules {
			if r.Text == "" || r.Target == "" || r.Chain == "" && r.Number == 0 {
				t.Errorf("rule without text, target or place: %+v", r)
			}
		}
	})
}
