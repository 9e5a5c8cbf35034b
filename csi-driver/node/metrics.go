// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/internal/mapper"
	"github.com/weft-storage/weft/csi-driver/node/internal/md"
)

// CollectTimeout bounds how long a scrape waits for the kernel, which as a rule answers in milliseconds. Prometheus
// gives up after 10 s by default.
const CollectTimeout = 5 * time.Second

var (
	nodeLabels   = []string{"node"}
	volumeLabels = []string{"persistentvolumeclaim", "namespace", "volume", "target", "node"}
	pathLabels   = []string{"persistentvolumeclaim", "namespace", "volume", "target", "node", "replica", "controller", "transport", "portal"}
	opLabel      = []string{"op"}
)

var (
	nodePlaces = prometheus.NewDesc("weft_node_places",
		"Number of volumes that are attached to the node (used), and that may be, if that is limited (possible).", slices.Concat(nodeLabels, []string{"part"}), nil)
	nodeUnread = prometheus.NewDesc("weft_node_unread_volumes",
		"Number of volumes of which this scrape lacks values; the log says why.", nodeLabels, nil)

	volumeInfo = prometheus.NewDesc("weft_volume_info",
		"1, with what the kernel calls the device that pods use.", slices.Concat(volumeLabels, []string{"device"}), nil)
	volumeOperations = prometheus.NewDesc("weft_volume_operations_total",
		"Number of completed I/Os of the device that pods use.", slices.Concat(volumeLabels, opLabel), nil)
	volumeBytes = prometheus.NewDesc("weft_volume_bytes_total",
		"Number of bytes that I/Os of the device that pods use read, wrote or discarded.", slices.Concat(volumeLabels, opLabel), nil)
	volumeSeconds = prometheus.NewDesc("weft_volume_operation_seconds_total",
		"Sum of the durations of completed I/Os of the device that pods use.", slices.Concat(volumeLabels, opLabel), nil)
	volumeInFlight = prometheus.NewDesc("weft_volume_operations_in_flight",
		"Number of I/Os of the device that pods use that are not completed.", volumeLabels, nil)
	volumeBusy = prometheus.NewDesc("weft_volume_busy_seconds_total",
		"Time in which the device that pods use had at least one I/O in flight.", volumeLabels, nil)
	volumeSize = prometheus.NewDesc("weft_volume_size_bytes",
		"Size of the device that pods use.", volumeLabels, nil)
	volumePaths = prometheus.NewDesc("weft_volume_paths",
		"Number of portals to which the volume should be connected, over all of its replicas.", volumeLabels, nil)
	volumeLivePaths = prometheus.NewDesc("weft_volume_paths_live",
		"Number of these portals to which a connection carries I/O.", volumeLabels, nil)

	pathOperations = prometheus.NewDesc("weft_path_operations_total",
		"Number of I/Os that completed on the path.", slices.Concat(pathLabels, opLabel), nil)
	pathBytes = prometheus.NewDesc("weft_path_bytes_total",
		"Number of bytes that I/Os on the path read, wrote or discarded.", slices.Concat(pathLabels, opLabel), nil)
	pathSeconds = prometheus.NewDesc("weft_path_operation_seconds_total",
		"Sum of the durations of I/Os that completed on the path.", slices.Concat(pathLabels, opLabel), nil)
	pathInFlight = prometheus.NewDesc("weft_path_operations_in_flight",
		"Number of I/Os on the path that are not completed.", pathLabels, nil)
	pathLive = prometheus.NewDesc("weft_path_live",
		"1 if the path carries I/O, 0 if it does not.", pathLabels, nil)
	pathReconnects = prometheus.NewDesc("weft_path_reconnects_total",
		"Number of times that the kernel reconnected the path, since the node plugin started.", pathLabels, nil)

	mirrorReplicas = prometheus.NewDesc("weft_mirror_replicas",
		"Number of replicas of a mirrored volume, by state: in_sync, returning, filling or out.", slices.Concat(volumeLabels, []string{"state"}), nil)
	mirrorWaiting = prometheus.NewDesc("weft_mirror_waiting",
		"1 if the mirror waits for something, which may hold up writes, 0 if it does not.", volumeLabels, nil)
	mirrorCopied = prometheus.NewDesc("weft_mirror_copied_bytes",
		"Up to which of the volume's bytes data was copied to a replica that lacks some.", slices.Concat(volumeLabels, []string{"replica"}), nil)
	mirrorCopySize = prometheus.NewDesc("weft_mirror_copy_size_bytes",
		"Size of the data of a volume with a replica to which data is copied.", slices.Concat(volumeLabels, []string{"replica"}), nil)
	mirrorReadErrors = prometheus.NewDesc("weft_mirror_read_errors_total",
		"Number of reads that the replica answered with an error, and that the kernel corrected from another replica.", slices.Concat(volumeLabels, []string{"replica"}), nil)
)

// memberStates of mirrors as metrics name them.
var memberStates = map[v1alpha1.MirrorMemberState]string{
	v1alpha1.MemberInSync: "in_sync", v1alpha1.MemberReturning: "returning", v1alpha1.MemberFilling: "filling", v1alpha1.MemberOut: "out",
}

// Metrics gives, at each scrape, what the kernel counts of the volumes that are attached to this node. It reads sysfs
// alone, which waits for no device. Should the kernel not answer, a scrape ends in time without the values of those
// volumes that were not read.
type Metrics struct {
	// Service whose volumes they are.
	Service *Service
	// WithoutPaths leaves out what differs by path, which is most of the series.
	WithoutPaths bool
	// Timeout of a scrape; 0 for CollectTimeout.
	Timeout time.Duration
	// Log of what cannot be read, once for each change.
	Log logr.Logger

	// turn is had by the scrape that reads: a channel with room for one.
	turn chan struct{}
	// told of each volume in the log.
	told map[string]string
	// panicked: the log has the stack of a panic already.
	panicked bool
}

// NewMetrics of a service.
func NewMetrics(s *Service, log logr.Logger) *Metrics {
	return &Metrics{Service: s, Log: log, turn: make(chan struct{}, 1), told: map[string]string{}}
}

// Describe implements prometheus.Collector.
func (*Metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		nodePlaces, nodeUnread,
		volumeInfo, volumeOperations, volumeBytes, volumeSeconds, volumeInFlight, volumeBusy, volumeSize, volumePaths, volumeLivePaths,
		pathOperations, pathBytes, pathSeconds, pathInFlight, pathLive, pathReconnects,
		mirrorReplicas, mirrorWaiting, mirrorCopied, mirrorCopySize, mirrorReadErrors,
	} {
		descs <- d
	}
}

// Collect implements prometheus.Collector. When it is not known which volumes there are, the scrape fails: no value is
// not the same as no volumes.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	volumes, err := m.Service.records().volumes()
	if err != nil {
		out <- prometheus.NewInvalidMetric(nodePlaces, fmt.Errorf("list the volumes of this node: %w", err))
		return
	}
	timeout := m.Timeout
	if timeout == 0 {
		timeout = CollectTimeout
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	samples := m.read(volumes, timer.C)
	unread, used := len(volumes)-len(samples), 0
	for _, of := range samples {
		if of.err != nil {
			unread++
		}
		if of.published {
			used++
		}
		for _, metric := range of.metrics {
			out <- metric
		}
	}
	node := m.Service.NodeName
	out <- gauge(nodeUnread, float64(unread), node)
	if unread == 0 {
		out <- gauge(nodePlaces, float64(used), node, "used")
	}
	if m.Service.MaxVolumes > 0 {
		out <- gauge(nodePlaces, float64(m.Service.MaxVolumes), node, "possible")
	}
}

func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func counter(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
}

// sample of a volume.
type sample struct {
	metrics []prometheus.Metric
	// published: the volume is attached for pods, and not for a mover.
	published bool
	err       error
}

// read volumes until the time is up: those that were read by then. A scrape that the kernel holds up keeps its turn, so
// that there is never more than one.
func (m *Metrics) read(volumes []string, up <-chan time.Time) []sample {
	select {
	case m.turn <- struct{}{}:
	case <-up:
		return nil
	}
	samples := make(chan sample, len(volumes))
	go func() {
		defer func() { <-m.turn }()
		defer close(samples)
		var tops map[string]mapper.Device
		err := m.guarded(func() (err error) {
			tops, err = m.tops()
			return err
		})
		for _, volume := range volumes {
			s := sample{err: err}
			if err == nil {
				s.err = m.guarded(func() error {
					s = m.sample(volume, tops)
					return s.err
				})
			}
			m.tell(volume, s.err)
			samples <- s
		}
		maps.DeleteFunc(m.told, func(volume, _ string) bool { return !slices.Contains(volumes, volume) })
	}()
	var all []sample
	for {
		select {
		case s, more := <-samples:
			if !more {
				return all
			}
			all = append(all, s)
		case <-up:
			return all
		}
	}
}

// tell in the log why a volume cannot be read, when that changes.
func (m *Metrics) tell(volume string, err error) {
	text := errorText(err)
	if text != "" && text != m.told[volume] {
		m.Log.Error(err, "Cannot read the metrics of the volume", "volume", volume)
	}
	if text == "" {
		delete(m.told, volume)
	} else {
		m.told[volume] = text
	}
}

// tops are the devices that pods use, by the attachments that they were made for. A lost one counts as long as there is
// no other.
func (m *Metrics) tops() (map[string]mapper.Device, error) {
	all, err := m.Service.Mapper.Volumes()
	tops := map[string]mapper.Device{}
	for _, d := range all {
		if is, known := tops[d.Attachment]; d.Kind != mapper.LUKS && (!known || is.Lost()) {
			tops[d.Attachment] = d
		}
	}
	return tops, err
}

// guarded does something that cannot end the node plugin: the keepers of its mirrors live in the same process.
func (m *Metrics) guarded(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if err = fmt.Errorf("panic: %v", r); !m.panicked {
				m.panicked = true
				m.Log.Error(err, "Cannot read metrics", "stack", string(debug.Stack()))
			}
		}
	}()
	return do()
}

// sample a volume. One that was unstaged meanwhile has nothing.
func (m *Metrics) sample(volume string, tops map[string]mapper.Device) sample {
	at, err := m.Service.records().get(volume)
	if errors.Is(err, fs.ErrNotExist) {
		return sample{}
	}
	if err != nil {
		return sample{err: err}
	}
	labels := []string{at.Claim, at.ClaimNamespace, volume, at.Target, m.Service.NodeName}
	all, errs := []prometheus.Metric{}, []error{}
	add := func(some []prometheus.Metric, err error) {
		all, errs = append(all, some...), append(errs, err)
	}
	if top, ok := tops[at.Attachment]; ok && top.Volume == at.UUID {
		add([]prometheus.Metric{gauge(volumeInfo, 1, append(slices.Clone(labels), top.Name)...)}, nil)
		if !top.Lost() {
			add(m.ofTop(top, labels))
		}
	}
	add(m.ofPaths(at, labels))
	if is := m.Service.mirrors.of(volume); is != nil {
		add(is.metrics(labels))
	}
	return sample{metrics: all, published: !at.Mover, err: errors.Join(errs...)}
}

// ofTop is of the device that pods use.
func (m *Metrics) ofTop(top mapper.Device, labels []string) ([]prometheus.Metric, error) {
	is, err := m.Service.Initiator.Statistics(top.Name)
	if errors.Is(err, fabrics.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := completed(is, volumeOperations, volumeBytes, volumeSeconds, labels)
	return append(all,
		gauge(volumeInFlight, float64(is.InFlight), labels...),
		counter(volumeBusy, is.Busy.Seconds(), labels...),
		gauge(volumeSize, float64(top.SizeBytes), labels...),
	), nil
}

// completed reads, writes and discards of a device.
func completed(is fabrics.Statistics, operations, bytes, seconds *prometheus.Desc, labels []string) []prometheus.Metric {
	var all []prometheus.Metric
	for op, of := range map[string]fabrics.Completed{"read": is.Reads, "write": is.Writes, "discard": is.Discards} {
		labels := append(slices.Clone(labels), op)
		all = append(all, counter(operations, float64(of.Count), labels...), counter(bytes, float64(of.Bytes), labels...), counter(seconds, of.Took.Seconds(), labels...))
	}
	return all
}

// ofPaths is of the connections to a volume's replicas.
func (m *Metrics) ofPaths(at attached, labels []string) ([]prometheus.Metric, error) {
	var all []prometheus.Metric
	listed, reached := 0, 0
	for _, r := range at.connected() {
		paths, err := m.Service.Initiator.Paths(r.id())
		if err != nil {
			return all, fmt.Errorf("read the paths to replica %s: %w", r.Name, err)
		}
		var live []fabrics.Controller
		for _, p := range paths {
			if p.Live() {
				live = append(live, p.Controller)
			}
			if !m.WithoutPaths {
				all = append(all, m.ofPath(p, append(slices.Clone(labels), r.Name))...)
			}
		}
		listed += len(r.Portals)
		reached += len(r.Portals) - len(fabrics.Unreached(r.Portals, live))
	}
	return append(all, gauge(volumePaths, float64(listed), labels...), gauge(volumeLivePaths, float64(reached), labels...)), nil
}

// ofPath is of one connection. What the kernel does not tell now is left out.
func (m *Metrics) ofPath(p fabrics.Path, labels []string) []prometheus.Metric {
	portal := ""
	if p.Address != "" {
		portal = net.JoinHostPort(p.Address, p.Port)
	}
	labels = append(labels, p.Name, string(p.Transport), portal)
	live := 0.0
	if p.Live() {
		live = 1
	}
	all := []prometheus.Metric{gauge(pathLive, live, labels...)}
	if n, counted := m.Service.Initiator.Reconnects(p.Name); counted {
		all = append(all, counter(pathReconnects, float64(n), labels...))
	}
	if p.Statistics == nil {
		return all
	}
	all = append(all, completed(*p.Statistics, pathOperations, pathBytes, pathSeconds, labels)...)
	flush := append(slices.Clone(labels), "flush")
	return append(all,
		counter(pathOperations, float64(p.Flushes.Count), flush...), counter(pathSeconds, p.Flushes.Took.Seconds(), flush...),
		gauge(pathInFlight, float64(p.InFlight), labels...),
	)
}

// metrics of a mirror: what its record says, and what its array does.
func (m *mirrored) metrics(labels []string) ([]prometheus.Metric, error) {
	seen := m.seen()
	waiting := 0.0
	if seen.Err != nil {
		waiting = 1
	}
	all := []prometheus.Metric{gauge(mirrorWaiting, waiting, labels...)}
	with := func(more string) []string { return append(slices.Clone(labels), more) }
	if seen.Record.Epoch > 0 {
		replicas := map[v1alpha1.MirrorMemberState]int{}
		for _, is := range seen.Record.Members {
			replicas[is.State]++
		}
		for state, name := range memberStates {
			all = append(all, gauge(mirrorReplicas, float64(replicas[state]), with(name)...))
		}
	}
	array, state, err := m.arrayOf(m.uuid)
	if errors.Is(err, md.ErrNotFound) {
		return all, nil
	}
	if err != nil {
		return all, err
	}
	errs := map[string]int64{} // a replica that returns may be a member twice, for a moment
	for _, is := range state.Members {
		if name, ours := m.replicas.of(is.UUID); ours {
			errs[name] += is.Errors
		}
	}
	for name, n := range errs {
		all = append(all, counter(mirrorReadErrors, float64(n), with(name)...))
	}
	for name, bytes := range m.copiedIn(state) {
		all = append(all, gauge(mirrorCopied, float64(bytes), with(name)...), gauge(mirrorCopySize, float64(array.DataBytes), with(name)...))
	}
	return all, nil
}

// NameVolumes writes, into the records of an earlier version, the names that people know the volumes by. One that
// cannot be read, or that has a call under way, is left to the next time.
func (s *Service) NameVolumes(ctx context.Context) error {
	volumes, err := s.records().volumes()
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		at, err := s.records().get(volume)
		if unrecorded(err) || err == nil && at.Target != "" {
			continue
		}
		if err != nil {
			return err
		}
		v, err := s.readVolume(ctx, volume)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		if v.Spec.UUID != at.UUID {
			continue
		}
		// It may have been staged for another attachment meanwhile, and a stage writes its record without reading it.
		_, err = call(ctx, s, "naming", volume, func(context.Context) (*struct{}, error) {
			return nil, ignoreMissing(s.editRecord(volume, at.Attachment, func(at *attached) bool { at.named(v); return true }))
		})
		if err != nil && !busy(err) {
			return err
		}
	}
	return nil
}
