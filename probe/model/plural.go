package model

import "fmt"

// Quantity is a number with its noun, whose plural ends with s.
func Quantity[N int | uint64](n N, noun string) string { return Plural(n, noun, noun+"s") }

// Plural is a number with its noun, whose plural is another word.
func Plural[N int | uint64](n N, one, many string) string {
	return Either(n == 1, "1 "+one, fmt.Sprintf("%d %s", n, many))
}
