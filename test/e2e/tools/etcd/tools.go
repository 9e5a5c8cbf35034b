// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package etcd pins the version of etcd that the lab runs.
package etcd

import _ "go.etcd.io/etcd/server/v3"
