// Package flags has the values of flags that lasthop and its plugin for kubectl share:
// both refuse the same mistakes with the same words, and come to the same verdict.
package flags

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
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

// Bytes is a flag for a size.
type Bytes int64

var units = []string{"KiB", "MiB", "GiB", "TiB"}

func (b *Bytes) String() string {
	n, unit := *b, "B"
	for _, u := range units {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatInt(int64(n), 10) + unit
}

// Type is what the usage calls the flag's value.
func (b *Bytes) Type() string { return "SIZE" }

// Set takes a whole number with a unit, as String writes it.
func (b *Bytes) Set(s string) error {
	for i, u := range append([]string{"B"}, units...) {
		number, _ := strings.CutSuffix(s, u)
		if n, err := strconv.ParseInt(number, 10, 32); err == nil && n > 0 && number != s {
			*b = Bytes(n << (10 * i))
			return nil
		}
	}
	return errors.New("want a number with a unit, such as 256MiB or 1GiB")
}

// Time is a flag for a time that is past: of today or yesterday, or with its date.
type Time struct {
	time.Time
	text  string
	dated bool
}

func (t *Time) String() string { return t.text }

// Type is what the usage calls the flag's value.
func (t *Time) Type() string { return "TIME" }

// Set takes a time of day, one with a date, or RFC 3339. Without a zone it is local.
func (t *Time) Set(s string) error {
	for _, layout := range []string{"15:04", "15:04:05", "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05", time.RFC3339} {
		if at, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			*t = Time{at, s, strings.HasPrefix(layout, "2006")}
			return nil
		}
	}
	return errors.New("want a time such as 03:12, 03:12:30 or 2026-01-02T03:12:00Z")
}

// Before is the last such time before now.
func (t *Time) Before(now time.Time) time.Time {
	if t.dated {
		return t.Time
	}
	local := now.In(time.Local)
	out := time.Date(local.Year(), local.Month(), local.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.Local)
	return model.Either(out.After(now), out.AddDate(0, 0, -1), out)
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
		return errors.New("want a duration above zero, such as 10s")
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

func (p *Prefixes) String() string { return strings.Join(p.GetSlice(), ",") }

// GetSlice are the ranges.
func (p *Prefixes) GetSlice() []string { return model.Map(*p, netip.Prefix.String) }

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

func (c *Codes) String() string { return strings.Join(c.GetSlice(), ", ") }

// GetSlice are the codes.
func (c *Codes) GetSlice() []string { return model.Map(*c, text[model.Code]) }

// Set adds a code of the catalogue.
func (c *Codes) Set(s string) error {
	page, err := FindPage(s)
	if err != nil {
		return err
	}
	*c = append(*c, page.Code)
	return nil
}

// FindPage looks a code up in the catalogue, in any case. The error for an unknown one names the nearest.
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
	if alike := model.Filter(known, func(k string) bool { return strings.Contains(strings.ToLower(k), strings.ToLower(code)) }); len(code) > 2 && len(alike) > 0 {
		return catalogue.Page{}, fmt.Errorf("no finding %q: did you mean one of %s?", code, strings.Join(alike, ", "))
	}
	return catalogue.Page{}, fmt.Errorf("no finding %q: `lasthop findings` lists them", code)
}

// Nearest is the one of the words that is most like another; empty where none is near, or several are equally so. A
// word counts as near also by its part behind a slash, and the nearest if it holds the other.
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
