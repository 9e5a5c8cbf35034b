// SPDX-License-Identifier: Apache-2.0

package doing

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/exec"
)

// ErrNoModule says that the kernel has no such module, or cannot load it. Any other error of LoadModules says that this
// is not known.
var ErrNoModule = errors.New("the kernel lacks a module")

// ErrNoProgram says that a program is not in the image.
var ErrNoProgram = errors.New("not found")

// LoadModules in this order, unless what they are for is there already: built in, or loaded before. It is there when
// LoadModules returns nil. Safe for concurrent use, and idempotent.
func LoadModules(ctx context.Context, load func(ctx context.Context, name string) error, there func() (bool, error), names ...string) error {
	if is, err := there(); err != nil || is {
		return err
	}
	var failed error
	for _, name := range names {
		if err := load(ctx, name); err != nil {
			failed = errors.Join(failed, fmt.Errorf("load kernel module %s: %w", name, err))
		}
	}
	is, err := there()
	switch {
	case err != nil:
		return errors.Join(failed, err)
	case is:
		return nil
	case failed == nil:
		return fmt.Errorf("%w: %v were loaded, and it does not do what they are for", ErrNoModule, names)
	}
	// Only the exit status of a program that ended by itself is an answer. One that was killed or could not start says
	// nothing about the module.
	if exit, ok := errors.AsType[exec.ExitError](failed); ok && exit.Exited() {
		return fmt.Errorf("%w: %w", ErrNoModule, failed)
	}
	return failed
}
