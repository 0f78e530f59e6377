// Package record writes an observation to a file and reads it back: state, counts,
// samples of dropped packets, losses of the probe, and findings.
//
// A recording is only appended to. It begins with 8 bytes, "lasthop" and a line feed, and the version of the
// format, 2 bytes. Frames follow. All numbers are big-endian.
//
//	1 byte    kind: 'H' head, 'K' key, 'D' difference, 'C' counts, 'E' end
//	8 bytes   the frame's time, nanoseconds since 1970
//	4 bytes   length of the content
//	4 bytes   CRC-32C of the 13 bytes above and the content
//	…         content: zstd
//
// The head is the first frame and occurs once. Key, difference and counts hold a point each: the length of a JSON
// document as a varint, the document, which encodes values of package model, and columns of counts as varints. A
// key holds everything in its document. The columns of the others hold differences from the counts of the latest
// key. A difference is compressed with the content of that key as the dictionary, so that it stores little but
// changes. Counts have no state: theirs is that of the latest key or difference. The end marks that the recording
// was closed. A file without it is truncated, and valid up to its last complete frame.
//
// Fields that were added to the model are absent in older recordings, and readers skip unknown fields. Any other change
// raises the version. Readers reject unknown versions. Version 3 added the columns of pairs, version 4 those of
// fragments; versions 2 and 3 are read as well.
package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/lasthop/lasthop/probe/model"
)

// Version is that of the format which is written.
const Version = 4

const (
	oldest = 2
	// versionPairs is the first with columns of pairs.
	versionPairs = 3
	// versionFragments is the first with columns of fragments.
	versionFragments = 4
)

const magic = "lasthop\n"

// The kinds of a frame.
const (
	kindHead   = 'H'
	kindKey    = 'K'
	kindDiff   = 'D'
	kindCounts = 'C'
	kindEnd    = 'E'
)

// FrontSize is how many bytes at its beginning show whether a file is a recording.
const FrontSize = len(magic) + 2

const headSize = 1 + 8 + 4 + 4

const keyEvery = 30 * time.Second

// dictionary is the zstd dictionary ID of a key.
const dictionary = 1

// Head describes a recording.
type Head struct {
	// Writer is the version of lasthop that wrote it.
	Writer string
	// Node is the node's name.
	Node string
	// Window is that of the recorded findings; 0 is all.
	Window time.Duration
	// Began is when the observation began of which this is a later part, zero if it is no
	// part. Recordings with the same are of one observation.
	Began time.Time `json:",omitzero"`
}

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

// FormatError says where a file is not a valid recording.
type FormatError struct {
	// Offset is in bytes from the beginning of the file.
	Offset int64
	// What is wrong there.
	What string
}

func (e *FormatError) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.What) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header returns the first bytes of a frame, before its content.
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
