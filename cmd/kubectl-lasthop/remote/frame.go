// Package remote runs a command of lasthop in a container of another machine, over one connection to the container's
// standard input and output. The near end (Call) is the plugin's, the far end (Serve) that of lasthop in the container.
//
// Both directions carry frames. The far end repeats a hello until the first frame comes: what it writes before
// somebody has attached is lost. Then the near end sends the command with its files, and afterwards keys and sizes
// of its terminal; the far end what the command prints, the files that it leaves in Dir, and last its status. So
// nothing is lost unnoticed: what has a status is whole. The command is asked to end when the near end is gone.
package remote

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Dir is the directory in the container for the files of a command, those that it reads and those that it leaves.
const Dir = "/files"

// Command is the hidden command of lasthop that is the far end.
const Command = "remote"

// kind says what a frame carries.
type kind byte

const (
	kindHello     kind = 'h' // far: nothing; it waits for a start
	kindStart     kind = 's' // near: a Start
	kindInput     kind = 'i' // near: keys for the command's terminal
	kindSize      kind = 'w' // near: the Size of the terminal
	kindInterrupt kind = 'c' // near: the user wants it to end
	kindOutput    kind = 'o' // far: standard output
	kindError     kind = 'r' // far: standard error
	kindFile      kind = 'f' // far: a file's name, a line feed, its content
	kindStatus    kind = 'x' // far: the status of the command, in decimal; the last frame
)

// magic begins each frame, so that what is no frame is noticed at once.
var magic = [3]byte{0x1b, 'l', 'h'}

// limit bounds a frame, in bytes.
const limit = 128 << 20

// Start is a command with what it needs.
type Start struct {
	Args []string
	// Env are the variables of the near end's environment that say what its terminal can.
	Env []string
	// Files are put into Dir.
	Files map[string][]byte
	// Terminal is the size of the near end's terminal, if the command is to have
	// one. ErrorTerminal says that its standard error is to be one, for progress.
	Terminal      *Size
	ErrorTerminal bool
}

// Size is that of a terminal, in cells.
type Size struct{ Rows, Cols uint16 }

// writer writes frames, each whole.
type writer struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *writer) frame(k kind, payload []byte) error {
	if len(payload) > limit {
		return fmt.Errorf("frame of %d bytes: want at most %d", len(payload), limit)
	}
	head := binary.BigEndian.AppendUint32(append(slices.Clone(magic[:]), byte(k)), uint32(len(payload)))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.w.Write(append(head, payload...))
	return err
}

func (w *writer) object(k kind, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.frame(k, text)
}

// stream is a Writer whose writes become frames.
type stream struct {
	to   *writer
	kind kind
}

func (s stream) Write(p []byte) (int, error) {
	if err := s.to.frame(s.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// errNoFrame says that what came is no frame.
var errNoFrame = errors.New("the container's output is not from `lasthop remote`")

// readFrame reads one frame. Its end is io.EOF only between frames.
func readFrame(r io.Reader) (kind, []byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[4:])
	if !bytes.Equal(head[:3], magic[:]) || n > limit {
		return 0, nil, errNoFrame
	}
	// The buffer grows with what comes: the length alone is only a claim.
	var payload bytes.Buffer
	if _, err := io.CopyN(&payload, r, int64(n)); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind(head[3]), payload.Bytes(), nil
}
