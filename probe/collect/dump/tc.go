package dump

import (
	"context"
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ClsactHandle is the handle of the qdiscs clsact and ingress, of which a link has at most one.
const ClsactHandle = 0xffff << 16

// Clsact returns the kind of what has the place of clsact, by link. The library would decode every qdisc there is.
func Clsact(ctx context.Context, c Dumper) (map[int]string, error) {
	out := map[int]string{}
	err := Retry(ctx, "list qdiscs", func() error {
		clear(out)
		return c.Each(unix.RTM_GETQDISC, new(nl.TcMsg).Serialize(), unix.RTM_NEWQDISC, func(m []byte) error {
			a := ParseAfter(m, nl.SizeofTcMsg)
			for a.Next() {
				if head := nl.DeserializeTcMsg(m); head.Handle == ClsactHandle && a.Type == nl.TCA_KIND {
					out[int(head.Ifindex)] = a.String()
				}
			}
			return a.Err()
		})
	})
	return out, err
}

// Filter is a tc filter.
type Filter struct {
	Kind               string
	Handle             uint32
	Priority, Protocol uint16
	Chain              uint32
	// Name, Program and Flags are those of a filter of the kind bpf; Classic: its program is of classic BPF.
	Name           string
	Program, Flags uint32
	Classic        bool
}

// Filters lists the filters of a class of a link's qdisc. With an error, what could be read is returned too; it is
// ENODEV where the link is gone, and EINVAL where there is no such class. does is that of Retry.
func Filters(ctx context.Context, does string, c Dumper, index int, parent uint32) ([]Filter, error) {
	about := (&nl.TcMsg{Ifindex: int32(index), Parent: parent}).Serialize()
	return List(ctx, does, c, unix.RTM_GETTFILTER, about, unix.RTM_NEWTFILTER, decodeFilter)
}

// decodeFilter decodes a message about a filter. One without a handle stands for all of one priority.
func decodeFilter(m []byte) (f Filter, err error) {
	a := ParseAfter(m, nl.SizeofTcMsg)
	if err := a.Err(); err != nil {
		return f, err
	}
	head := nl.DeserializeTcMsg(m)
	f.Handle, f.Priority, f.Protocol = head.Handle, uint16(head.Info>>16), nl.Swap16(uint16(head.Info))
	var options []byte
	err = a.Decode(binary.NativeEndian, Fields{nl.TCA_KIND: &f.Kind, nl.TCA_CHAIN: &f.Chain, nl.TCA_OPTIONS: &options})
	if err == nil && f.Kind == "bpf" {
		err = Parse(options).Decode(binary.NativeEndian, Fields{
			nl.TCA_BPF_NAME: &f.Name, nl.TCA_BPF_ID: &f.Program, nl.TCA_BPF_FLAGS: &f.Flags,
			nl.TCA_BPF_OPS: func(*Attrs) { f.Classic = true },
		})
	}
	if err == nil && f.Handle == 0 {
		err = ErrSkip
	}
	return f, err
}
