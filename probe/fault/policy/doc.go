// Package policy finds what netfilter rules, connection tracking and BPF programs drop.
package policy
