package model

import (
	"fmt"
	"strings"
)

// Quantity is a number with its noun, whose plural ends with s.
func Quantity[N int | uint64](n N, noun string) string { return Plural(n, noun, noun+"s") }

// Plural is a number with its noun, whose plural is another word.
func Plural[N int | uint64](n N, one, many string) string {
	return Either(n == 1, "1 "+one, fmt.Sprintf("%d %s", n, many))
}

// Some joins so many of a list at most, and says how many more of what there are.
func Some(list []string, most int, more string) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d %s", strings.Join(list[:most], ", "), len(list)-most, more)
}
