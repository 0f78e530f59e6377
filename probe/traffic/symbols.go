package traffic

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// symbols names kernel addresses. The table of all symbols is read in passing,
// for addresses that are not yet known, and not kept: it is large.
type symbols struct {
	path string
	// names are of the addresses that were looked up; empty when no
	// function holds the address.
	names  map[uint64]string
	wanted map[uint64]bool
	// readable is false when the kernel hides its addresses from us.
	readable bool
}

func newSymbols() *symbols {
	return &symbols{
		path:     "/proc/kallsyms",
		names:    map[uint64]string{},
		wanted:   map[uint64]bool{},
		readable: true,
	}
}

func (s *symbols) want(address uint64) {
	if _, ok := s.names[address]; !ok {
		s.wanted[address] = true
	}
}

// name is the function that holds the address, or the address where that
// could not be told.
func (s *symbols) name(address uint64) string {
	if n := s.names[address]; n != "" {
		return n
	}
	return fmt.Sprintf("%#x", address)
}

// resolve looks up what was wanted since it last did.
func (s *symbols) resolve() error {
	if len(s.wanted) == 0 {
		return nil
	}
	f, err := os.Open(s.path)
	if err != nil {
		return fmt.Errorf("read kernel symbols: %w", err)
	}
	defer f.Close()
	return s.scan(f)
}

// scan finds, for each wanted address, the function that begins last before
// it. The table is not sorted.
func (s *symbols) scan(r io.Reader) error {
	best := make(map[uint64]uint64, len(s.wanted))
	lines := bufio.NewScanner(r)
	shown := false
	for lines.Scan() {
		start, name, ok := parseSymbol(lines.Text())
		if !ok {
			continue
		}
		shown = true
		for address := range s.wanted {
			if start <= address && start >= best[address] {
				best[address] = start
				s.names[address] = name
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read kernel symbols: %w", err)
	}
	s.readable = shown
	for address := range s.wanted {
		if best[address] == 0 {
			s.names[address] = ""
		}
	}
	clear(s.wanted)
	return nil
}

// parseSymbol reads a line "address type name [module]" of a function. The
// compiler's suffixes, as in ip_rcv_core.isra.0, are left out.
func parseSymbol(line string) (uint64, string, bool) {
	address, rest, ok := strings.Cut(line, " ")
	if !ok || len(rest) < 3 || !strings.ContainsRune("tTwW", rune(rest[0])) || rest[1] != ' ' {
		return 0, "", false
	}
	start, err := strconv.ParseUint(address, 16, 64)
	if err != nil || start == 0 {
		return 0, "", false
	}
	name, _, _ := strings.Cut(rest[2:], "\t")
	name, _, _ = strings.Cut(name, ".")
	return start, name, name != ""
}
