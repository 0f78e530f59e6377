package traffic

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/lasthop/lasthop/probe/input"
)

// symbols resolves kernel addresses to function names. It keeps only the names
// that were asked for: /proc/kallsyms is large.
type symbols struct {
	path string
	// names holds the addresses that were looked up; empty if no function contains the address.
	names  map[uint64]string
	wanted map[uint64]bool
	// readable is false if the kernel hides addresses (kptr_restrict).
	readable bool
}

func newSymbols() *symbols {
	return &symbols{path: "/proc/kallsyms", names: map[uint64]string{}, wanted: map[uint64]bool{}, readable: true}
}

// resolved are the names that this process has found, by symbol: to find one, all are
// read, which takes longer than most else that a short watch does.
var resolved sync.Map

// symbol is an address that is looked up in a file.
type symbol struct {
	path    string
	address uint64
}

func (s *symbols) want(address uint64) {
	if _, ok := s.names[address]; ok {
		return
	}
	if name, ok := resolved.Load(symbol{s.path, address}); ok {
		s.names[address] = name.(string)
		return
	}
	s.wanted[address] = true
}

// name returns the function that contains the address, or the address itself if that is unknown.
func (s *symbols) name(address uint64) string {
	if n := s.names[address]; n != "" {
		return n
	}
	return fmt.Sprintf("%#x", address)
}

// resolve looks up the addresses wanted since the last call: it finds the last function that starts at or before each.
// kallsyms is not sorted.
func (s *symbols) resolve() error {
	if len(s.wanted) == 0 {
		return nil
	}
	best, shown := make(map[uint64]uint64, len(s.wanted)), false
	err := input.Lines(s.path, func(line string) {
		start, name, ok := parseSymbol(line)
		if !ok {
			return
		}
		shown = true
		for address := range s.wanted {
			if start <= address && start >= best[address] {
				best[address], s.names[address] = start, name
			}
		}
	})
	if err != nil {
		return fmt.Errorf("read kernel symbols: %w", err)
	}
	s.readable = shown
	for address := range s.wanted {
		if best[address] == 0 {
			s.names[address] = ""
		} else {
			resolved.Store(symbol{s.path, address}, s.names[address])
		}
	}
	clear(s.wanted)
	return nil
}

// extent returns where a function begins and its size, 0 if the kernel hides addresses.
func (s *symbols) extent(function string) (start, size uint64, err error) {
	end := uint64(math.MaxUint64)
	for range 2 { // kallsyms is not sorted
		err := input.Lines(s.path, func(line string) {
			if at, _, ok := parseSymbol(line); ok && strings.HasSuffix(line, " "+function) {
				start = at
			} else if start > 0 && at > start {
				end = min(end, at)
			}
		})
		if err != nil {
			return 0, 0, fmt.Errorf("read kernel symbols: %w", err)
		}
	}
	if start == 0 {
		return 0, 0, nil
	}
	return start, end - start, nil
}

// parseSymbol parses the line "address type name [module]" of a function. It
// strips suffixes of the compiler, as in ip_rcv_core.isra.0.
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
