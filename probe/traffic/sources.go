package traffic

import (
	"path"
	"slices"
	"strings"

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

// ciliumDrops are calls in Cilium's programs that name a file and a line.
const ciliumDrops = "send_drop_notify"

// callLines is how many lines such a call may have, which names the last of them.
const callLines = 4

// sources finds out which file a number stands for: the one of its names that has a call at that line in a loaded program.
// Which names a number has changes with the version that numbers them.
type sources struct {
	names func(number uint8) []string
	calls string
	known map[sourceLine]string
}

// resolve looks for lines that are not known yet, in all programs at once. One that none or several of its names have
// stays without a name, and so do all where programs may not be listed or have no line information.
func (s *sources) resolve(lines []sourceLine) {
	found := map[sourceLine][]string{}
	for _, l := range lines {
		if _, known := s.known[l]; !known && len(s.known)+len(found) < mostSources {
			found[l] = nil
		}
	}
	if len(found) == 0 {
		return
	}
	for id, err := ebpf.ProgramGetNextID(0); err == nil; id, err = ebpf.ProgramGetNextID(id) {
		for _, call := range callsOf(id, s.calls) {
			for l, names := range found {
				if before := int(l.line) - call.line; before >= 0 && before < callLines && slices.Contains(s.names(l.file), call.file) {
					found[l] = model.With(names, call.file)
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

// call is where a program's source calls what names a file and a line.
type call struct {
	file string
	line int
}

// callsOf are such calls of a program, some several times; none where the program is gone, or does not tell.
func callsOf(id ebpf.ProgramID, calls string) (out []call) {
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
	for _, x := range infos {
		if strings.Contains(x.Line.Line(), calls) {
			out = append(out, call{path.Base(x.Line.FileName()), int(x.Line.LineNumber())})
		}
	}
	return out
}
