package main

import (
	"context"
	"errors"
	"io"
)

// farEnd is missing: its process is one of Unix.
func (a *api) farEnd(context.Context, io.Reader, io.Writer, string) error {
	return errors.ErrUnsupported
}
