package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/lasthop/lasthop/kind/scenario"
)

// give writes the scenario's files for --nodes, --pods and --routes. The returned function
// removes them.
func (o *observing) give(s *scenario.Scenario) (remove func() error, err error) {
	if !s.Files.Nodes && !s.Files.Pods && len(s.Files.Routes) == 0 {
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "lasthop-files-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the scenario's files: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	write := func(name string, data []byte, err error) (string, error) {
		path := filepath.Join(dir, name+".json")
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			err = fmt.Errorf("write the scenario's file %s: %w", name, err)
		}
		return path, err
	}
	if s.Files.Nodes {
		data, err := s.NodesJSON()
		if o.nodes, err = write("nodes", data, err); err != nil {
			return nil, err
		}
	}
	if s.Files.Pods {
		data, err := s.PodsJSON()
		if o.pods, err = write("pods", data, err); err != nil {
			return nil, err
		}
	}
	for _, k := range s.Files.Routes {
		data, err := s.RoutesJSON(k)
		path, err := write(string(k), data, err)
		if err != nil {
			return nil, err
		}
		o.routes = append(o.routes, path)
	}
	return func() error { return os.RemoveAll(dir) }, nil
}
