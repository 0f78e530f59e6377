// Package view draws the screen: pure functions of values, a size and a theme
// to text. It reads no clock and keeps nothing.
//
// All text from outside (names, rules, what files held) passes clean before it
// gets into a line, so that it can neither move the cursor nor colour the
// screen, and so that every method of measuring agrees on how wide it is.
package view
