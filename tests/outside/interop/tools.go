//go:build tools

// Package tools names what `go mod tidy` is to keep.
package tools

import _ "google.golang.org/grpc/interop/client"
