// Package record writes an observation to a file and reads it back: the state,
// all counts, samples of dropped packets, what the probe lost, and the findings
// as they were judged.
//
// A recording is appended to and never changed. It begins with 8 bytes,
// "lasthop" and a line end, and the version of the format, 2 bytes. Frames
// follow. All numbers are big-endian.
//
//	1 byte    kind: 'H' head, 'K' key, 'D' difference, 'C' counts, 'E' end
//	8 bytes   the frame's time, nanoseconds since 1970
//	4 bytes   length of what it holds
//	4 bytes   CRC-32C of the 13 bytes above and what it holds
//	…         what it holds: zstd
//
// The head is the first frame and there once. Key, difference and counts hold
// a point each: the length of a JSON document as a varint, the document, which
// are values of package model, and columns of counts as varints. A key holds
// everything in its document. The columns of the others say how much more was
// counted than at the latest key, whose entries they refer to; and what a
// difference holds is compressed with what that key held as the dictionary, so
// that little is stored but what changed. Counts have no state: theirs is that
// of the latest key or difference. The end says that the recording was closed;
// a file without one was cut off, and is good up to its last whole frame.
//
// Fields that are added to the model are absent in older recordings; fields
// that a reader does not know are passed over. Whatever else changes raises
// the version, and a reader refuses versions that it does not know.
package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Version is that of the format.
const Version = 2

const magic = "lasthop\n"

// The kinds of a frame.
const (
	kindHead   = 'H'
	kindKey    = 'K'
	kindDiff   = 'D'
	kindCounts = 'C'
	kindEnd    = 'E'
)

const (
	frontSize = len(magic) + 2
	headSize  = 1 + 8 + 4 + 4
	// maxFrame bounds what a frame holds, maxRaw what it is unpacked, and
	// maxValues how many values that may stand for.
	maxFrame  = 64 << 20
	maxRaw    = 64 << 20
	maxValues = 1 << 20
)

// keyEvery is how far keys are apart.
const keyEvery = 30 * time.Second

// dictionary is the number by which a difference refers to its key.
const dictionary = 1

// Head says what a recording is of.
type Head struct {
	// Writer is the version of lasthop that wrote it.
	Writer string
	// Node is the node's name.
	Node string
	// Window is that of the recorded findings; 0 is all.
	Window time.Duration
}

// point is what a frame holds.
type point struct {
	// Snapshot has no state in counts, and no traffic but in a key.
	Snapshot model.Snapshot
	// Rest is the traffic that is not in the columns.
	Rest     model.Traffic
	After    model.Traffic
	Ready    time.Time
	Findings []model.Tracked
	Judged   time.Time
}

// FormatError says where a file is not the recording that it should be.
type FormatError struct {
	// Offset is in bytes from the beginning of the file.
	Offset int64
	// What is wrong there.
	What string
}

func (e *FormatError) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.What) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is a frame's first bytes, but for what it holds.
func header(kind byte, at time.Time, held []byte) []byte {
	b := make([]byte, 0, headSize)
	b = append(b, kind)
	b = binary.BigEndian.AppendUint64(b, uint64(at.UnixNano()))
	b = binary.BigEndian.AppendUint32(b, uint32(len(held)))
	return binary.BigEndian.AppendUint32(b, sum(b, held))
}

func sum(head, held []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, held)
}
