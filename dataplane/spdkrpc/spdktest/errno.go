// SPDX-License-Identifier: Apache-2.0

package spdktest

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// The codes of JSON-RPC 2.0, and SPDK's own for a method called in the wrong state, which is also -EPERM.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeMethodNotFound = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeWrongState     = -1
)

const (
	msgInvalidParams = "Invalid parameters"
	msgInternal      = "Internal error"
	msgNoTarget      = "Unable to find a target."
	msgDecode        = "spdk_json_decode_object failed"
)

// strerror is glibc's text of an errno, which is what SPDK puts in its answers; Go's own differs in case and words.
func strerror(e syscall.Errno) string {
	if s, ok := errnoText[e]; ok {
		return s
	}
	return fmt.Sprintf("Unknown error %d", int(e))
}

var errnoText = map[syscall.Errno]string{
	syscall.EPERM:     "Operation not permitted",
	syscall.ENOENT:    "No such file or directory",
	syscall.EIO:       "Input/output error",
	syscall.EAGAIN:    "Resource temporarily unavailable",
	syscall.ENOMEM:    "Cannot allocate memory",
	syscall.EACCES:    "Permission denied",
	syscall.EFAULT:    "Bad address",
	syscall.EBUSY:     "Device or resource busy",
	syscall.EEXIST:    "File exists",
	syscall.ENODEV:    "No such device",
	syscall.ENOTDIR:   "Not a directory",
	syscall.EISDIR:    "Is a directory",
	syscall.EINVAL:    "Invalid argument",
	syscall.ENOSPC:    "No space left on device",
	syscall.EROFS:     "Read-only file system",
	syscall.EILSEQ:    "Invalid or incomplete multibyte or wide character",
	syscall.ENOTSUP:   "Operation not supported",
	syscall.EALREADY:  "Operation already in progress",
	syscall.ETIMEDOUT: "Connection timed out",
	syscall.ENOKEY:    "Required key not available",
}

// errnoOf finds the errno of a failed call on a file; EIO when there is none.
func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, fs.ErrNotExist) {
		return syscall.ENOENT
	}
	return syscall.EIO
}
