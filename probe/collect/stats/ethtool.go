package stats

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lasthop/lasthop/probe/model"
)

// Commands and sizes of include/uapi/linux/ethtool.h that golang.org/x/sys/unix lacks.
const (
	nameSize      = 32 // ETH_GSTRING_LEN
	setStats      = 1  // ETH_SS_STATS
	headNames     = 12 // struct ethtool_gstrings
	headValues    = 8  // struct ethtool_stats
	most          = 1 << 15
	namesAt       = 0
	valuesAt      = namesAt + headNames + 4 + most*nameSize // 8-byte aligned
	requestMemory = valuesAt + headValues + most*8
)

// socket makes requests about the links of the namespace that it was opened in.
type socket struct {
	fd int
	// memory is where the kernel writes. It writes as many counters as there are by then, whatever was asked for
	// (before Linux 6.19), so there is room for more than any NIC has. What nobody touches of it takes no memory.
	memory []byte
}

func open() (*socket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(-1, 0, requestMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &socket{fd, memory}, nil
}

func (s *socket) close() {
	unix.Close(s.fd)
	_ = unix.Munmap(s.memory) // it was mapped
}

// ifreq is struct ifreq with a pointer.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

// ask makes the request that stands at an offset of the memory.
func (s *socket) ask(link string, at int) error {
	r := ifreq{data: unsafe.Pointer(&s.memory[at])}
	copy(r.name[:unix.IFNAMSIZ-1], link)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r)))
	return model.Either[error](errno != 0, errno, nil)
}

// put writes the numbers of a request.
func (s *socket) put(at int, numbers ...uint32) {
	for i, n := range numbers {
		binary.NativeEndian.PutUint32(s.memory[at+4*i:], n)
	}
}

func (s *socket) number(at int) uint32 { return binary.NativeEndian.Uint32(s.memory[at:]) }

func (s *socket) driver(d *model.Device) error {
	info, err := unix.IoctlGetEthtoolDrvinfo(s.fd, d.Link)
	if err != nil {
		return err
	}
	d.Driver = unix.ByteSliceToString(info.Driver[:])
	s.rings(d)
	if info.N_stats == 0 {
		return nil
	}
	if info.N_stats > most/2 {
		return errors.New("implausible number of counters")
	}
	s.put(namesAt, unix.ETHTOOL_GSTRINGS, setStats, info.N_stats)
	if err := s.ask(d.Link, namesAt); err != nil {
		return err
	}
	s.put(valuesAt, unix.ETHTOOL_GSTATS, info.N_stats)
	if err := s.ask(d.Link, valuesAt); err != nil {
		return err
	}
	n := s.number(namesAt + 8)
	if n != s.number(valuesAt+4) || n > most {
		return errors.New("the counters changed while they were read")
	}
	addCounters(d, s.memory[namesAt+headNames:][:n*nameSize], s.memory[valuesAt+headValues:][:n*8])
	return nil
}

// rings sets the sizes of the NIC's queues, where the driver tells them: struct ethtool_ringparam.
func (s *socket) rings(d *model.Device) {
	s.put(namesAt, unix.ETHTOOL_GRINGPARAM, 0, 0, 0, 0, 0, 0, 0, 0)
	if s.ask(d.Link, namesAt) == nil {
		d.RxRingMax, d.TxRingMax = uint64(s.number(namesAt+4)), uint64(s.number(namesAt+16))
		d.RxRing, d.TxRing = uint64(s.number(namesAt+20)), uint64(s.number(namesAt+32))
	}
}

// addCounters adds the driver's counters of losses to a device: names of 32 bytes, and a value
// for each. A counter that the link has as well is the driver's.
func addCounters(d *model.Device, names, values []byte) {
	var folded [nameSize]byte
	sums := map[string]uint64{}
	for i := range min(len(names)/nameSize, len(values)/8) {
		name := fold(folded[:0], names[i*nameSize:][:nameSize])
		value := binary.NativeEndian.Uint64(values[i*8:])
		switch {
		case string(name) == "vf_rx_packets", string(name) == "vf_tx_packets":
			d.VF += value
		case kindOf(string(name)) != "":
			sums[string(name)] += value
		}
	}
	for l := range model.Each(d.Losses) {
		delete(sums, l.Name)
	}
	for name, n := range sums {
		d.Losses = append(d.Losses, model.DeviceLoss{Name: name, Kind: kindOf(name), Total: n})
	}
}

// fold is a driver's name for a counter with * for each number, in dst.
func fold(dst, name []byte) []byte {
	name, _, _ = bytes.Cut(name, []byte{0})
	for _, c := range bytes.TrimSpace(name) {
		if c < '0' || c > '9' {
			dst = append(dst, c)
		} else if len(dst) == 0 || dst[len(dst)-1] != '*' {
			dst = append(dst, '*')
		}
	}
	return dst
}
