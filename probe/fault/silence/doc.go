// Package silence finds what no other kind explains: pairs without a reply, pods that do not reply, drops without a cause.
package silence
