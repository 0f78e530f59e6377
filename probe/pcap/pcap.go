// Package pcap writes samples of dropped packets as pcapng, for tcpdump and tshark, and describes a sample in words.
//
// Each place where packets were dropped is an interface, named by link, reason and location. Samples begin with the
// network header. An Ethernet header is put before it, with zero for unknown MACs, since tcpdump reads a file only if
// all its interfaces have one link type.
package pcap

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

const (
	ethernetSize = 14
	// snapLength is declared for every interface; samples are much shorter.
	snapLength = 65535
	// maxName bounds an interface's name in bytes, maxPlaces the interfaces.
	// Drops at further places go to the first interface.
	maxName   = 200
	maxPlaces = 4096
)

// Writer appends samples to a file. It is not safe for concurrent use.
type Writer struct {
	ng *pcapgo.NgWriter
	// places are the interfaces by name. Drops without a link in several namespaces share one.
	places map[string]int
	seen   map[one]bool
}

// one identifies a sample. Samples of one drop, such as of TCP and of UDP, differ in time.
type one struct {
	drop     model.Drop
	protocol uint16
	time     int64
}

// NewWriter starts a file. Its first interface is for places beyond maxPlaces.
func NewWriter(w io.Writer) (*Writer, error) {
	first := face("any place", "packets of places beyond those that have an interface")
	ng, err := pcapgo.NewNgWriterInterface(w, first, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "lasthop"}})
	if err != nil {
		return nil, fmt.Errorf("begin pcapng: %w", err)
	}
	return &Writer{ng: ng, places: map[string]int{}}, flush(ng)
}

func face(name, description string) pcapgo.NgInterface {
	return pcapgo.NgInterface{
		Name: name, Description: description, LinkType: layers.LinkTypeEthernet, SnapLength: snapLength,
		TimestampResolution: 9,
	}
}

func flush(ng *pcapgo.NgWriter) error {
	if err := ng.Flush(); err != nil {
		return fmt.Errorf("write pcapng: %w", err)
	}
	return nil
}

// Write appends the samples that were not in the call before, and flushes.
func (w *Writer) Write(samples []model.Sample) error {
	seen := make(map[one]bool, len(samples))
	for _, s := range samples {
		k := one{s.Key(), s.Protocol, s.Time.UnixNano()}
		if seen[k] = true; w.seen[k] {
			continue
		}
		id, err := w.at(s)
		if err != nil {
			return err
		}
		data := frame(s)
		err = w.ng.WritePacket(gopacket.CaptureInfo{
			Timestamp: s.Time, CaptureLength: len(data), Length: max(ethernetSize+s.Length, len(data)), InterfaceIndex: id,
		}, data)
		if err != nil {
			return fmt.Errorf("write pcapng: %w", err)
		}
	}
	w.seen = seen
	return flush(w.ng)
}

// at returns the interface of a sample's place, and adds it if it is new.
func (w *Writer) at(s model.Sample) (int, error) {
	name := place(s)
	if id, ok := w.places[name]; ok || len(w.places) == maxPlaces {
		return id, nil
	}
	id, err := w.ng.AddInterface(face(name, ""))
	if err != nil {
		return 0, fmt.Errorf("write pcapng: %w", err)
	}
	w.places[name] = id
	return id, nil
}

// place returns link, reason and location without control characters.
func place(s model.Sample) string {
	link := s.Link
	if link == "" && s.IfIndex != 0 {
		link = fmt.Sprintf("link%d@net:[%d]", s.IfIndex, s.Netns)
	}
	words := []string{cmp.Or(link, "no-link"), cmp.Or(string(s.Reason), "no-reason"), s.Location}
	name := report.Clean(strings.Join(words, " "))
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}

func frame(s model.Sample) []byte {
	b := make([]byte, 0, ethernetSize+len(s.Head))
	b = append(append(b, s.DstMAC[:]...), s.SrcMAC[:]...)
	return append(binary.BigEndian.AppendUint16(b, s.Protocol), s.Head...)
}
