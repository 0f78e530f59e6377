package model

import "fmt"

// UnsupportedError is returned for everything that lasthop cannot do because of this kernel or missing privileges.
type UnsupportedError struct {
	// Feature is what failed: "attach tcx programs".
	Feature string
	// Remedy is what would help: a kernel version, a capability, a command. It may be empty.
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

// MoreMemory is the remedy where a cgroup's limit is too low to watch packets.
const MoreMemory = "resources.limits.memory of 64Mi or more"

func (e *UnsupportedError) Unwrap() error { return e.Err }

// Feature is the result of one check of `lasthop doctor`.
type Feature struct {
	Name   string
	Status Status
	// Detail is what was found, Remedy what would make a missing feature work.
	Detail, Remedy string
}
