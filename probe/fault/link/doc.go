// Package link finds faults of pods' links and of the sizes of packets that links take.
package link
