package serve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lasthop/lasthop/cmd/flags"
	"github.com/lasthop/lasthop/probe/model"
)

// args is the command line of a tool, and how long it watches. Inputs become whole words, and
// names stand behind "--", so that none is taken for a flag.
func (s *Server) args(tool string, in input) (args []string, window time.Duration, err error) {
	window = 10 * time.Second
	if in.Window != "" {
		var w flags.Window
		if err := w.Set(in.Window); err != nil || time.Duration(w) > longest {
			return nil, 0, fmt.Errorf("window %q: want 1s to %v", in.Window, longest)
		}
		window = time.Duration(w)
	}
	args = append([]string{tool, "--output=mcp"}, s.Flags(tool)...)
	for _, f := range [][2]string{{"for", in.Window}, {"to", in.To}, {"last", in.Last}, {"at", in.At}} {
		if f[1] != "" {
			args = append(args, "--"+f[0]+"="+f[1])
		}
	}
	args = append(args, model.Map(in.Only, func(code string) string { return "--only=" + code })...)
	if in.Active {
		args = append(args, "--active")
	}
	if tool == "replay" {
		file, err := recording(in.Path)
		return append(args, "--", file), 0, err
	}
	words, err := s.words(tool, in, &args)
	return append(append(args, "--"), words...), window, err
}

// words name what the tool is about.
func (s *Server) words(tool string, in input, args *[]string) ([]string, error) {
	if s.Place != Cluster {
		return append(in.Pods, strings.Fields(in.From)...), nil
	}
	if tool == "explain" {
		if namespace, _, is := strings.Cut(in.From, "/"); is {
			*args = append(*args, "--namespace="+namespace)
		}
		return []string{"pod/" + in.From}, nil
	}
	words := model.Map(in.Nodes, func(n string) string { return "node/" + n })
	words = append(words, model.Map(in.Pods, func(p string) string { return "pod/" + p })...)
	if in.All && len(words) > 0 {
		return nil, errors.New("all excludes pods and nodes")
	}
	if len(words) == 0 {
		*args = append(*args, "--all")
	}
	return words, nil
}

// recording is a regular file: nothing that a read would change or wait for, such as the stream of this protocol.
func recording(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("the recording: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("the recording %s: want a file", path)
	}
	return path, nil
}
