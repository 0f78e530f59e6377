// Package traffic counts packets in the kernel: it loads the BPF programs,
// attaches them to links, and reads their maps.
//
// The programs run at the tc hooks of the node's links and at the kfree_skb tracepoint. They modify no packet. Nothing
// is pinned. With clsact a filter may outlive the process, which then does nothing: see clsact; with tcx nothing does, but for
// the seconds in which many links are detached.
package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Defaults of Config, and sizes of the maps.
const (
	defaultAddrs = 1024
	defaultLinks = 511
	maxPrefixes  = 400 // Azure's route tables have no more
	maxNeighbors = 4096
	maxPairs     = 16384
	maxDrops     = 4096
	maxNetns     = 2048
	// defaultRing is in bytes, room for about 1,000 samples; defaultRate is samples per second and CPU.
	defaultRing = 256 << 10
	defaultRate = 128

	// leastMemory is the limit of a cgroup, in bytes, that model.MoreMemory advises.
	leastMemory = 64 << 20

	// maxHops, maxMACs and maxPeers are per CPU. The others bound the memory of all present CPUs together.
	maxHops   = 16384
	hopBytes  = 48 << 20
	maxMACs   = 16384
	macBytes  = 32 << 20
	maxPeers  = 16384
	peerBytes = 32 << 20
)

// Config says what an Engine watches, and how much it can count.
type Config struct {
	// NS is the node's namespace. It must stay open as long as the engine.
	NS *netns.NS
	// MaxAddrs and MaxLinks bound how many are counted at a time. 0 means 511 links, and 1024 addresses or two a link.
	MaxAddrs, MaxLinks int
	// Pairs allows Local.Pairs. It makes every packet cost more.
	Pairs bool
	// Attach is AttachTCX, AttachClsact or AttachAuto; empty is AttachAuto.
	Attach string
	// Janitor makes the command of a process that calls Janitor, nil means none. It is started with AttachClsact and, at the
	// end, where tcx has many links: then Close does not wait until these are detached.
	Janitor func() *exec.Cmd
	// KeepLeftovers leaves what killed lasthops left.
	KeepLeftovers bool
	// Debug adds the verifier's log to errors.
	Debug bool

	// eventRate, ringBytes and maxHops override the defaults if not 0, cpus
	// the number of CPUs that have tables of their own.
	eventRate, ringBytes uint32
	maxHops, cpus        int
}

// Local is a local address whose packets are counted.
type Local struct {
	Addr netip.Addr
	// Node says that the address is the node's, not a pod's.
	Node bool
	// Pairs has its packets counted by address pair on every link. It needs Config.Pairs.
	Pairs bool
}

// Link is a network interface of the node that packets are counted on.
type Link struct {
	Index int
	Name  string
	// Uplink says that the link leads off the node: peers are counted on it.
	Uplink bool
	// First says that Attach does not leave it for later.
	First bool
	// NoEthernet says that packets begin with the IP header (tun, wireguard, ipip).
	NoEthernet bool
	// IPTunnel says that it is an ipip or sit tunnel, whose packets begin with the
	// outer header before Linux 5.14: see links.
	IPTunnel bool
}

// Engine holds the loaded programs. Its methods may be called concurrently.
type Engine struct {
	cfg      Config
	ns       *netns.NS
	closed   atomic.Bool
	closeAll func() error // runs close once

	coll *ebpf.Collection
	// noTCX is why the kernel has no tcx, nil if it has.
	noTCX error
	attachments
	drops    *drops // nil if drops cannot be watched
	dropsErr error  // why

	mu       sync.Mutex
	addrs    *addrTable
	links    *links
	counters *counters
}

// Open loads the programs. If the kernel or missing capabilities prevent it, the error is a
// *model.UnsupportedError. If only drops cannot be watched, Open succeeds and Sources says why.
func Open(cfg Config) (*Engine, error) {
	cfg.Attach = cmp.Or(cfg.Attach, AttachAuto)
	cfg.MaxLinks = cmp.Or(cfg.MaxLinks, defaultLinks)
	cfg.MaxAddrs = cmp.Or(cfg.MaxAddrs, max(defaultAddrs, 2*cfg.MaxLinks))
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := checkRights("load tc programs"); err != nil {
		return nil, err
	}
	if err := checkMemory("load tc programs"); err != nil {
		return nil, err
	}
	if cfg.cpus == 0 {
		var err error
		if cfg.cpus, err = presentCPUs(); err != nil {
			return nil, err
		}
	}
	// Before Linux 5.11 maps count against RLIMIT_MEMLOCK.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, refused("load BPF programs", err)
	}
	noTCX := probeTCX(cfg.NS)
	if _, old := errors.AsType[*model.UnsupportedError](noTCX); noTCX != nil && (cfg.Attach == AttachTCX || !old) {
		return nil, noTCX
	}
	if !cfg.KeepLeftovers {
		if err := leftovers(cfg.NS, func(r *rtnl, n uint16, _ int) error { return r.remove(n, everyLink) }); err != nil {
			return nil, fmt.Errorf("remove what a killed lasthop left: %w", err)
		}
	}
	spec, err := tcSpec(cfg)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, loadError("load tc programs", err, cfg.Debug)
	}
	e := &Engine{cfg: cfg, ns: cfg.NS, coll: coll, noTCX: noTCX}
	e.closeAll = sync.OnceValue(e.close)
	mem, err := mapMemory(coll)
	if err != nil {
		coll.Close()
		return nil, err
	}
	e.addrs, e.links = newAddrTable(coll, spec, mem, cfg), newLinks(spec, mem[".bss"], cfg)
	e.counters = newCounters(coll, mem, e.addrs)
	e.on, e.failed = map[int]*attachment{}, map[int]error{}
	e.drops, e.dropsErr = openDrops(coll, cfg)
	return e, nil
}

// Room is MaxLinks for a node that has so many: as many again may come.
func Room(links int) int { return min(max(defaultLinks, 2*links), linkTable/2-1) }

func (cfg Config) check() error {
	if cfg.NS == nil {
		return errors.New("open traffic engine: no namespace given")
	}
	if !slices.Contains([]string{AttachAuto, AttachTCX, AttachClsact}, cfg.Attach) {
		return fmt.Errorf("open traffic engine: unknown attach mode %q", cfg.Attach)
	}
	// Slots have 16 bits, and the hash table of links must not fill up.
	if n := 1<<16 - maxPrefixes - 2; cfg.MaxAddrs < 0 || cfg.MaxAddrs > n {
		return fmt.Errorf("open traffic engine: %d addresses: at most %d", cfg.MaxAddrs, n)
	}
	if cfg.MaxLinks < 0 || cfg.MaxLinks > linkTable/2 {
		return fmt.Errorf("open traffic engine: %d links: at most %d", cfg.MaxLinks, linkTable/2)
	}
	return nil
}

// rowCells is how many pairs of hop counters an address may have: those of each link, and of the unused slot 0.
func rowCells(cfg Config) uint32 { return uint32(ways) << bits.Len32(uint32(cfg.MaxLinks)) }

// perCPU is how many values of a size fit each CPU's share of the budget.
func perCPU(most, budget, size, cpus int) uint32 { return uint32(min(most, budget/size/cpus)) }

func tcSpec(cfg Config) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.Load("tc")
	if err != nil {
		return nil, err
	}
	cpus := cfg.cpus
	hops := floorPow2(perCPU(cmp.Or(cfg.maxHops, maxHops), hopBytes, hopSize, cpus))
	macSets := floorPow2(perCPU(maxMACs, macBytes, macSize, cpus) / macWays)
	sets := floorPow2(perCPU(maxPeers, peerBytes, peerSize, cpus) / peerWays)
	quota := peerQuota(sets * peerWays)

	sizeAddrTable(spec, cfg)
	resize(spec.Maps[bpf.TCMapHopCounters], cpus, hops*uint32(hopSize))
	resize(spec.Maps[bpf.TCMapFreeHops], 1, hops/uint32(sides)*uint32(freeHopSize))
	resize(spec.Maps[bpf.TCMapMoreMacs], cpus, macSets*macWays*uint32(macSize))
	resize(spec.Maps[bpf.TCMapPeers], cpus, sets*peerWays*uint32(peerSize))
	spec.Maps[bpf.TCMapHopKeys].MaxEntries = hops / uint32(sides)
	spec.Maps[bpf.TCMapPeerShares].MaxEntries = uint32(cpus * (cfg.MaxAddrs + 1))
	spec.Maps[bpf.TCMapNeighbors].MaxEntries = maxNeighbors
	spec.Maps[bpf.TCMapPrefixes].MaxEntries = maxPrefixes
	if cfg.Pairs {
		spec.Maps[bpf.TCMapPairs].MaxEntries = maxPairs
	}
	err = errors.Join(
		spec.Variables[bpf.TCVarRowMask].Set(rowCells(cfg)-1),
		spec.Variables[bpf.TCVarHopMask].Set(hops-1),
		spec.Variables[bpf.TCVarMacMask].Set(macSets-1),
		spec.Variables[bpf.TCVarPeerMask].Set(sets-1),
		spec.Variables[bpf.TCVarPeerAddrs].Set(quota[bpf.TCFarFAR_ADDRESS]),
		spec.Variables[bpf.TCVarPeerRanges].Set(quota[bpf.TCFarFAR_RANGE]),
		spec.Variables[bpf.TCVarFirstRemote].Set(uint32(cfg.MaxAddrs+1)),
	)
	if err != nil {
		return nil, fmt.Errorf("configure tc programs: %w", err)
	}
	return spec, nil
}

func load(name string) (*ebpf.Collection, error) {
	spec, err := bpf.Load(name)
	if err != nil {
		return nil, err
	}
	return ebpf.NewCollection(spec)
}

// sizeAddrTable sizes the tables by slot of an address that both objects declare.
func sizeAddrTable(spec *ebpf.CollectionSpec, cfg Config) {
	slots := 1 + cfg.MaxAddrs + maxPrefixes
	resize(spec.Maps[bpf.TCMapCountedAddrs], slots, uint32(addrSize)+rowCells(cfg)*uint32(cellSize))
	spec.Maps[bpf.TCMapAddrLosses].MaxEntries = uint32(slots)
}

// resize changes an array's size and its value size. No BTF type describes the new value, so the types are dropped.
func resize(m *ebpf.MapSpec, entries int, value uint32) {
	m.MaxEntries, m.ValueSize = uint32(entries), value
	m.Key, m.Value = nil, nil
}

func floorPow2(n uint32) uint32 { return 1 << (bits.Len32(n) - 1) }

// checkMemory refuses to load programs where the maps may fit, but the process would be killed for what it takes beside them:
// the kernel's types, above all.
func checkMemory(what string) error {
	if limit, err := memlimit.FromCgroup(); err == nil && limit < leastMemory {
		return loadError(what, unix.ENOMEM, false)
	}
	return nil
}

// loadError returns an UnsupportedError if missing capabilities, memory or the kernel are the cause.
func loadError(what string, err error, debug bool) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		return refused(what, err)
	}
	if errors.Is(err, unix.ENOMEM) {
		return &model.UnsupportedError{Feature: what, Remedy: "the BPF maps do not fit into the cgroup's memory; in a pod: " + model.MoreMemory, Err: unix.ENOMEM}
	}
	if ve, ok := errors.AsType[*ebpf.VerifierError](err); ok && debug {
		return fmt.Errorf("%s: %w\n%s", what, err, strings.Join(ve.Log, "\n"))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// SetLocal replaces the set of counted local addresses. The counts of a removed
// address stay in Traffic, and resume if it returns, until its slot is reused.
func (e *Engine) SetLocal(local []Local) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	err := e.addrs.setLocal(local, func(slot uint16) {
		e.counters.forgetAddr(slot)
		if e.drops != nil {
			errs = append(errs, e.drops.forgetAddr(slot))
		}
	})
	if e.drops != nil {
		e.drops.counts.forgetRecent()
	}
	return errors.Join(append(errs, err)...)
}

// SetPrefixes replaces the set of remote pod ranges.
func (e *Engine) SetPrefixes(prefixes []netip.Prefix) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.addrs.setPrefixes(prefixes, e.counters.forgetAddr)
}

// Namespace is a network namespace: by its inode, which the kernel gives to the next one when
// it is gone, and by its cookie, which no other ever has; 0 where the kernel does not tell it.
type Namespace struct {
	Inode  uint32
	Cookie uint64
}

// SetNamespaces replaces the set of network namespaces whose drops are counted.
func (e *Engine) SetNamespaces(list []Namespace) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drops == nil {
		return nil
	}
	return e.drops.setNamespaces(list)
}

// Poll reads the counters. First and last times in Traffic are times of polls.
// Where other programs removed ours from links, it attaches again.
func (e *Engine) Poll(now time.Time) error {
	if err := e.lookNow(now); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("poll traffic engine: %w", unix.EBADF)
	}
	e.settle(now)
	err := e.counters.poll(now)
	if e.drops != nil {
		err = errors.Join(err, e.drops.poll(now))
	}
	return err
}

// settle notes that programs which ran at the last poll have ended, so that what
// was taken from them may be reused. It waits for that only where something was.
func (e *Engine) settle(now time.Time) {
	addrs, ranges, links, macs, peers := e.addrs.addrs, e.addrs.ranges, e.links.slots, e.counters.macs, e.counters.peers
	if addrs.leaving || ranges.leaving || links.leaving || len(macs.retiring)+len(peers.retiring) > 0 ||
		e.drops != nil && len(e.drops.counts.retired) > 0 {
		// Where this fails the time between two polls has to be enough.
		_ = quiesce()
	}
	addrs.polled(now)
	ranges.polled(now)
	links.polled(now)
	macs.release()
	peers.release()
}

// ForgetTTLs clears the sets of TTLs, which then hold those seen since.
func (e *Engine) ForgetTTLs() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("forget TTLs: %w", unix.EBADF)
	}
	e.counters.forgetTTLs()
	return nil
}

// MakeRoom frees entries of tables, since an observation may last for days. Of tables that are nearly full:
// counts of addresses and links that were removed before since, and of drops and of ARP and ND messages that were
// not seen after it. Drops and messages of removed addresses and links are freed whether there is room or not
// and, with all, their other counts too: polling costs more with each. A counter that is freed restarts from zero
// when its packets are seen again.
func (e *Engine) MakeRoom(since time.Time, all bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("make room: %w", unix.EBADF)
	}
	e.locked(func() {
		e.gaps = slices.DeleteFunc(e.gaps, func(g *gap) bool { return !g.to.IsZero() && g.to.Before(since) })
	})
	// While the tables still know who was removed.
	errs := []error{e.counters.evictNeighbors(since, e.links)}
	if e.drops != nil {
		errs = append(errs, e.drops.evict(since, func(slot uint16) bool { return e.addrs.addrs.gone(slot, since) }))
	}
	if all || e.counters.crowded() {
		if gone, links := e.addrs.release(since), e.links.slots.release(since); len(gone)+len(links) > 0 {
			e.counters.forget(func(addr, link uint16) bool { return gone[addr] || links[link] })
		}
	}
	e.counters.macs.evict(since)
	e.counters.peers.evict(since)
	return errors.Join(errs...)
}

// Sources reports how much of the traffic is watched.
func (e *Engine) Sources() []model.Source {
	tc := e.source()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drops == nil {
		return []model.Source{tc, {Name: model.SourceDrops, Status: model.Missing, Detail: e.dropsErr.Error()}}
	}
	return []model.Source{tc, {Name: model.SourceDrops, Status: model.OK, Detail: e.drops.detail()}}
}

// Close detaches every program and frees the maps. Every call waits for that, but for what Config.Janitor says.
// Traffic still returns what the last Poll read.
func (e *Engine) Close() error {
	e.closed.Store(true)
	return e.closeAll()
}

func (e *Engine) close() error {
	err := e.detachAll()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drops != nil {
		err = errors.Join(err, e.drops.close())
	}
	e.coll.Close()
	return err
}
