// SPDX-License-Identifier: Apache-2.0

package spdkrpc

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Codes that SPDK sends besides negative errnos.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	// codeState is SPDK's own "wrong state", and -EPERM as well.
	codeState = -1
)

// classify gives the class of an error: by its code, and where the code has several meanings by rulings.
func classify(e *Error) error {
	for _, r := range rulings {
		if r.matches(e) {
			return r.class
		}
	}
	if class, ok := codeClass[e.Code]; ok {
		return class
	}
	return ErrUnknown
}

// codeClass of the codes that have one meaning.
var codeClass = map[int]error{
	codeParse:                  ErrInvalid,
	codeInvalidRequest:         ErrInvalid,
	codeMethodNotFound:         ErrInvalid,
	-int(unix.ENOENT):          ErrNotFound,
	-int(unix.ENXIO):           ErrNotFound,
	-int(unix.ENODEV):          ErrNotFound,
	-int(unix.ENOKEY):          ErrNotFound,
	-int(unix.EEXIST):          ErrExists,
	-int(unix.EALREADY):        ErrExists,
	-int(unix.ENOMEM):          ErrNoMemory,
	-int(unix.ENOSPC):          ErrNoSpace,
	-int(unix.EAGAIN):          ErrBusy,
	-int(unix.EBUSY):           ErrBusy,
	-int(unix.EINVAL):          ErrInvalid,
	-int(unix.ENAMETOOLONG):    ErrInvalid,
	-int(unix.ERANGE):          ErrInvalid,
	-int(unix.EOPNOTSUPP):      ErrInvalid,
	-int(unix.EAFNOSUPPORT):    ErrInvalid,
	-int(unix.EPROTONOSUPPORT): ErrInvalid,
}

// ruling gives the class of an error whose code alone does not tell it.
type ruling struct {
	// method of the call, or the beginning of several; empty for all.
	method string
	code   int
	// text of the message; one * stands for anything.
	text  string
	class error
}

func (r ruling) matches(e *Error) bool {
	if r.code != e.Code || !strings.HasPrefix(e.Method, r.method) {
		return false
	}
	before, after, wild := strings.Cut(r.text, "*")
	if !wild {
		return e.Message == r.text
	}
	rest, ok := strings.CutPrefix(e.Message, before)
	return ok && strings.HasSuffix(rest, after)
}

// rulings, in order of precedence: the only place where the text of a message
// matters. SPDK uses -1, -32602 and -32603 for many things, and mostly puts
// strerror's text with the latter two: both glibc's and musl's texts are listed, because
// packages of either exist.
var rulings = []ruling{
	{"", codeState, "Method may only be called *", ErrWrongState},
	// The device has an lvstore, or another module claims it.
	{"bdev_lvol_create_lvstore", codeState, "Operation not permitted", ErrExists},
	// The key's file has another owner than SPDK, or others may read it.
	{"keyring_file_add_key", codeState, "Operation not permitted", ErrInvalid},
	// NVMe options are fixed once a controller is attached.
	{"bdev_nvme_set_options", codeState, "*", ErrWrongState},

	{"", codeInvalidParams, "File exists", ErrExists},
	{"", codeInvalidParams, "No such device", ErrNotFound},
	{"", codeInvalidParams, "No such file or directory", ErrNotFound},
	{"", codeInvalidParams, "No space left on device", ErrNoSpace},
	{"", codeInvalidParams, "Cannot allocate memory", ErrNoMemory},
	{"", codeInvalidParams, "Out of memory", ErrNoMemory},
	{"", codeInvalidParams, "Device or resource busy", ErrBusy},
	{"", codeInvalidParams, "Resource busy", ErrBusy},
	{"", codeInvalidParams, "Resource temporarily unavailable", ErrBusy},
	// Of a call on a subsystem: it is missing, or what to add is there, or what
	// to remove is not, or the parameters are wrong. All four look alike.
	{"nvmf_subsystem_", codeInvalidParams, "Invalid parameters", ErrUnknown},
	{"nvmf_delete_subsystem", codeInvalidParams, "Invalid parameters", ErrUnknown},
	{"nvmf_ns_", codeInvalidParams, "Invalid parameters", ErrUnknown},
	{"bdev_lvol_", codeInvalidParams, "Invalid argument", ErrInvalid},
	// Here the code says nothing: "Input/output error" comes with it too.
	{"bdev_lvol_", codeInvalidParams, "*", ErrUnknown},
	{"", codeInvalidParams, "*", ErrInvalid},

	{"nvmf_create_transport", codeInternal, "Transport type '*' already exists", ErrExists},
	{"nvmf_set_max_subsystems", codeInternal, "Must not call more than once", ErrWrongState},
	// A snapshot that several clones depend on.
	{"bdev_lvol_delete", codeInternal, "Operation not permitted", ErrBusy},
	{"bdev_lvol_delete", codeInternal, "Device or resource busy", ErrBusy},
	{"bdev_lvol_delete", codeInternal, "Resource busy", ErrBusy},
	{"nvmf_delete_subsystem", codeInternal, "Subsystem is already being destroyed.", ErrBusy},
	{"nvmf_delete_subsystem", codeInternal, "Subsystem currently in another state change *", ErrBusy},
	{"nvmf_subsystem_remove_host", codeInternal, "Timeout reached *", ErrBusy},
	{"", codeInternal, "Cannot allocate memory", ErrNoMemory},
	{"", codeInternal, "Out of memory", ErrNoMemory},
	{"", codeInternal, "Memory allocation error", ErrNoMemory},
	{"", codeInternal, "No space left on device", ErrNoSpace},
	{"", codeInternal, "spdk_json_decode_object failed", ErrInvalid},
	// No such scheduler, or wrong limits: SPDK gives strerror the errno with the wrong sign.
	{"framework_set_scheduler", codeInternal, "Unknown error -22", ErrInvalid},
	{"framework_set_scheduler", codeInternal, "No error information", ErrInvalid},

	{"bdev_nvme_get_controllers", -int(unix.EINVAL), "Controller * does not exist", ErrNotFound},
	// The host is not admitted, or the keys do not fit.
	{"nvmf_subsystem_set_keys", -int(unix.EINVAL), "*", ErrUnknown},
}
