// SPDX-License-Identifier: Apache-2.0

package spdkrpc

// NvmfCreateSubsystem makes a subsystem that admits nobody yet: weft never lets
// any host in, so the request cannot ask for it. One that exists, and an NQN that SPDK does not like, are both
// ErrUnknown.
type NvmfCreateSubsystem struct {
	answers[Done]
	NQN string `json:"nqn"`
	// Serial number, at most 20 characters.
	Serial string `json:"serial_number,omitzero"`
	// Model, at most 40 characters.
	Model string `json:"model_number,omitzero"`
	// MaxNamespaces is 32 by default, and the largest NSID.
	MaxNamespaces uint32 `json:"max_namespaces,omitzero"`
	// ANAReporting tells hosts of ANA groups: a namespace is in that of its NSID, optimized on every listener.
	ANAReporting bool `json:"ana_reporting,omitzero"`
	// MinControllerID and MaxControllerID are 1 and 0xffef by default.
	MinControllerID uint16 `json:"min_cntlid,omitzero"`
	MaxControllerID uint16 `json:"max_cntlid,omitzero"`
	// MaxDiscardBlocks is the most that hosts may discard at once, 2097152 by default (DMRSL). With 0 there is no
	// limit, which keeps Linux from discarding where the transport masks ONCSDatasetManagement.
	MaxDiscardBlocks *uint32 `json:"dmrsl,omitzero"`
	// MaxDiscardKiB is that limit before 26.05, where dmrsl is ErrInvalid. 0, the default, is no limit.
	MaxDiscardKiB *uint64 `json:"max_discard_size_kib,omitzero" until:"26.01"`
}

func (NvmfCreateSubsystem) method() string { return "nvmf_create_subsystem" }

// NvmfDeleteSubsystem deletes a subsystem and disconnects its hosts. One that is missing is ErrUnknown.
type NvmfDeleteSubsystem struct {
	answers[Done]
	NQN string `json:"nqn"`
}

func (NvmfDeleteSubsystem) method() string { return "nvmf_delete_subsystem" }

// NvmfGetSubsystems lists subsystems: one, or all, with SPDK's own discovery subsystem. One that is missing is
// ErrNotFound.
type NvmfGetSubsystems struct {
	answers[[]Subsystem]
	NQN string `json:"nqn,omitzero"`
}

func (NvmfGetSubsystems) method() string { return "nvmf_get_subsystems" }

// Subtypes of a Subsystem.
const (
	SubtypeNVMe      = "NVMe"
	SubtypeDiscovery = "Discovery"
)

// Subsystem as it is. Whether it reports ANA is not read.
type Subsystem struct {
	NQN             string        `json:"nqn"`
	Subtype         string        `json:"subtype"`
	Listeners       []Address     `json:"listen_addresses"`
	AllowAnyHost    bool          `json:"allow_any_host"`
	Hosts           []AllowedHost `json:"hosts"`
	Serial          string        `json:"serial_number"`
	Model           string        `json:"model_number"`
	MaxNamespaces   uint32        `json:"max_namespaces"`
	MinControllerID uint16        `json:"min_cntlid"`
	MaxControllerID uint16        `json:"max_cntlid"`
	Namespaces      []Namespace   `json:"namespaces"`
}

// AllowedHost may connect.
type AllowedHost struct {
	NQN string `json:"nqn"`
	// Key and ControllerKey are names of keys for in-band authentication; empty without.
	Key           string `json:"dhchap_key"`
	ControllerKey string `json:"dhchap_ctrlr_key"`
}

// Namespace of a subsystem. In a request, of NvmfSubsystemAddNs.
type Namespace struct {
	// NSID from 1; the lowest that is free by default.
	NSID uint32 `json:"nsid,omitzero"`
	// Bdev is a name, alias or UUID in a request, and the name in an answer.
	Bdev string `json:"bdev_name"`
	// NGUID is 32 hexadecimal digits, upper case in an answer; the bdev's UUID by default.
	NGUID string `json:"nguid,omitzero"`
	// UUID is the bdev's by default.
	UUID string `json:"uuid,omitzero"`
}

// NvmfSubsystemAddNs adds a namespace. A bdev can be in one subsystem only. The answer is the NSID.
type NvmfSubsystemAddNs struct {
	answers[uint32]
	NQN       string    `json:"nqn"`
	Namespace Namespace `json:"namespace"`
}

func (NvmfSubsystemAddNs) method() string { return "nvmf_subsystem_add_ns" }

// NvmfSubsystemRemoveNs takes a namespace away, after its I/O in flight.
type NvmfSubsystemRemoveNs struct {
	answers[Done]
	NQN  string `json:"nqn"`
	NSID uint32 `json:"nsid"`
}

func (NvmfSubsystemRemoveNs) method() string { return "nvmf_subsystem_remove_ns" }

// Address families of an Address.
const (
	FamilyIPv4 = "IPv4"
	FamilyIPv6 = "IPv6"
)

// Address where a subsystem can be reached.
type Address struct {
	// Transport is TransportTCP or TransportRDMA.
	Transport string `json:"trtype"`
	// Family is FamilyIPv4 or FamilyIPv6.
	Family  string `json:"adrfam,omitzero"`
	Address string `json:"traddr"`
	// Port in decimal.
	Port string `json:"trsvcid,omitzero"`
}

// NvmfSubsystemAddListener lets a subsystem be reached at an address. Its transport must have been created.
type NvmfSubsystemAddListener struct {
	answers[Done]
	NQN     string  `json:"nqn"`
	Address Address `json:"listen_address"`
}

func (NvmfSubsystemAddListener) method() string { return "nvmf_subsystem_add_listener" }

// ANAState of a listener, for the namespaces of an ANA group.
type ANAState string

// States that weft uses. To hosts, I/O through a listener that is inaccessible ends with that status, and Linux keeps
// it until the state has changed.
const (
	ANAOptimized    ANAState = "optimized"
	ANAInaccessible ANAState = "inaccessible"
)

// NvmfSubsystemListenerSetAnaState of all groups of a subsystem that reports ANA, and tells its hosts. What is under
// way goes on.
type NvmfSubsystemListenerSetAnaState struct {
	answers[Done]
	NQN     string   `json:"nqn"`
	Address Address  `json:"listen_address"`
	State   ANAState `json:"ana_state"`
}

func (NvmfSubsystemListenerSetAnaState) method() string {
	return "nvmf_subsystem_listener_set_ana_state"
}

// NvmfSubsystemSetNsAnaGroup moves a namespace to an ANA group, or to the one that it has, after its I/O in flight.
type NvmfSubsystemSetNsAnaGroup struct {
	answers[Done]
	NQN  string `json:"nqn"`
	NSID uint32 `json:"nsid"`
	// Group from 1, at most what the subsystem has room for in namespaces.
	Group uint32 `json:"anagrpid"`
}

func (NvmfSubsystemSetNsAnaGroup) method() string { return "nvmf_subsystem_set_ns_ana_group" }

// NvmfSubsystemRemoveListener closes an address; hosts that came through it are disconnected.
type NvmfSubsystemRemoveListener struct {
	answers[Done]
	NQN     string  `json:"nqn"`
	Address Address `json:"listen_address"`
}

func (NvmfSubsystemRemoveListener) method() string { return "nvmf_subsystem_remove_listener" }

// NvmfSubsystemAddHost admits a host. One that is admitted already is ErrUnknown.
type NvmfSubsystemAddHost struct {
	answers[Done]
	NQN  string `json:"nqn"`
	Host string `json:"host"`
	// Key is the name of the key that the host must prove it has; ControllerKey of the one that the target proves. They
	// need KeyringFileAddKey before.
	Key           string `json:"dhchap_key,omitzero"`
	ControllerKey string `json:"dhchap_ctrlr_key,omitzero"`
}

func (NvmfSubsystemAddHost) method() string { return "nvmf_subsystem_add_host" }

// NvmfSubsystemRemoveHost stops admitting a host, and is answered when it is disconnected and its I/O in flight is
// over.
type NvmfSubsystemRemoveHost struct {
	answers[Done]
	NQN  string `json:"nqn"`
	Host string `json:"host"`
	// TimeoutMillis to wait for its I/O; the controller's own timeout by default. When it is over: ErrBusy.
	TimeoutMillis uint64 `json:"timeout_ms,omitzero"`
}

func (NvmfSubsystemRemoveHost) method() string { return "nvmf_subsystem_remove_host" }

// NvmfSubsystemSetKeys changes an admitted host's keys, by name. It stays connected. A key that is empty is no longer
// asked for.
type NvmfSubsystemSetKeys struct {
	answers[Done]
	NQN           string `json:"nqn"`
	Host          string `json:"host"`
	Key           string `json:"dhchap_key,omitzero"`
	ControllerKey string `json:"dhchap_ctrlr_key,omitzero"`
}

func (NvmfSubsystemSetKeys) method() string { return "nvmf_subsystem_set_keys" }

// NvmfSubsystemGetControllers lists the controllers that hosts have connected.
// It stops the subsystem's admin commands meanwhile: not for tight loops.
type NvmfSubsystemGetControllers struct {
	answers[[]Controller]
	NQN string `json:"nqn"`
}

func (NvmfSubsystemGetControllers) method() string { return "nvmf_subsystem_get_controllers" }

// Controller is a connection of a host.
type Controller struct {
	ID       uint16 `json:"cntlid"`
	Host     string `json:"hostnqn"`
	HostID   string `json:"hostid"`
	IOQpairs int    `json:"num_io_qpairs"`
}
