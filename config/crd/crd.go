// SPDX-License-Identifier: Apache-2.0

// Package crd has the generated CustomResourceDefinitions, for programs that need them without a cluster.
package crd

import "embed"

// Files are the CRDs, one in a file.
//
//go:embed *.yaml
var Files embed.FS
