// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// RefusalError is why nvmf_tgt was not started. It is one line.
type RefusalError struct {
	// Reason is one of the constants of api/v1alpha1.
	Reason string `json:"reason"`
	// Message says what is missing, and what mends it.
	Message string `json:"message"`

	err error
}

func refuse(reason, format string, args ...any) *RefusalError {
	err := fmt.Errorf(format, args...)
	return &RefusalError{Reason: reason, Message: strings.Join(strings.Fields(err.Error()), " "), err: errors.Unwrap(err)}
}

func (r *RefusalError) Error() string { return r.Reason + ": " + r.Message }

// Unwrap gives the cause, when there is one.
func (r *RefusalError) Unwrap() error { return r.err }

// The kubelet keeps 4096 bytes of a termination message.
const longestMessage = 3072

// WriteReason writes err to the file that the kubelet reads as the container's termination message, as the
// JSON of a RefusalError. An error that is none goes under reason PodFailed.
func WriteReason(file string, err error) error {
	refusal := &RefusalError{Reason: v1alpha1.ReasonPodFailed, Message: err.Error()}
	errors.As(err, &refusal)
	said := *refusal
	said.Message = text.Clip(said.Message, longestMessage)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // commands have a > in them, and people read this
	if err := encoder.Encode(said); err != nil {
		return err
	}
	// Written in place: the kubelet mounts the file itself, which cannot be replaced.
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write the reason: %w", err)
	}
	return nil
}
