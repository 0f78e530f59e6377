package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
)

const maxSamples = 256

// drops counts the packets that the kernel freed, by the kfree_skb tracepoint.
type drops struct {
	coll   *ebpf.Collection
	link   link.Link
	reader *ringbuf.Reader
	names  map[uint32]model.Reason // of drop reasons; nil before Linux 5.17
	module func(string) (*btf.Spec, error)
	// translated: packets are counted also where only connection tracking knows of which pod they are.
	translated bool
	release    uint32 // the running kernel's
	symbols    *symbols
	sources    sources

	namespaces map[uint32]uint64
	counts     *dropCounts
	shares     *mapped // by slot of a pod's address; slot 0 has the sum of all
	slots      int
	samples    map[sampleKey]model.Sample
	lost       [bpf.TCLostLOST_MAX]uint64
	// missed are runs of the program that the kernel skipped; see readMissed.
	// unsampled are events beyond maxSamples, or malformed ones.
	missed, unsampled uint64
}

// openDrops loads and attaches the tracepoint program, which shares the address table of the tc programs.
func openDrops(tc *ebpf.Collection, cfg Config) (_ *drops, err error) {
	reasons, err := kernelReasons()
	if err != nil {
		return nil, loadError("watch drops", err, cfg.Debug)
	}
	running, err := features.LinuxVersionCode()
	if err != nil {
		return nil, fmt.Errorf("watch drops: read kernel version: %w", err)
	}
	d := &drops{
		names:      maps.Clone(reasons.names),
		module:     btf.LoadKernelModuleSpec,
		release:    running,
		symbols:    newSymbols(),
		sources:    sources{model.CiliumFiles, ciliumDrops, map[sourceLine]string{}},
		namespaces: map[uint32]uint64{},
		samples:    map[sampleKey]model.Sample{},
		slots:      1 + cfg.MaxAddrs,
	}
	spec, err := dropSpec(cfg, reasons)
	if err != nil {
		return nil, err
	}
	var tracking []*btf.Spec
	tracking, d.translated = trackingTypes()
	d.coll, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{
			".bss": tc.Maps[".bss"], bpf.TCMapCountedAddrs: tc.Maps[bpf.TCMapCountedAddrs], bpf.TCMapAddrLosses: tc.Maps[bpf.TCMapAddrLosses],
		},
		Programs: ebpf.ProgramOptions{ExtraRelocationTargets: tracking},
	})
	if err != nil {
		return nil, loadError("watch drops", err, cfg.Debug)
	}
	defer func() {
		if err != nil {
			d.coll.Close()
		}
	}()
	mem, err := mapMemory(d.coll)
	if err != nil {
		return nil, err
	}
	d.shares = mem[bpf.DropMapDropShares]
	if d.counts, err = newDropCounts(d.coll, mem); err != nil {
		return nil, err
	}
	if d.reader, err = ringbuf.NewReader(d.coll.Maps[bpf.DropMapEvents]); err != nil {
		return nil, fmt.Errorf("watch drops: %w", err)
	}
	if err = d.attach(); err != nil {
		d.reader.Close()
		return nil, loadError("watch drops", err, cfg.Debug)
	}
	return d, nil
}

// trackingTypes are those of connection tracking where that is a module (Linux 5.11), and whether translated packets can be
// told by them or by the kernel's own. Where it is not loaded, nothing is translated.
func trackingTypes() (module []*btf.Spec, known bool) {
	const name = "nf_conntrack"
	if spec, err := btf.LoadKernelModuleSpec(name); err == nil {
		return []*btf.Spec{spec}, true
	}
	if _, err := os.Stat("/sys/module/" + name); errors.Is(err, fs.ErrNotExist) {
		return nil, true
	}
	types, err := btf.LoadKernelSpec()
	if err == nil {
		_, err = types.AnyTypesByName("nf_conn")
	}
	return nil, err == nil
}

func (d *drops) attach() (err error) {
	d.link, err = link.AttachTracing(link.TracingOptions{Program: d.coll.Programs[bpf.DropProgLasthopDrop]})
	return err
}

func dropSpec(cfg Config, reasons reasons) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.Load("drop")
	if err != nil {
		return nil, err
	}
	sizeAddrTable(spec, cfg)
	spec.Maps[bpf.DropMapNamespaces].MaxEntries = maxNetns
	spec.Maps[bpf.DropMapDrops].MaxEntries = maxDrops
	spec.Maps[bpf.DropMapFreeDrops].MaxEntries = maxDrops
	resize(spec.Maps[bpf.DropMapDropCounts], cfg.cpus, maxDrops*countSize)
	spec.Maps[bpf.DropMapRecents].MaxEntries = uint32(cfg.cpus)
	spec.Maps[bpf.DropMapDropShares].MaxEntries = uint32(1 + cfg.MaxAddrs)
	spec.Maps[bpf.DropMapEvents].MaxEntries = cmp.Or(cfg.ringBytes, defaultRing)
	var at, size uint64
	if !reasons.given {
		at, size, err = newSymbols().extent("kfree_skb")
	}
	err = errors.Join(
		err,
		spec.Variables[bpf.DropVarHasReason].Set(reasons.given),
		spec.Variables[bpf.DropVarKfreeSkbAt].Set(at),
		spec.Variables[bpf.DropVarKfreeSkbSize].Set(size),
		spec.Variables[bpf.DropVarHookReasons].Set(reasons.ofHooks()),
		spec.Variables[bpf.DropVarDropEntries].Set(uint32(maxDrops)),
		spec.Variables[bpf.DropVarDropQuota].Set(dropQuota),
		spec.Variables[bpf.DropVarEventRate].Set(cmp.Or(cfg.eventRate, defaultRate)),
	)
	if err != nil {
		return nil, fmt.Errorf("configure drop program: %w", err)
	}
	return spec, nil
}

func (d *drops) setNamespaces(list []Namespace) error {
	m, changed := d.coll.Maps[bpf.DropMapNamespaces], false
	var errs []error
	for i := range d.namespaces {
		if !slices.ContainsFunc(list, func(n Namespace) bool { return n.Inode == i }) {
			delete(d.namespaces, i)
			errs = append(errs, m.Delete(i))
			changed = true
		}
	}
	for _, n := range list {
		before, known := d.namespaces[n.Inode]
		if known && before == n.Cookie {
			continue
		}
		if err := m.Put(n.Inode, n.Cookie); err != nil {
			errs = append(errs, fmt.Errorf("watch drops in namespace %d: %w", n.Inode, err))
			continue
		}
		d.namespaces[n.Inode] = n.Cookie
		changed = changed || known
	}
	if changed {
		d.counts.forgetRecent()
	}
	return errors.Join(errs...)
}

func (d *drops) poll(now time.Time) error {
	errs := []error{d.counts.release(now), readMissed(d.coll, &d.missed), d.counts.poll(now), d.pollEvents(now), readLost(d.coll.Maps[bpf.DropMapLosses], &d.lost)}
	var lines []sourceLine
	for key := range d.counts.entries {
		d.symbols.want(key.Location)
		if key.Cilium.File > 0 {
			lines = append(lines, sourceLine{key.Cilium.File, key.Cilium.Line})
		}
	}
	for key := range d.samples {
		d.symbols.want(key.drop.Location)
	}
	d.sources.resolve(lines)
	return errors.Join(append(errs, d.symbols.resolve())...)
}

// dropQuota is how many entries a pod's address may have: of addresses, of ranges, and of all others.
var dropQuota = [bpf.TCFarFARS]uint32{bpf.TCFarFAR_ADDRESS: maxDrops / 16, bpf.TCFarFAR_RANGE: maxDrops / 64, bpf.TCFarFAR_OTHERS: maxDrops / 64}

// full reports whether there is little room, or none left in a pod's quota.
func (d *drops) full() bool {
	if nearlyFull(len(d.counts.entries), maxDrops) {
		return true
	}
	for _, q := range read[bpf.DropQuota](d.shares, d.shares.stride, (d.slots-1)*quotaSize) {
		for far, most := range dropQuota {
			if q.Taken[far]-q.Freed[far] >= most {
				return true
			}
		}
	}
	return false
}

// giveBack tells the program that a pod may have one more entry.
func (d *drops) giveBack(k bpf.DropDropKey) {
	for _, slot := range []int{0, int(k.Local)} {
		off := slot * d.shares.stride
		freed := one[bpf.DropQuota](d.shares, off).Freed[k.Far]
		d.shares.store32(off+int(unsafe.Offsetof(bpf.DropQuota{}.Freed))+int(k.Far)*4, freed+1)
	}
}

// evict forgets drops that were not seen since then: those of pods that are gone and,
// where there is little room, all of them.
func (d *drops) evict(since time.Time, gone func(slot uint16) bool) error {
	if nearlyFull(len(d.samples), maxSamples) {
		maps.DeleteFunc(d.samples, func(_ sampleKey, s model.Sample) bool { return s.Time.Before(since) })
	}
	full := d.full()
	return d.counts.evict(func(k bpf.DropDropKey, last time.Time) bool {
		return last.Before(since) && (full || gone(k.Local))
	}, d.giveBack)
}

// forgetAddr forgets the drops of a slot that is about to be another pod's, which would have what is left of its quota.
func (d *drops) forgetAddr(slot uint16) error {
	return d.counts.evict(func(k bpf.DropDropKey, _ time.Time) bool { return k.Local == slot }, d.giveBack)
}

// zeroOfClock is when the clock was zero that programs read (CLOCK_MONOTONIC).
func zeroOfClock(now time.Time) (time.Time, error) {
	var monotonic unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
		return time.Time{}, fmt.Errorf("read clock: %w", err)
	}
	return now.Add(-time.Duration(monotonic.Nano())), nil
}

// pollEvents reads the events in the ring buffer, without waiting for more.
func (d *drops) pollEvents(now time.Time) error {
	booted, err := zeroOfClock(now)
	if err != nil {
		return err
	}
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
		drop, s, ok := decodeEvent(r.RawSample)
		key := sampleKey{drop, kindOf(&s)}
		before, known := d.samples[key]
		if !ok || !known && len(d.samples) >= maxSamples {
			d.unsampled++
			continue
		}
		s.Time = booted.Add(time.Duration(s.Time.UnixNano()))
		if s.Began = before.Began; !known && s.Count == 1 {
			s.Began = s.Time
		}
		d.samples[key] = s
	}
}

// decodeEvent decodes an event. The sample's time is since boot, and its reason, location and link are empty: the
// key has their numbers. It returns false for a malformed event.
func decodeEvent(raw []byte) (bpf.DropDropKey, model.Sample, bool) {
	events := view[bpf.DropDropEvent](raw)
	if len(events) == 0 || int(events[0].HeadLength) > len(events[0].Head) {
		return bpf.DropDropKey{}, model.Sample{}, false
	}
	e := &events[0]
	return e.Key, model.Sample{
		Time: time.Unix(0, int64(e.Nanoseconds)), IfIndex: int(e.Key.Ifindex), Netns: e.Key.Netns,
		Src: addrFrom(bpf.TCAddr(e.Src)), Dst: addrFrom(bpf.TCAddr(e.Dst)), SrcMAC: e.SrcMac, DstMAC: e.Key.DstMac,
		Protocol: e.Protocol<<8 | e.Protocol>>8, Length: int(e.Length), Count: e.Count,
		Head: slices.Clone(kept(e.Head[:e.HeadLength])),
	}, true
}

func (d *drops) detail() string {
	s := "kfree_skb in " + model.Quantity(len(d.namespaces), "network namespace")
	if d.names == nil {
		s += "; drop reasons are inferred: the kernel reports them only since Linux 5.17"
	}
	if !d.translated {
		s += "; packets with a translated source are not counted: the kernel has no types of nf_conntrack (a module's, since Linux 5.11)"
	}
	if !d.symbols.readable {
		s += "; kernel symbols are hidden (needs CAP_SYSLOG)"
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
	type place struct {
		kernel   bpf.DropDropKey
		reason   model.Reason
		location string
		cilium   model.CiliumDrop
	}
	merged := map[place]*model.Drop{}
	for key, k := range d.counts.entries {
		m := model.Drop{
			Proto: key.Proto, Reason: d.reason(&key), Location: d.symbols.name(key.Location), DstMAC: key.DstMac,
			IfIndex: int(key.Ifindex), Link: linkName(key.Netns, int(key.Ifindex)), Netns: key.Netns,
			Packets: k.packets, First: k.first, Last: k.last,
		}
		m.Src, m.Dst, m.Range = dropEnds(&key)
		if m.Is(model.AtIngress | model.AtEgress | model.AtNetkit) {
			m.Cilium = d.ciliumDrop(key.Cilium)
		}
		// Several locations in one function count as one, and an address whose slot has changed.
		key.Location, key.Reason, key.Local, key.Far, key.Cilium = 0, 0, 0, 0, bpf.DropCiliumDrop{}
		id := place{key, m.Reason, m.Location, m.Cilium}
		if o := merged[id]; o != nil {
			m.Packets += o.Packets
			m.First = slices.MinFunc([]time.Time{o.First, m.First}, time.Time.Compare)
			m.Last = slices.MaxFunc([]time.Time{o.Last, m.Last}, time.Time.Compare)
		}
		merged[id] = &m
	}
	out := make([]model.Drop, 0, len(merged))
	for _, m := range merged {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b model.Drop) int {
		return cmp.Or(
			a.Src.Compare(b.Src), a.Dst.Compare(b.Dst), a.Range.Compare(b.Range), cmp.Compare(a.Proto, b.Proto),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Location, b.Location),
			cmp.Compare(a.Netns, b.Netns), cmp.Compare(a.IfIndex, b.IfIndex), slices.Compare(a.DstMAC[:], b.DstMAC[:]),
			a.Cilium.Compare(b.Cilium),
		)
	})
	return out
}

func (d *drops) ciliumDrop(c bpf.DropCiliumDrop) model.CiliumDrop {
	return model.CiliumDrop{
		Reason: model.CiliumReason(c.Reason), Error: c.Error, Endpoint: c.Endpoint, File: c.File, Line: c.Line,
		SrcIdentity: model.CiliumIdentity(c.SrcIdentity), DstIdentity: model.CiliumIdentity(c.DstIdentity),
		Name: d.sources.known[sourceLine{c.File, c.Line}],
	}
}

// dropEnds are a drop's addresses. Where the far end is a range its address is not valid.
func dropEnds(k *bpf.DropDropKey) (src, dst netip.Addr, far netip.Prefix) {
	src, dst = addrFrom(bpf.TCAddr(k.Src)), addrFrom(bpf.TCAddr(k.Dst))
	switch {
	case k.Bits == addrBits:
	case k.FarIsSrc != 0:
		far, src = prefixOf(src, k.Bits, dst), netip.Addr{}
	default:
		far, dst = prefixOf(dst, k.Bits, src), netip.Addr{}
	}
	return src, dst, far
}

// sampled returns the latest sample of each drop and kind of packet, oldest first.
func (d *drops) sampled(linkName func(netns uint32, index int) string) []model.Sample {
	out := make([]model.Sample, 0, len(d.samples))
	for key, s := range d.samples {
		s.Reason = d.reason(&key.drop)
		s.Location = d.symbols.name(key.drop.Location)
		s.Link = linkName(key.drop.Netns, int(key.drop.Ifindex))
		if at := s.Drop(); at.Is(model.AtIngress | model.AtEgress | model.AtNetkit) {
			s.Cilium = d.ciliumDrop(key.drop.Cilium)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b model.Sample) int {
		return cmp.Or(a.Time.Compare(b.Time), a.Src.Compare(b.Src), a.Dst.Compare(b.Dst),
			cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Location, b.Location))
	})
	return out
}
