package traffic

import (
	"path"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/lasthop/lasthop/probe/model"
)

// sourceLine is a line of a file that a BPF program names by a number.
type sourceLine struct {
	file uint8
	line uint16
}

// mostSources bounds how many lines are looked for.
const mostSources = 256

// sources finds out which file a number stands for: the one of its names that has that line in a loaded program. Which
// names a number has changes with the version that numbers them.
type sources struct {
	names func(number uint8) []string
	known map[sourceLine]string
}

// resolve looks for lines that are not known yet, in all programs at once. One that none or several of its names have
// stays without a name, and so do all where programs may not be listed or have no line information.
func (s *sources) resolve(lines []sourceLine) {
	found := map[sourceLine][]string{}
	for _, l := range lines {
		if _, known := s.known[l]; !known && len(s.known)+len(found) < mostSources && len(s.names(l.file)) > 1 {
			found[l] = nil
		}
	}
	if len(found) == 0 {
		return
	}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		for file, numbers := range linesOf(id) {
			for l, names := range found {
				if numbers[uint32(l.line)] && slices.Contains(s.names(l.file), file) {
					found[l] = model.With(names, file)
				}
			}
		}
	}
	for l, names := range found {
		s.known[l] = ""
		if len(names) == 1 {
			s.known[l] = names[0]
		}
	}
}

// linesOf are the lines of a program, by the names of their files; none where the program is gone, or does not tell.
func linesOf(id ebpf.ProgramID) map[string]map[uint32]bool {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return nil
	}
	infos, err := info.LineInfos()
	if err != nil {
		return nil
	}
	out := map[string]map[uint32]bool{}
	for _, x := range infos {
		name := path.Base(x.Line.FileName())
		if out[name] == nil {
			out[name] = map[uint32]bool{}
		}
		out[name][x.Line.LineNumber()] = true
	}
	return out
}
