package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

// maxSamples bounds the drops of which a sample is kept.
const maxSamples = 256

// drops counts the packets that the kernel freed, by the kfree_skb tracepoint.
type drops struct {
	coll    *ebpf.Collection
	link    link.Link
	reader  *ringbuf.Reader
	names   map[uint32]model.Reason // of drop reasons; nil before Linux 5.17
	symbols *symbols

	namespaces map[uint32]bool
	counts     table[bpf.DropDropKey]
	samples    map[bpf.DropDropKey]model.Sample
	lost       [bpf.TCLostLOST_MAX]uint64
	// missed are runs of the program that the kernel skipped; see readMissed.
	// unsampled are events beyond maxSamples, or malformed ones.
	missed, unsampled uint64
}

// openDrops loads and attaches the tracepoint program, which shares the address
// table of the tc programs.
func openDrops(tc *ebpf.Collection, cfg Config) (_ *drops, err error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, loadError("watch drops", err, cfg.Debug)
	}
	d := &drops{
		names:      reasonNames(types),
		symbols:    newSymbols(),
		namespaces: map[uint32]bool{},
		samples:    map[bpf.DropDropKey]model.Sample{},
	}
	spec, err := dropSpec(cfg, types)
	if err != nil {
		return nil, err
	}
	d.coll, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{
			".bss":                tc.Maps[".bss"],
			bpf.TCMapCountedAddrs: tc.Maps[bpf.TCMapCountedAddrs],
		},
	})
	if err != nil {
		return nil, loadError("watch drops", err, cfg.Debug)
	}
	d.counts = newTable[bpf.DropDropKey](d.coll.Maps[bpf.DropMapDrops])
	d.reader, err = ringbuf.NewReader(d.coll.Maps[bpf.DropMapEvents])
	if err != nil {
		d.coll.Close()
		return nil, fmt.Errorf("watch drops: %w", err)
	}
	if err := d.attach(); err != nil {
		d.reader.Close()
		d.coll.Close()
		return nil, loadError("watch drops", err, cfg.Debug)
	}
	return d, nil
}

func (d *drops) attach() (err error) {
	d.link, err = link.AttachTracing(link.TracingOptions{Program: d.coll.Programs[bpf.DropProgLasthopDrop]})
	return err
}

func dropSpec(cfg Config, types *btf.Spec) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadDrop()
	if err != nil {
		return nil, err
	}
	sizeAddrTable(spec, cfg)
	spec.Maps[bpf.DropMapNamespaces].MaxEntries = maxNetns
	spec.Maps[bpf.DropMapDrops].MaxEntries = maxDrops
	spec.Maps[bpf.DropMapEvents].MaxEntries = cmp.Or(cfg.ringBytes, defaultRing)
	err = errors.Join(
		spec.Variables[bpf.DropVarHasReason].Set(hasReason(types)),
		spec.Variables[bpf.DropVarEventRate].Set(cmp.Or(cfg.eventRate, defaultRate)),
	)
	if err != nil {
		return nil, fmt.Errorf("configure drop program: %w", err)
	}
	return spec, nil
}

func (d *drops) setNamespaces(inodes []uint32) error {
	m := d.coll.Maps[bpf.DropMapNamespaces]
	want := make(map[uint32]bool, len(inodes))
	for _, i := range inodes {
		want[i] = true
	}
	var errs []error
	for i := range d.namespaces {
		if !want[i] {
			delete(d.namespaces, i)
			errs = append(errs, m.Delete(i))
		}
	}
	for i := range want {
		if d.namespaces[i] {
			continue
		}
		if err := m.Put(i, uint8(1)); err != nil {
			errs = append(errs, fmt.Errorf("watch drops in namespace %d: %w", i, err))
			continue
		}
		d.namespaces[i] = true
	}
	return errors.Join(errs...)
}

func (d *drops) poll(now time.Time) error {
	errs := []error{readMissed(d.coll, &d.missed), d.counts.poll(now), d.pollEvents(now), readLost(d.coll.Maps[bpf.DropMapLosses], &d.lost)}
	for key := range d.counts.entries {
		d.symbols.want(key.Location)
	}
	for key := range d.samples {
		d.symbols.want(key.Location)
	}
	return errors.Join(append(errs, d.symbols.resolve())...)
}

// evict makes room for other drops and samples: it forgets those that were not
// seen since then.
func (d *drops) evict(since time.Time) error {
	if nearlyFull(len(d.samples), maxSamples) {
		maps.DeleteFunc(d.samples, func(_ bpf.DropDropKey, s model.Sample) bool { return s.Time.Before(since) })
	}
	return d.counts.evict(since)
}

// pollEvents reads the events in the ring buffer, without waiting for more.
func (d *drops) pollEvents(now time.Time) error {
	var monotonic unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	booted := now.Add(-time.Duration(monotonic.Nano()))
	if err := d.reader.Flush(); err != nil {
		return fmt.Errorf("read drop events: %w", err)
	}
	for {
		r, err := d.reader.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read drop events: %w", err)
		}
		key, s, ok := decodeEvent(r.RawSample)
		if _, known := d.samples[key]; !ok || !known && len(d.samples) >= maxSamples {
			d.unsampled++
			continue
		}
		s.Time = booted.Add(time.Duration(s.Time.UnixNano()))
		d.samples[key] = s
	}
}

// decodeEvent decodes an event. The sample's time is since boot, and its reason,
// location and link are empty: the key has their numbers. It returns false for
// a malformed event.
func decodeEvent(raw []byte) (bpf.DropDropKey, model.Sample, bool) {
	events := view[bpf.DropDropEvent](raw)
	if len(events) == 0 || int(events[0].HeadLength) > len(events[0].Head) {
		return bpf.DropDropKey{}, model.Sample{}, false
	}
	e := &events[0]
	return e.Key, model.Sample{
		Time:     time.Unix(0, int64(e.Nanoseconds)),
		IfIndex:  int(e.Key.Ifindex),
		Netns:    e.Key.Netns,
		Src:      addrFrom(bpf.TCAddr(e.Key.Src)),
		Dst:      addrFrom(bpf.TCAddr(e.Key.Dst)),
		SrcMAC:   e.SrcMac,
		DstMAC:   e.Key.DstMac,
		Protocol: e.Protocol<<8 | e.Protocol>>8,
		Length:   int(e.Length),
		Head:     slices.Clone(e.Head[:e.HeadLength]),
		Count:    e.Count,
	}, true
}

func (d *drops) detail() string {
	s := fmt.Sprintf("kfree_skb in %d namespaces", len(d.namespaces))
	if d.names == nil {
		s += "; this kernel gives no reasons (5.17 does)"
	}
	if !d.symbols.readable {
		s += "; kernel symbols are hidden (CAP_SYSLOG shows them)"
	}
	return s
}

func (d *drops) close() error {
	err := errors.Join(d.link.Close(), d.reader.Close())
	d.coll.Close()
	return err
}

// list returns the drops. linkName names the links of a namespace.
func (d *drops) list(linkName func(netns uint32, index int) string) []model.Drop {
	merged := map[dropKey]*model.Drop{}
	for key, k := range d.counts.entries {
		m := model.Drop{
			Src:      addrFrom(bpf.TCAddr(key.Src)),
			Dst:      addrFrom(bpf.TCAddr(key.Dst)),
			Proto:    key.Proto,
			Reason:   d.reason(key.Reason),
			Location: d.symbols.name(key.Location),
			IfIndex:  int(key.Ifindex),
			Link:     linkName(key.Netns, int(key.Ifindex)),
			Netns:    key.Netns,
			DstMAC:   key.DstMac,
			Packets:  k.packets,
			First:    k.first,
			Last:     k.last,
		}
		// Several locations in one function count as one.
		key.Location, key.Reason = 0, 0
		id := dropKey{key, m.Reason, m.Location}
		if o := merged[id]; o != nil {
			o.Packets += m.Packets
			o.First = slices.MinFunc([]time.Time{o.First, m.First}, time.Time.Compare)
			o.Last = slices.MaxFunc([]time.Time{o.Last, m.Last}, time.Time.Compare)
			continue
		}
		merged[id] = &m
	}
	out := make([]model.Drop, 0, len(merged))
	for _, m := range merged {
		out = append(out, *m)
	}
	slices.SortFunc(out, compareDrops)
	return out
}

type dropKey struct {
	kernel   bpf.DropDropKey
	reason   model.Reason
	location string
}

func compareDrops(a, b model.Drop) int {
	return cmp.Or(
		a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), cmp.Compare(a.Proto, b.Proto),
		cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Location, b.Location),
		cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.IfIndex, b.IfIndex),
		slices.Compare(a.DstMAC[:], b.DstMAC[:]),
	)
}

// sampled returns the latest sample of each drop, oldest first.
func (d *drops) sampled(linkName func(netns uint32, index int) string) []model.Sample {
	out := make([]model.Sample, 0, len(d.samples))
	for key, s := range d.samples {
		s.Reason = d.reason(key.Reason)
		s.Location = d.symbols.name(key.Location)
		s.Link = linkName(key.Netns, int(key.Ifindex))
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b model.Sample) int {
		return cmp.Or(a.Time.Compare(b.Time), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Location, b.Location))
	})
	return out
}
