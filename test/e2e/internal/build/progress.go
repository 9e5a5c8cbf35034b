// SPDX-License-Identifier: Apache-2.0

package build

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// heartbeat is how often a step that is still running says so.
const heartbeat = 20 * time.Second

// Progress tells a person what is being done and how long it took. It is safe
// for concurrent use.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

// NewProgress returns a Progress that writes lines to out.
func NewProgress(out io.Writer) *Progress {
	return &Progress{out: out, start: time.Now()}
}

func (p *Progress) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	elapsed := time.Since(p.start)
	_, _ = fmt.Fprintf(p.out, "%3d:%02d  %s\n", int(elapsed.Minutes()), int(elapsed.Seconds())%60, fmt.Sprintf(format, args...))
}

// Note prints one line.
func (p *Progress) Note(format string, args ...any) { p.printf(format, args...) }

// Step runs fn, printing when it starts, every now and then while it runs, and
// when it ends. It returns what fn returns.
func (p *Progress) Step(name string, fn func() error) error {
	p.printf("%s ...", name)
	start := time.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.printf("%s ... still at it, %s", name, time.Since(start).Round(time.Second))
			}
		}
	})
	err := fn()
	close(stop)
	wg.Wait()
	took := time.Since(start).Round(100 * time.Millisecond)
	if err != nil {
		p.printf("%s failed after %s", name, took)
		return err
	}
	p.printf("%s: %s", name, took)
	return nil
}
