// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/weft-storage/weft/csi-driver/mirror"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/filesystem"
	"github.com/weft-storage/weft/csi-driver/node/internal/keeper"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
	"github.com/weft-storage/weft/internal/header"
)

var (
	errInvalid      = errors.New("invalid request")
	errBusy         = errors.New("busy")
	errPanic        = errors.New("internal error")
	errNotStaged    = errors.New("volume is not staged")
	errOtherVolume  = errors.New("path belongs to another volume")
	errIncompatible = errors.New("volume already exists there with other properties")
	errPublished    = errors.New("volume is published elsewhere on this node")
	errUnknown      = errors.New("no volume there")
	errUncertain    = errors.New("could not be undone")
	errNotAttached  = errors.New("volume is not attached to this machine")
	errUnknownNode  = errors.New("this machine's Node cannot be read")
	errUnread       = errors.New("an object of the volume cannot be read")
	errNotServed    = errors.New("the volume is not served to this node yet")
	errOtherHeader  = errors.New("the header belongs to another volume")
	errEncryption   = errors.New("the volume is not stored as its object says")
	errNotWhole     = errors.New("not all replicas of the volume are in sync")
	errNoKey        = errors.New("the volume's key is not known")
	errMismatch     = errors.New("the objects of the volume do not belong together")
)

// usedError says that a volume's device is still used on this host.
type usedError struct {
	device mapper.Device
	users  []string
}

// Error names the users.
func (e *usedError) Error() string {
	return fmt.Sprintf("%s (%s) is still in use: %s", e.device.Path, e.device.Label, strings.Join(e.users, ", "))
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errInvalid, fmt.Sprintf(format, args...))
}

// mapping from what went wrong to gRPC codes, the first that fits. The kubelet takes Aborted,
// Canceled, DeadlineExceeded and Unavailable as "something may have been done", and unstages later; all others as
// "nothing was done", so a stage that answers with one of those must have undone what it did.
var mapping = []struct {
	err  error
	code codes.Code
}{
	{errUncertain, codes.Aborted},
	{errInvalid, codes.InvalidArgument},
	{errBusy, codes.Aborted},
	{errUnknownNode, codes.Unavailable},
	{errUnread, codes.Unavailable},
	{errNotServed, codes.Unavailable},
	{fabrics.ErrPast, codes.Aborted},
	{errNotAttached, codes.FailedPrecondition},
	{errNotStaged, codes.FailedPrecondition},
	{errOtherVolume, codes.FailedPrecondition},
	{errIncompatible, codes.AlreadyExists},
	{errPublished, codes.FailedPrecondition},
	{errUnknown, codes.NotFound},
	{errOtherHeader, codes.FailedPrecondition},
	{errMismatch, codes.FailedPrecondition},
	{errEncryption, codes.FailedPrecondition},
	{errNoKey, codes.InvalidArgument},
	{errKMS, codes.Unavailable},
	{filesystem.ErrWrongKey, codes.FailedPrecondition},
	{filesystem.ErrUnknownLUKS, codes.FailedPrecondition},
	{errNotWhole, codes.Unavailable},
	{keeper.ErrPast, codes.FailedPrecondition},
	{mirror.ErrNeedsPerson, codes.FailedPrecondition},
	{header.ErrUnusable, codes.FailedPrecondition},
	{filesystem.ErrUnsupported, codes.InvalidArgument},
	{fabrics.ErrInvalid, codes.InvalidArgument},
	{fabrics.ErrShrunk, codes.FailedPrecondition},
	{fabrics.ErrRefused, codes.PermissionDenied},
	{fabrics.ErrUnsupported, codes.FailedPrecondition},
	{fabrics.ErrUnreachable, codes.Unavailable},
	{context.Canceled, codes.Canceled},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{fabrics.ErrNotFound, codes.Unavailable},
	{mapper.ErrNotFound, codes.Unavailable},
	{md.ErrNotFound, codes.Unavailable},
}

// code of an error: the one place that knows.
func code(err error) codes.Code {
	var (
		refused  *filesystem.RefusedError
		tooSmall *filesystem.TooSmallError
		inUse    *fabrics.InUseError
		used     *usedError
		held     *fabrics.HeldUpError
	)
	for _, m := range mapping {
		if errors.Is(err, m.err) {
			return m.code
		}
	}
	switch {
	case errors.As(err, &refused), errors.As(err, &inUse), errors.As(err, &used):
		return codes.FailedPrecondition
	case errors.As(err, &held):
		return codes.Unavailable
	case errors.As(err, &tooSmall):
		return codes.InvalidArgument
	default:
		return codes.Internal
	}
}

// uncertain tells whether the kubelet takes an error as "something may have been done".
func uncertain(err error) bool {
	switch code(err) {
	case codes.Aborted, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	default:
		return false
	}
}

func status(err error) error {
	if err == nil {
		return nil
	}
	return grpcstatus.Error(code(err), err.Error())
}

// busy tells whether a call was refused because another one for its volume is under way.
func busy(err error) bool { return grpcstatus.Code(err) == codes.Aborted }
