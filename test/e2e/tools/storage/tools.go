// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package storage pins what the lab runs Kubernetes' own storage tests with. Its version of Kubernetes is that of
// tools/kubernetes, and its replacements are there for the same reason.
package storage

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
