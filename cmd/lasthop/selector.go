package main

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/lasthop/lasthop/probe/model"
)

// selector is a flag for a selector of labels in the syntax of kubectl.
type selector struct {
	// Selector is nil, or parsed from text.
	labels.Selector
	text string
}

func (s *selector) Type() string   { return "SELECTOR" }
func (s *selector) String() string { return s.text }

func (s *selector) Set(text string) (err error) {
	s.text = text
	s.Selector, err = labels.Parse(text)
	return err
}

func (s *selector) empty() bool { return s.Selector == nil || s.Selector.Empty() }

// matches reports whether a pod has the labels. One whose labels are not known has
// not.
func (s *selector) matches(p *model.Pod) bool {
	return s.empty() || p.Labels != nil && s.Matches(labels.Set(p.Labels))
}
