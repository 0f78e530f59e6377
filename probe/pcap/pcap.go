// Package pcap writes samples of dropped packets as pcapng, which tcpdump and
// tshark read, and describes them in words.
//
// Each place where packets are dropped is an interface of its own, named by link,
// reason and location. Samples begin with the network header. Since tcpdump reads
// only files whose interfaces all have the same link type, an Ethernet header is
// put before it, with a zero MAC where none is known.
package pcap

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/report"
)

const (
	ethernetSize = 14
	// snapLength is that of every interface; samples are much shorter.
	snapLength = 65535
	// maxName bounds an interface's name in bytes, maxPlaces their number:
	// packets of any further place are at the first.
	maxName   = 200
	maxPlaces = 4096
)

// Writer appends samples to a file. It is not safe for concurrent use.
type Writer struct {
	ng *pcapgo.NgWriter
	// places are the interfaces by name. Packets without a link have one place
	// for all namespaces.
	places map[string]int
	seen   map[one]bool
}

// place is where packets were dropped.
type place struct {
	link, location string
	ifindex        int
	netns          uint32
	reason         model.Reason
}

// one identifies a sample. The time separates those of one place and pair, such as
// TCP and UDP.
type one struct {
	place
	src, dst netip.Addr
	mac      model.MAC
	protocol uint16
	time     int64
}

// NewWriter begins a file. Its first interface is for what has no other.
func NewWriter(w io.Writer) (*Writer, error) {
	ng, err := pcapgo.NewNgWriterInterface(w, face("any place", "packets of places beyond those that have an interface"), pcapgo.NgWriterOptions{
		SectionInfo: pcapgo.NgSectionInfo{Application: "lasthop"},
	})
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

// Write appends the samples that were not in the previous call, and flushes them.
func (w *Writer) Write(samples []model.Sample) error {
	seen := make(map[one]bool, len(samples))
	for _, s := range samples {
		k := one{placeOf(s), s.Src, s.Dst, s.DstMAC, s.Protocol, s.Time.UnixNano()}
		if seen[k] = true; w.seen[k] {
			continue
		}
		id, err := w.at(k.place)
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

func placeOf(s model.Sample) place {
	return place{link: s.Link, location: s.Location, ifindex: s.IfIndex, netns: s.Netns, reason: s.Reason}
}

// at is the interface of a place.
func (w *Writer) at(p place) (int, error) {
	name := p.String()
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

// String is the link, the reason and the location, in clean text.
func (p place) String() string {
	link := p.link
	switch {
	case link != "":
	case p.ifindex != 0:
		link = fmt.Sprintf("link%d@net:[%d]", p.ifindex, p.netns)
	default:
		link = "no-link"
	}
	words := []string{link, string(p.reason), p.location}
	if p.reason == "" {
		words[1] = "no-reason"
	}
	name := report.Clean(strings.Join(words, " "))
	return strings.ToValidUTF8(name[:min(len(name), maxName)], "")
}

// frame is the sample with an Ethernet header.
func frame(s model.Sample) []byte {
	b := make([]byte, 0, ethernetSize+len(s.Head))
	b = append(append(b, s.DstMAC[:]...), s.SrcMAC[:]...)
	return append(binary.BigEndian.AppendUint16(b, s.Protocol), s.Head...)
}
