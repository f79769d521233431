//go:build tools

// Package tools names what `go mod tidy` is to keep.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
