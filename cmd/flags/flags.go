// Package flags has the values of flags that lasthop and its plugin for kubectl share:
// both refuse the same mistakes with the same words, and come to the same verdict.
package flags

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"

	"github.com/lasthop/lasthop/probe/catalogue"
	"github.com/lasthop/lasthop/probe/model"
)

// Choice is a flag that takes one of a few words.
type Choice struct {
	Value string
	Of    []string
}

func (c *Choice) String() string { return c.Value }

// Type is what the usage calls the flag's value.
func (c *Choice) Type() string { return strings.Join(c.Of, "|") }

// Set refuses any other word.
func (c *Choice) Set(s string) error {
	if !slices.Contains(c.Of, s) {
		return fmt.Errorf("want one of %s", strings.Join(c.Of, ", "))
	}
	c.Value = s
	return nil
}

// Duration is a flag for a time that is not negative.
type Duration time.Duration

// String is empty for zero, which is no default worth showing.
func (d *Duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Type is what the usage calls the flag's value.
func (d *Duration) Type() string { return "DURATION" }

// Set takes what time.ParseDuration takes.
func (d *Duration) Set(s string) error {
	t, err := time.ParseDuration(s)
	if err != nil || t < 0 {
		return errors.New("want a number with a unit, such as 10s, 2m or 1h30m")
	}
	*d = Duration(t)
	return nil
}

// MaxWindow bounds a Window. Watching for longer is the job of a monitor.
const MaxWindow = 24 * time.Hour

// Window is a flag for how long to observe: more than nothing, at most MaxWindow.
type Window time.Duration

func (w *Window) String() string { return time.Duration(*w).String() }

// Type is what the usage calls the flag's value.
func (w *Window) Type() string { return "DURATION" }

// Set takes what time.ParseDuration takes.
func (w *Window) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return errors.New("want a number with a unit, such as 10s, 2m or 1h30m")
	case d <= 0:
		return errors.New("want more than nothing, such as 10s")
	case d > MaxWindow:
		return fmt.Errorf("want at most %v", MaxWindow)
	}
	*w = Window(d)
	return nil
}

// Prefixes is a repeatable flag for address ranges.
type Prefixes []netip.Prefix

// Type is what the usage calls the flag's value.
func (p *Prefixes) Type() string { return "CIDR" }

func (p *Prefixes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]netip.Prefix(*p)), " ", ","), "[]")
}

// Set adds a range.
func (p *Prefixes) Set(s string) error {
	x, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return errors.New("want a range, such as 10.244.0.0/16 or fd00:10::/56")
	case x != x.Masked():
		return fmt.Errorf("has host bits set; did you mean %s?", x.Masked())
	}
	*p = append(*p, x)
	return nil
}

// Codes is a repeatable flag for finding codes.
type Codes []model.Code

// Type is what the usage calls the flag's value.
func (c *Codes) Type() string { return "CODE" }

func (c *Codes) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]model.Code(*c)), " ", ", "), "[]")
}

// Set adds a code of the catalogue.
func (c *Codes) Set(s string) error {
	page, err := FindPage(s)
	if err != nil {
		return err
	}
	*c = append(*c, page.Code)
	return nil
}

// FindPage looks a code up in the catalogue, in any case. The error for an
// unknown one names the nearest.
func FindPage(code string) (catalogue.Page, error) {
	var known []string
	for _, p := range catalogue.Pages() {
		if strings.EqualFold(string(p.Code), code) {
			return p, nil
		}
		known = append(known, string(p.Code))
	}
	if near := Nearest(code, known); near != "" {
		return catalogue.Page{}, fmt.Errorf("no finding %q: did you mean %s?", code, near)
	}
	return catalogue.Page{}, fmt.Errorf("no finding %q: `lasthop findings` lists them", code)
}

// Nearest is the one of the words that is most like another; empty where none is
// near, or several are equally so. A word counts as near also by its part behind
// a slash, and the nearest if it holds the other.
func Nearest(word string, words []string) string {
	best := len(word)/3 + 1
	var found []string
	fold := strings.ToLower(word)
	for _, w := range words {
		whole := strings.ToLower(w)
		_, short, _ := strings.Cut(whole, "/")
		far := min(levenshtein.ComputeDistance(whole, fold), levenshtein.ComputeDistance(short, fold))
		if len(word) > 2 && strings.Contains(whole, fold) {
			far = 0
		}
		switch {
		case w == "" || far > best:
		case far < best:
			best, found = far, []string{w}
		case !slices.Contains(found, w):
			found = append(found, w)
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}
