// Package nat finds faults of address translation: masquerade, SNAT by others, flows older than the rules.
package nat
