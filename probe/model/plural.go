package model

import "fmt"

// Plural is a number of things.
func Plural[N int | uint64](n N, what string) string {
	return Either(n == 1, "1 "+what, fmt.Sprintf("%d %ss", n, what))
}
