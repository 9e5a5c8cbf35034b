// SPDX-License-Identifier: Apache-2.0

package nvmet

import "time"

// SetCopyPatience to another time.
func (e *Engine) SetCopyPatience(d time.Duration) { e.copyPatience = d }
