// Command containers reads what container engines read, with their own parsers: `file CONTAINERFILE` prints what is in
// it and the warnings of BuildKit's linter, `compose FILE` the project that Compose makes of a file. Both as JSON; a
// file that cannot be read ends it with the reason.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

type stage struct {
	Name, Base string
	Commands   []map[string]any
}

type containerfile struct {
	Stages   []stage
	Warnings []string
}

func file(path string) (any, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	found := containerfile{Warnings: []string{}}
	for _, warning := range parsed.Warnings {
		found.Warnings = append(found.Warnings, warning.Short)
	}
	warn := func(rule, description, _, told string, _ []parser.Range) {
		found.Warnings = append(found.Warnings, fmt.Sprintf("%s: %s (%s)", rule, told, description))
	}
	stages, _, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{Warn: warn}))
	if err != nil {
		return nil, err
	}
	for _, one := range stages {
		made := stage{Name: one.Name, Base: one.BaseName}
		for _, command := range one.Commands {
			made.Commands = append(made.Commands, map[string]any{"Is": command.Name(), "Of": command})
		}
		found.Stages = append(found.Stages, made)
	}
	return found, nil
}

func compose(path string) (any, error) {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithOsEnv)
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

func main() {
	readers := map[string]func(string) (any, error){"file": file, "compose": compose}
	found, err := readers[os.Args[1]](os.Args[2])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
