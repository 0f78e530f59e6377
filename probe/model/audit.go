package model

import (
	"net/netip"
	"time"
)

// AuditKind is what a destination of an audit is to a pod.
type AuditKind string

// The kinds of destinations.
const (
	AuditGateway  AuditKind = "gateway"
	AuditNames    AuditKind = "name server"
	AuditPod      AuditKind = "pod here"
	AuditNode     AuditKind = "node's pods"
	AuditAPI      AuditKind = "API server"
	AuditOutside  AuditKind = "outside"
	AuditEndpoint AuditKind = "endpoint of a service"
	AuditService  AuditKind = "service"
)

// AuditPair is a connection from a pod that was followed through the tables.
type AuditPair struct {
	Pod, To netip.Addr
	// Port and Proto are 0 where any is meant.
	Port  uint16
	Proto uint8
	Kind  AuditKind
	// Name is the range of a node's pods, or the service's name and port, if it has one.
	Name string
	// Reply: the packets arrive, and the replies do not.
	Reply bool
	// Decision is where packets end, or what is not known, in words.
	Decision string
	// Finding and Cause are those of the finding that says why; empty where none does. Keeper is the program whose policy
	// denies the packets instead.
	Finding Code
	Cause   string
	Keeper  string
}

// Audit is what the tables do with connections that nobody made.
type Audit struct {
	// Pairs is how many were followed.
	Pairs int
	// Cut die, Denied do for a policy, and the fate of Unsure is not known.
	Cut, Denied, Unsure []AuditPair
	// Since is the time of an earlier state, zero where there is none: then Cut have died since, and Mended did then and do
	// no more.
	Since  time.Time
	Mended []AuditPair
}
