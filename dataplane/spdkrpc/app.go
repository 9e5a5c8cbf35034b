// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import "encoding/json"

// SpdkGetVersion asks which SPDK it is. Allowed in every state.
type SpdkGetVersion struct {
	answers[Version]
}

func (SpdkGetVersion) method() string { return "spdk_get_version" }

// Version of SPDK.
type Version struct {
	// Text such as "SPDK v26.05 git sha1 d519b163cb".
	Text   string        `json:"version"`
	Fields VersionFields `json:"fields"`
}

// VersionFields are the parts of a Version: 26, 5, 0 for v26.05.
type VersionFields struct {
	Major  int    `json:"major"`
	Minor  int    `json:"minor"`
	Patch  int    `json:"patch"`
	Suffix string `json:"suffix"`
}

// RPCGetMethods lists the target's methods. Allowed in every state.
type RPCGetMethods struct {
	answers[[]string]
	// Current: only those that the target takes in its present state. With it, framework_start_init is listed until the
	// target is initialized, and never afterwards.
	Current bool `json:"current,omitzero"`
}

func (RPCGetMethods) method() string { return "rpc_get_methods" }

// FrameworkStartInit initializes a target that was started with --wait-for-rpc;
// it is answered when that is done, and calls that need it have to wait for the
// answer. If it fails the target exits, and the call has no answer.
type FrameworkStartInit struct {
	answers[Done]
}

func (FrameworkStartInit) method() string { return "framework_start_init" }

// FrameworkGetConfig asks for the calls that would bring one of SPDK's modules to its present state.
type FrameworkGetConfig struct {
	answers[[]ConfigEntry]
	// Name of the module: "bdev", "nvmf", "sock", "iobuf", "accel", "keyring", "scheduler".
	Name string `json:"name"`
}

func (FrameworkGetConfig) method() string { return "framework_get_config" }

// ConfigEntry is one call of a module's configuration.
type ConfigEntry struct {
	Method string `json:"method"`
	// Params as the call would take them: all of them, defaults included.
	Params json.RawMessage `json:"params"`
}
