// Package traffic counts packets in the kernel: it loads the BPF programs,
// attaches them to links, and reads their maps.
//
// The programs sit at the tc hooks of the node's links and on the kfree_skb
// tracepoint. They change no packet, and nothing of them outlives the process:
// nothing is pinned.
package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/bpf"
	"github.com/lasthop/lasthop/probe/model"
	"github.com/lasthop/lasthop/probe/netns"
)

// Sizes where Config says nothing, and those that it does not tell.
const (
	defaultAddrs = 1024
	defaultLinks = 511
	maxPrefixes  = 512 // Azure's route tables end at 400
	maxNeighbors = 4096
	// maxPairs are those of addresses that are looked at closely, by hop.
	maxPairs = 16384
	maxKinds = 4096 // of drops
	maxNetns = 4096
	// defaultRing takes some 1,000 samples; defaultRate is how many a CPU
	// sends in a second at most.
	defaultRing = 256 << 10
	defaultRate = 128

	// maxLegs and maxPeers are for each CPU, as far as all CPUs together
	// stay within the bytes.
	maxLegs   = 16384
	legBytes  = 64 << 20
	maxPeers  = 8192
	peerBytes = 32 << 20
)

// Config says what an Engine watches, and how much it can count.
type Config struct {
	// NS is the node's namespace. It must stay open as long as the engine.
	NS *netns.NS
	// MaxAddrs and MaxLinks bound how many are counted at a time; 0 is
	// 1024 and 511.
	MaxAddrs, MaxLinks int
	// Closely allows to look at addresses closely. It costs each packet
	// more, also of other addresses.
	Closely bool
	// Debug puts the verifier's log into errors.
	Debug bool

	// eventRate and ringBytes bound the samples of drops, where not 0.
	eventRate, ringBytes uint32
	// legs bounds those, where not 0.
	legs int
}

// Local is an address that is counted: a pod's, or one of the node itself.
type Local struct {
	Addr netip.Addr
	Node bool
	// Close has its packets counted by pair of addresses on every link, for
	// which Config.Closely must be set.
	Close bool
}

// Link is a network interface of the node that packets are counted on.
type Link struct {
	Index int
	Name  string
	// Uplink is set where the link leads off the node: packets are then
	// counted by pair of addresses too.
	Uplink bool
	// NoEthernet is set where packets begin with their IP header (tun,
	// wireguard, ipip).
	NoEthernet bool
}

// Engine holds the loaded programs. Its methods may be called concurrently.
type Engine struct {
	ns     *netns.NS
	closed atomic.Bool
	// closing is done once; closeErr is what came of it.
	closing  sync.Once
	closeErr error

	coll     *ebpf.Collection
	attached *attachments
	drops    *drops // nil where they cannot be watched
	dropsErr error

	mu       sync.Mutex
	subjects *subjects
	links    *links
	counters *counters
}

// Open loads the programs. Where the kernel or the rights forbid it, the error
// is a *model.UnsupportedError. Drops that cannot be watched are no error:
// Sources says so.
func Open(cfg Config) (*Engine, error) {
	if cfg.MaxAddrs == 0 {
		cfg.MaxAddrs = defaultAddrs
	}
	if cfg.MaxLinks == 0 {
		cfg.MaxLinks = defaultLinks
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := checkRights("load tc programs"); err != nil {
		return nil, err
	}
	// Before 5.11 maps count against RLIMIT_MEMLOCK.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, refused("load BPF programs", err)
	}
	if err := probeTCX(cfg.NS); err != nil {
		return nil, err
	}
	spec, err := tcSpec(cfg)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, loadError("load tc programs", err, cfg.Debug)
	}
	e := &Engine{ns: cfg.NS, coll: coll}
	if err := e.open(cfg, spec); err != nil {
		coll.Close()
		return nil, err
	}
	return e, nil
}

func (cfg Config) check() error {
	if cfg.NS == nil {
		return errors.New("open traffic engine: no namespace given")
	}
	// Slots are 16 bits, and the table of links must not fill.
	if n := 1<<16 - maxPrefixes - 2; cfg.MaxAddrs < 0 || cfg.MaxAddrs > n {
		return fmt.Errorf("open traffic engine: %d addresses: at most %d", cfg.MaxAddrs, n)
	}
	if cfg.MaxLinks < 0 || cfg.MaxLinks > linkTable/2 {
		return fmt.Errorf("open traffic engine: %d links: at most %d", cfg.MaxLinks, linkTable/2)
	}
	return nil
}

func (e *Engine) open(cfg Config, spec *ebpf.CollectionSpec) error {
	bss, err := e.coll.Maps[".bss"].Memory()
	if err != nil {
		return fmt.Errorf("map BPF variables: %w", err)
	}
	if e.subjects, err = newSubjects(e.coll, spec, bss, cfg); err != nil {
		return err
	}
	e.links = newLinks(spec, bss, cfg)
	if e.counters, err = newCounters(e.coll, e.subjects); err != nil {
		return err
	}
	e.attached = newAttachments(&tcx{
		ingress: e.coll.Programs[bpf.TCProgLasthopIngress],
		egress:  e.coll.Programs[bpf.TCProgLasthopEgress],
	})
	e.drops, e.dropsErr = openDrops(e.coll, cfg)
	return nil
}

// rowCells is how many legs a subject may have: those of each link, and of
// none.
func rowCells(cfg Config) uint32 { return ceilPow2(uint32(cfg.MaxLinks+1)) * linkLegs }

// rowSize is that of a subject with the numbers of its legs.
func rowSize(cfg Config) uint32 { return subjectSize + rowCells(cfg)*cellSize }

// perCPU is how many values of a size each CPU gets.
func perCPU(most, budget, size, cpus int) uint32 {
	return uint32(min(most, budget/size/cpus))
}

// tcSpec is the tc object, sized.
func tcSpec(cfg Config) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadTC()
	if err != nil {
		return nil, err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	legs := floorPow2(perCPU(cmp.Or(cfg.legs, maxLegs), legBytes, legSize, cpus))
	sets := floorPow2(perCPU(maxPeers, peerBytes, peerSize, cpus) / peerWays)

	sizeSubjects(spec, cfg)
	resize(spec.Maps[bpf.TCMapLegs], cpus, legs*uint32(legSize))
	resize(spec.Maps[bpf.TCMapSpare], 1, legs*spareSize)
	resize(spec.Maps[bpf.TCMapPeers], cpus, sets*peerWays*uint32(peerSize))
	spec.Maps[bpf.TCMapOwners].MaxEntries = legs
	spec.Maps[bpf.TCMapNeighbors].MaxEntries = maxNeighbors
	spec.Maps[bpf.TCMapPrefixes].MaxEntries = maxPrefixes
	if cfg.Closely {
		spec.Maps[bpf.TCMapPairs].MaxEntries = maxPairs
	}
	err = errors.Join(
		spec.Variables[bpf.TCVarRowMask].Set(rowCells(cfg)-1),
		spec.Variables[bpf.TCVarLegMask].Set(legs-1),
		spec.Variables[bpf.TCVarPeerMask].Set(sets-1),
		spec.Variables[bpf.TCVarFirstRemote].Set(uint32(cfg.MaxAddrs+1)),
	)
	if err != nil {
		return nil, fmt.Errorf("configure tc programs: %w", err)
	}
	return spec, nil
}

// sizeSubjects sizes the table of subjects, which both objects hold.
func sizeSubjects(spec *ebpf.CollectionSpec, cfg Config) {
	resize(spec.Maps[bpf.TCMapSubjects], 1+cfg.MaxAddrs+maxPrefixes, rowSize(cfg))
}

// resize makes the values of an array other than C says, which leaves no type
// to describe them.
func resize(m *ebpf.MapSpec, entries int, value uint32) {
	m.MaxEntries, m.ValueSize = uint32(entries), value
	m.Key, m.Value = nil, nil
}

func floorPow2(n uint32) uint32 { return 1 << (bits.Len32(n) - 1) }

func ceilPow2(n uint32) uint32 { return 1 << bits.Len32(n-1) }

// loadError tells rights and kernels that forbid from other failures.
func loadError(what string, err error, debug bool) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) {
		return refused(what, err)
	}
	var ve *ebpf.VerifierError
	if debug && errors.As(err, &ve) {
		return fmt.Errorf("%s: %w\n%s", what, err, strings.Join(ve.Log, "\n"))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// SetLocal replaces the set of counted addresses. What was counted of an
// address that is gone stays in Traffic, and goes on where it comes back,
// until its place is needed.
func (e *Engine) SetLocal(local []Local) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.subjects.setLocal(local, e.counters.forgetSubject)
}

// SetPrefixes replaces the set of remote pod ranges.
func (e *Engine) SetPrefixes(prefixes []netip.Prefix) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.subjects.setPrefixes(prefixes, e.counters.forgetSubject)
}

// SetNamespaces replaces the set of namespaces, by inode, whose drops count.
func (e *Engine) SetNamespaces(inodes []uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drops == nil {
		return nil
	}
	return e.drops.setNamespaces(inodes)
}

// Poll reads what was counted. The first and last times of Traffic are those
// of polls.
func (e *Engine) Poll(now time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("poll traffic engine: %w", unix.EBADF)
	}
	e.subjects.polled(now)
	e.links.slots.polled(now)
	err := e.counters.poll(now)
	if e.drops != nil {
		err = errors.Join(err, e.drops.poll(now))
	}
	return err
}

// ForgetTTLs begins the sets of TTLs anew: they are those seen since.
func (e *Engine) ForgetTTLs() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("forget TTLs: %w", unix.EBADF)
	}
	return e.counters.forgetTTLs()
}

// MakeRoom forgets, where a table is nearly full, what was counted of addresses
// and links that left before then, and kinds of drops and of ARP and ND messages
// that were not seen since: an observation may go on for days. What is forgotten
// counts from zero when it is seen again.
func (e *Engine) MakeRoom(since time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed.Load() {
		return fmt.Errorf("make room: %w", unix.EBADF)
	}
	var errs []error
	if e.counters.crowded() {
		gone, links := e.subjects.release(since), e.links.slots.release(since)
		if len(gone)+len(links) > 0 {
			errs = append(errs, e.counters.forget(func(subject, link uint16) bool { return gone[subject] || links[link] }))
		}
	}
	errs = append(errs, e.counters.shedNeighbors(since))
	if e.drops != nil {
		errs = append(errs, e.drops.shed(since))
	}
	return errors.Join(errs...)
}

// AttachMode names the mechanism that programs are attached by.
func (e *Engine) AttachMode() string { return e.attached.by.mode() }

// Sources says how much of the traffic is watched.
func (e *Engine) Sources() []model.Source {
	tc := e.attached.source()
	e.mu.Lock()
	defer e.mu.Unlock()
	drops := model.Source{Name: model.SourceDrops, Status: model.Missing}
	if e.drops == nil {
		drops.Detail = e.dropsErr.Error()
	} else {
		drops.Status, drops.Detail = model.OK, e.drops.detail()
	}
	return []model.Source{tc, drops}
}

// Close detaches every program and frees the maps; every call waits until that
// is done. Traffic still tells what the last Poll read.
func (e *Engine) Close() error {
	e.closed.Store(true)
	e.closing.Do(func() { e.closeErr = e.close() })
	return e.closeErr
}

func (e *Engine) close() error {
	err := e.attached.close()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drops != nil {
		err = errors.Join(err, e.drops.close())
	}
	e.coll.Close()
	return err
}
