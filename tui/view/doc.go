// Package view draws the screen: pure functions from values, a size and a theme
// to text. It reads no clock and keeps no state.
//
// All untrusted text (names, rules, contents of files) passes clean before it gets into a line, so that it can
// neither move the cursor nor colour the screen, and so that every way to measure text agrees on its width.
package view
