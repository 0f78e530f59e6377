// Package below finds what is lost below IP: in queues, in NICs and in front of a CPU.
package below
