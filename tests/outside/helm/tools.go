//go:build tools

// Package tools names what `go mod tidy` is to keep.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
