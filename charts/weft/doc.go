// SPDX-License-Identifier: Apache-2.0

// Package weft is the Helm chart. Its tests render it, and apply it to a real API server.
package weft
