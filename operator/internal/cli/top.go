// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Orders of kubectl weft top, besides sortByName and sortByUsed.
const (
	sortByOperations = "operations"
	sortByBytes      = "bytes"
	sortByLatency    = "latency"
	sortByQueue      = "queue"
	sortByErrors     = "errors"
)

const (
	// shortestInterval between two samples, and the default: an agent asks its target at most that often, and answers
	// with the same figures until then.
	shortestInterval = 5 * time.Second
	// lookAgain at the objects of the cluster so often. They change less than figures, and can be many.
	lookAgain = 30 * time.Second
)

// aboutTop is what all of these commands have in common.
const aboutTop = `

The figures come from the metrics of weft's agents and node plugins: the command reads them twice, --interval apart, through the API server's
port-forward. It does not need Prometheus. It prints one table. With --watch, it continues until you interrupt it, and refreshes the table in
place if the output is a terminal.

"unknown" is a figure that could not be read; the table or standard error says why. "-" is one that does not exist, such as the latency of
reads when none completed, or that the engine does not count. Errors are shown as a total, with those of the interval as (+N).

Exit codes:
  0  everything is known
  1  error
  3  something is unknown`

func topCommand(at *cluster, run topRunner) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the current I/O of nodes, targets and volumes",
		Long:  `Show the current I/O of nodes, targets and volumes: operations and bytes a second, latency, queues and errors.`,
		Args:  cobra.ArbitraryArgs, // else cobra prints the help, and the exit code is 0
		RunE: func(*cobra.Command, []string) error {
			return errors.New("specify what to show: kubectl weft top nodes, targets or volumes")
		},
	}
	cmd.AddCommand(topNodesCommand(run), topTargetsCommand(run), topVolumesCommand(at, run))
	return cmd
}

// topOptions are the flags of these commands.
type topOptions struct {
	order, weftNamespace string
	orders               []string
	interval             time.Duration
	watch                bool
	format               *output
}

// topFlags of a command, with the orders that it has; the first of them is the default.
func topFlags(cmd *cobra.Command, byDefault string, orders ...string) *topOptions {
	o := &topOptions{order: byDefault, orders: orders, format: outputFlag(cmd)}
	flags := cmd.Flags()
	flags.StringVar(&o.order, "sort-by", o.order, "order: "+strings.Join(orders, ", ")+"; the highest first, what is unknown last")
	flags.DurationVar(&o.interval, "interval", shortestInterval, "time between two samples, at least 5s")
	flags.BoolVarP(&o.watch, "watch", "w", false, "show the figures of each interval until you interrupt the command")
	flags.StringVar(&o.weftNamespace, "weft-namespace", defaultNamespace, "namespace that weft is installed in")
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions(orders, cobra.ShellCompDirectiveNoFileComp))
	return o
}

func (o *topOptions) check() error {
	if !slices.Contains(o.orders, o.order) {
		return fmt.Errorf("--sort-by is %q; must be one of %s", o.order, strings.Join(o.orders, ", "))
	}
	if o.interval < shortestInterval {
		return fmt.Errorf("--interval is %s; must be at least %s, because agents ask their targets no more often", o.interval, shortestInterval)
	}
	return nil
}

// view is what one of the commands shows.
type view struct {
	// check the arguments with the cluster.
	check     func(f *fleet) error
	exporters func(f *fleet) []exporter
	frame     func(f *fleet, s *samples, order string) frame
}

// notThroughout is why the I/O of an interval is not known, though it is counted: it was not at the beginning, or what
// counts started again.
const notThroughout = "not counted throughout the interval: wait for the next sample"

// samples are what was read in two rounds.
type samples struct {
	spans    map[exporter]span
	failures map[exporter]error
}

// frame is one table, or the same for programs.
type frame struct {
	show func(out io.Writer, format *output) error
	// marked rows have something unknown or wrong.
	marked []bool
	// unknown: some figures are.
	unknown bool
}

// framed is a listing, sorted.
func framed[T any](l listing[T], order string, measure func(*T, string) (float64, bool), compare func(*T, *T) int, unknown func(*T) bool) frame {
	slices.SortStableFunc(l.items, func(a, b T) int {
		byName := compare(&a, &b)
		if order == sortByName {
			return byName
		}
		first, known := measure(&a, order)
		second, alsoKnown := measure(&b, order)
		if known != alsoKnown {
			if known {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(second, first), byName)
	})
	f := frame{show: l.show}
	for i := range l.items {
		row := l.row(l.items[i], false)
		is := unknown(&l.items[i])
		f.unknown = f.unknown || is
		f.marked = append(f.marked, is || row[len(row)-1] != "-") // the last column is the problem
	}
	return f
}

// topRunner runs one of the commands.
type topRunner func(cmd *cobra.Command, o *topOptions, v view) error

// top runs one of the commands with this cluster.
func (c *cluster) top(cmd *cobra.Command, o *topOptions, v view) error {
	if err := o.check(); err != nil {
		return err
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	a, err := c.asker(api, o.weftNamespace)
	if err != nil {
		return err
	}
	return newTop(o, v, a, newScreen(cmd.OutOrStdout(), cmd.ErrOrStderr())).run(cmd.Context())
}

// top reads, computes and shows.
type top struct {
	*topOptions
	view view
	*asker
	*screen
	// pause between two samples. It fails when ctx ends.
	pause func(ctx context.Context, d time.Duration) error

	fleet  *fleet
	looked time.Time
	last   map[exporter]*reading
}

func newTop(o *topOptions, v view, a *asker, s *screen) *top {
	return &top{topOptions: o, view: v, asker: a, screen: s, pause: pauseFor, last: map[exporter]*reading{}}
}

// run until one table is shown, or with --watch until the person interrupts it.
func (t *top) run(ctx context.Context) error {
	if _, err := t.round(ctx); err != nil {
		return err
	}
	if t.format.forPeople() {
		t.note(fmt.Sprintf("Counting I/O for %s...", t.interval))
	}
	for {
		if err := t.pause(ctx, t.interval); err != nil {
			return t.interrupted(err)
		}
		s, err := t.round(ctx)
		switch {
		case ctx.Err() != nil:
			return t.interrupted(err)
		case err != nil && !t.watch:
			return err
		case err != nil: // the API server may answer the next time
			t.complain([]string{err.Error()})
			continue
		}
		is := t.view.frame(t.fleet, s, t.order)
		if err := t.showFrame(is, complaints(s.failures)); err != nil {
			return err
		}
		switch {
		case t.watch:
		case is.unknown:
			return &ExitError{CodeUnknown}
		default:
			return nil
		}
	}
}

// interrupted is how a watch ends. Before the first table, it is an error.
func (t *top) interrupted(err error) error {
	if t.watch && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// round asks everybody once. What answered the last time, too, has a span.
func (t *top) round(ctx context.Context) (*samples, error) {
	if t.fleet == nil || t.now().Sub(t.looked) >= lookAgain {
		f, err := lookAtFleet(ctx, t.api, t.now())
		if err != nil {
			return nil, err
		}
		if t.fleet == nil {
			if err := t.view.check(f); err != nil {
				return nil, err
			}
		}
		t.fleet, t.looked = f, t.now()
	}
	got, err := t.ask(ctx, t.view.exporters(t.fleet))
	if err != nil {
		return nil, err
	}
	s := &samples{spans: map[exporter]span{}, failures: got.failures}
	for e, now := range got.readings {
		s.spans[e] = span{from: t.last[e], to: now}
		t.last[e] = now
	}
	return s, nil
}

// showFrame with what could not be asked.
func (t *top) showFrame(is frame, failed []string) error {
	var text bytes.Buffer
	if err := is.show(&text, t.format); err != nil {
		return err
	}
	if !t.format.forPeople() {
		t.complain(failed)
		return t.document(text.Bytes(), t.format.format == outputYAML)
	}
	if !t.watch {
		t.complain(failed)
		return t.print(text.String(), is.marked)
	}
	title := fmt.Sprintf("%s, every %s, by %s", t.now().Format(time.TimeOnly), t.interval, t.order)
	return t.refresh(title, text.String(), is.marked, failed)
}

// complaints about what could not be asked, one a line.
func complaints(failures map[exporter]error) []string {
	var lines []string
	for _, e := range sortedExporters(failures) {
		lines = append(lines, fmt.Sprintf("cannot read the metrics of the %s: %v", e, failures[e]))
	}
	return lines
}

var (
	trafficHead = []string{"READS/S", "WRITES/S", "READ MB/S", "WRITE MB/S", "READ LATENCY", "WRITE LATENCY"}
	trafficMore = []string{"DISCARDS/S"}
)

// columns of a table, with a word for what is not known.
func (t *Traffic) columns(notKnown string) []string {
	if t == nil {
		return slices.Repeat([]string{notKnown}, len(trafficHead))
	}
	return []string{perSecond(t.ReadsPerSecond), perSecond(t.WritesPerSecond), perSecond(t.ReadBytesPerSecond / 1e6), perSecond(t.WriteBytesPerSecond / 1e6),
		latency(t.ReadLatencySeconds), latency(t.WriteLatencySeconds)}
}

// more columns of a wide table.
func (t *Traffic) more(notKnown string) []string {
	if t == nil {
		return []string{notKnown}
	}
	return []string{perSecond(t.DiscardsPerSecond)}
}

func (t *Traffic) operations() float64 {
	return t.ReadsPerSecond + t.WritesPerSecond + t.DiscardsPerSecond
}

// measure by which rows are sorted; false: it is not known.
func (t *Traffic) measure(order string) (float64, bool) {
	if t == nil {
		return 0, false
	}
	switch order {
	case sortByOperations:
		return t.operations(), true
	case sortByBytes:
		return t.ReadBytesPerSecond + t.WriteBytesPerSecond, true
	case sortByLatency:
		return max(value(t.ReadLatencySeconds), value(t.WriteLatencySeconds)), true
	case sortByQueue:
		return t.QueueDepth, true
	}
	return 0, false
}

// perSecond is a number of which three digits matter.
func perSecond(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 10:
		return fmt.Sprintf("%.2f", n)
	case n < 100:
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// latency in the unit that fits; a dash when there is none.
func latency(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	switch ms := *seconds * 1e3; {
	case ms < 1:
		return fmt.Sprintf("%.0f us", ms*1e3)
	case ms < 1e3:
		return perSecond(ms) + " ms"
	default:
		return perSecond(*seconds) + " s"
	}
}

func whole(n *int64, notKnown string) string {
	if n == nil {
		return notKnown
	}
	return fmt.Sprint(*n)
}

func ofAll(some, all *int64, notKnown string) string {
	if some == nil || all == nil {
		return notKnown
	}
	return fmt.Sprintf("%d of %d", *some, *all)
}

// String has the total, and what is new if something is.
func (c Count) String() string {
	if c.New == 0 {
		return fmt.Sprint(c.Total)
	}
	return fmt.Sprintf("%d (+%d)", c.Total, c.New)
}
