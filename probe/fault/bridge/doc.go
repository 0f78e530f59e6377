// Package bridge finds faults of bridges: their ports, forwarding entries, addresses and ebtables rules.
package bridge
