// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weft-storage/weft/csi-driver/controller/internal/parameters"
	"github.com/weft-storage/weft/csi-driver/controller/internal/placement"
)

// reason is why a call fails. An error that comes from elsewhere has none.
type reason int

const (
	// invalid: the request can never succeed as it is.
	invalid reason = iota + 1
	// outOfRange: the size asked for cannot be had.
	outOfRange
	// notFound: looked for and not there.
	notFound
	// exists: there already, but otherwise than asked.
	exists
	// inUse: something must be undone first.
	inUse
	// busy: another call is at work on the same volume.
	busy
	// full: there is no room now, and what was asked for stays asked for.
	full
	// waiting: a node has not done its part yet, and may still do it.
	waiting
)

// failure is an error of this service: a reason, and words for the user.
type failure struct {
	reason  reason
	message string
}

func (f *failure) Error() string { return f.message }

func failf(r reason, format string, args ...any) error {
	return &failure{reason: r, message: fmt.Sprintf(format, args...)}
}

// toStatus is the one place where errors become gRPC codes.
//
// External provisioners take Unavailable, Aborted, DeadlineExceeded, Canceled and ResourceExhausted as "a
// volume may have been made: ask again", and the other codes as "none was made". So whatever is not
// known to have changed nothing is Unavailable.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(code(err), err.Error())
}

func code(err error) codes.Code {
	var f *failure
	var params *parameters.Error
	var noNode *placement.NoNodeError
	var noRoom *placement.NoRoomError
	switch {
	case errors.As(err, &f):
		return map[reason]codes.Code{
			invalid: codes.InvalidArgument, outOfRange: codes.OutOfRange, notFound: codes.NotFound, exists: codes.AlreadyExists,
			inUse: codes.FailedPrecondition, busy: codes.Aborted, full: codes.ResourceExhausted, waiting: codes.Unavailable,
		}[f.reason]
	case errors.As(err, &params):
		return codes.InvalidArgument
	case errors.As(err, &noRoom):
		return codes.ResourceExhausted
	case errors.As(err, &noNode):
		return codes.FailedPrecondition
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case refused(err):
		return codes.Internal
	}
	return codes.Unavailable
}

// refused says that the API server has certainly not done what it was asked.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsNotAcceptable(err) || apierrors.IsRequestEntityTooLargeError(err)
}
