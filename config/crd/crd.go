// SPDX-License-Identifier: Apache-2.0

// Package crd has the generated CustomResourceDefinitions, for programs that need them without a cluster, and judges
// weft's objects by them as the API server does: the same defaults, the same schema, the same CEL rules, by the
// libraries that the API server itself uses. A test of api/v1alpha1 compares the two on every object of its tables.
package crd

import "embed"

// Files are the CRDs, one in a file.
//
//go:embed *.yaml
var Files embed.FS
