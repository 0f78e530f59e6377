package model

import "fmt"

// UnsupportedError says that this kernel, or these rights, do not allow
// something. Everything that lasthop cannot do for such a reason is told by
// this type.
type UnsupportedError struct {
	// Feature is what cannot be had: "attach tcx programs".
	Feature string
	// Remedy is what would give it: a kernel version, a capability, a
	// command. It may be empty.
	Remedy string
	Err    error
}

func (e *UnsupportedError) Error() string {
	s := e.Feature + ": not allowed here"
	if e.Err != nil {
		s = fmt.Sprintf("%s: %v", e.Feature, e.Err)
	}
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Feature is one thing that the kernel and the rights may or may not allow,
// as `lasthop doctor` lists it.
type Feature struct {
	Name   string
	Status Status
	// Detail is what was found, Remedy what would lift a lack.
	Detail string
	Remedy string
}
