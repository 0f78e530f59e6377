package flags

import (
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

// Text is a standard stream for text: in a locale without UTF-8 it writes 7 bits.
func Text(stream io.Writer) io.Writer {
	if report.UTF8(os.Environ()) {
		return stream
	}
	return &asciiStream{to: Document(stream)}
}

// Document is the stream under a Text. Documents are UTF-8 in every locale.
func Document(stream io.Writer) io.Writer {
	if s, ok := stream.(*asciiStream); ok {
		return s.to
	}
	return stream
}

// asciiStream writes report.ASCII of a text.
type asciiStream struct {
	to   io.Writer
	mu   sync.Mutex
	part []byte // the first bytes of a character whose last bytes were not yet written
}

func (s *asciiStream) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	whole := append(s.part, text...)
	end := len(whole)
	for i := max(0, end-utf8.UTFMax+1); i < end; i++ {
		if utf8.RuneStart(whole[i]) && !utf8.FullRune(whole[i:]) {
			end = i
		}
	}
	s.part = whole[end:]
	if _, err := io.WriteString(s.to, report.ASCII(string(whole[:end]))); err != nil {
		return 0, err
	}
	return len(text), nil
}

// Print writes a report to a standard stream, drawn as the stream, the locale and the flag for colours allow.
func Print(stream io.Writer, r report.Document, f report.Format, color string) error {
	stream = Document(stream)
	style := report.Style{Color: Colored(color, stream), Columns: Columns(stream)}
	if f == report.Text || f == report.Wide || f == report.InBrief {
		stream = Text(stream)
	}
	return report.Write(stream, r, f, style)
}

// Colored reports whether to use colours; NO_COLOR overrides the flag.
func Colored(flag string, w io.Writer) bool {
	switch {
	case os.Getenv("NO_COLOR") != "" || flag == "never":
		return false
	case flag == "always":
		return true
	}
	return Terminal(w) && os.Getenv("TERM") != "dumb"
}

// Descriptor is the file descriptor of a stream, if it has one.
func Descriptor(stream any) (fd int, ok bool) {
	if s, is := stream.(*asciiStream); is {
		stream = s.to
	}
	f, ok := stream.(interface{ Fd() uintptr })
	if !ok {
		return 0, false
	}
	return int(f.Fd()), true
}

// Terminal reports whether a stream is one.
func Terminal(stream any) bool {
	fd, ok := Descriptor(stream)
	return ok && term.IsTerminal(fd)
}

// Columns is the width of the terminal that a stream is, 0 where it is none.
func Columns(stream any) int {
	fd, ok := Descriptor(stream)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(fd)
	return model.Either(err == nil, columns, 0)
}
