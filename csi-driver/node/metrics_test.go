// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/csi-driver/node"
	"github.com/weft-storage/weft/csi-driver/node/internal/fabrics"
	"github.com/weft-storage/weft/csi-driver/node/nodetest"
)

// Lines of /sys/class/block/*/stat as Linux 6.12 prints them: of a device of device mapper, and of a path of NVMe.
const (
	topLine  = "     120        0     9600      480     2048        0    16384     4096        3     2500     4600        7        0    81920       24        0        0"
	pathLine = "      60       12     4800      121     1024       40    16384     2047        2     1900     2300        5        0    40960       17       33       66"
)

// metricsOf a suite's volumes, by a scrape. The log has what could not be read.
func (s *suite) metricsOf() (m *node.Metrics, log *strings.Builder) {
	log = &strings.Builder{}
	return node.NewMetrics(s.service, funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{})), log
}

// scrape the values of one kind of metrics.
func scrape(t testing.TB, m *node.Metrics, prefix string) map[string]float64 {
	t.Helper()
	all, err := nodetest.Series(m)
	must(t, err)
	for name := range all {
		if !strings.HasPrefix(name, prefix) {
			delete(all, name)
		}
	}
	return all
}

// values of one metric, with the labels of the suite's volume beside op, if that is not empty.
func ofVolume(metric, op string) string {
	if op != "" {
		op = `op="` + op + `",`
	}
	return metric + `{namespace="shop",node="n1",` + op + `persistentvolumeclaim="orders",target="fast",volume="pvc-1"}`
}

// info is the series that names the device that pods use.
func (s *suite) info() string {
	return strings.Replace(ofVolume("weft_volume_info", ""), "{", `{device="`+s.top().Name+`",`, 1)
}

func ofPath(metric, controller, op, portal, transport string) string {
	if op != "" {
		op = `op="` + op + `",`
	}
	return metric + `{controller="` + controller + `",namespace="shop",node="n1",` + op + `persistentvolumeclaim="orders",portal="` + portal +
		`",replica="pvc-1-r1",target="fast",transport="` + transport + `",volume="pvc-1"}`
}

// top is the device that pods use.
func (s *suite) top() nodetest.MappedDevice {
	s.Helper()
	all, err := s.service.Mapper.Of(volumeUUID)
	must(s, err)
	if len(all) != 1 {
		s.Fatalf("the volume has devices %+v", all)
	}
	return all[0]
}

// named as people know the volume.
func (s *suite) named() {
	s.context.Target, s.context.Claim, s.context.ClaimNamespace = "fast", "orders", "shop"
}

// The device that pods use and each path have what the kernel counts, in Prometheus' units.
func TestMetricsOfAVolume(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	s.overBoth()
	must(t, s.stage(mountCapability("ext4")))
	m, log := s.metricsOf()
	must(t, s.kernel.SetStatistics(s.top().Name, topLine))
	must(t, s.kernel.SetStatistics("nvme0c1n1", pathLine))
	must(t, s.kernel.SetState("nvme0", "connecting"))

	g.Expect(scrape(t, m, "weft_volume_")).To(Equal(map[string]float64{
		ofVolume("weft_volume_operations_total", "read"): 120, ofVolume("weft_volume_operations_total", "write"): 2048, ofVolume("weft_volume_operations_total", "discard"): 7,
		ofVolume("weft_volume_bytes_total", "read"): 9600 * 512, ofVolume("weft_volume_bytes_total", "write"): 16384 * 512, ofVolume("weft_volume_bytes_total", "discard"): 81920 * 512,
		ofVolume("weft_volume_operation_seconds_total", "read"): 0.48, ofVolume("weft_volume_operation_seconds_total", "write"): 4.096,
		ofVolume("weft_volume_operation_seconds_total", "discard"): 0.024,
		ofVolume("weft_volume_operations_in_flight", ""):           3, ofVolume("weft_volume_busy_seconds_total", ""): 2.5, ofVolume("weft_volume_size_bytes", ""): size,
		ofVolume("weft_volume_paths", ""): 2, ofVolume("weft_volume_paths_live", ""): 1, s.info(): 1,
	}))
	paths := scrape(t, m, "weft_path_")
	const rdma, tcp = "10.0.0.1:4421", "10.0.0.1:4420"
	for name, value := range map[string]float64{
		ofPath("weft_path_operations_total", "nvme1", "read", tcp, "TCP"): 60, ofPath("weft_path_operations_total", "nvme1", "write", tcp, "TCP"): 1024,
		ofPath("weft_path_operations_total", "nvme1", "discard", tcp, "TCP"): 5, ofPath("weft_path_operations_total", "nvme1", "flush", tcp, "TCP"): 33,
		ofPath("weft_path_bytes_total", "nvme1", "write", tcp, "TCP"): 16384 * 512, ofPath("weft_path_operation_seconds_total", "nvme1", "flush", tcp, "TCP"): 0.066,
		ofPath("weft_path_operations_in_flight", "nvme1", "", tcp, "TCP"): 2, ofPath("weft_path_live", "nvme1", "", tcp, "TCP"): 1,
		ofPath("weft_path_live", "nvme0", "", rdma, "RDMA"): 0, ofPath("weft_path_operations_total", "nvme0", "write", rdma, "RDMA"): 0,
	} {
		g.Expect(paths).To(HaveKeyWithValue(name, value))
	}
	g.Expect(paths).NotTo(HaveKey(ContainSubstring("reconnects")), "nobody counts them")
	g.Expect(paths).To(HaveLen(2*13), "two paths without reconnects")
	g.Expect(scrape(t, m, "weft_node_")).To(Equal(map[string]float64{
		`weft_node_places{node="n1",part="used"}`: 1, `weft_node_places{node="n1",part="possible"}`: 7, `weft_node_unread_volumes{node="n1"}`: 0,
	}))
	m.WithoutPaths = true
	g.Expect(scrape(t, m, "weft_path_")).To(BeEmpty())
	g.Expect(scrape(t, m, "weft_volume_")).To(HaveLen(15))

	must(t, s.unstage())
	g.Expect(scrape(t, m, "")).To(Equal(map[string]float64{
		`weft_node_places{node="n1",part="used"}`: 0, `weft_node_places{node="n1",part="possible"}`: 7, `weft_node_unread_volumes{node="n1"}`: 0,
	}))
	g.Expect(log.String()).To(BeEmpty())
}

// Without the kernel's multipath, what a controller carries is the namespace's own.
func TestMetricsOfAPathWithoutMultipath(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	must(t, s.kernel.DisableMultipath())
	must(t, s.stage(blockCapability()))
	must(t, s.kernel.SetStatistics("nvme0n1", pathLine))
	m, _ := s.metricsOf()
	g.Expect(scrape(t, m, "weft_path_operations_total")).To(HaveKeyWithValue(ofPath("weft_path_operations_total", "nvme0", "flush", "10.0.0.1:4420", "TCP"), 33.0))
}

// The first connection is none of the reconnects, neither is that of a later controller of the same name.
func TestMetricsCountReconnects(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	ctx, stop := context.WithCancel(t.Context())
	counting := make(chan error, 1)
	host := s.service.Initiator.(*fabrics.Host)
	go func() { counting <- host.CountReconnects(ctx) }()
	g.Eventually(func() bool { _, counted := host.Reconnects("nvme0"); return counted }).Should(BeTrue())
	reconnects := func() float64 {
		m, _ := s.metricsOf()
		value, ok := scrape(t, m, "weft_path_reconnects_total")[ofPath("weft_path_reconnects_total", "nvme0", "", "10.0.0.1:4420", "TCP")]
		g.Expect(ok).To(BeTrue())
		return value
	}
	reconnect := func() {
		must(t, s.kernel.SetState("nvme0", "connecting"))
		must(t, s.kernel.SetState("nvme0", "live"))
	}
	must(t, s.stage(blockCapability()))
	reconnect()
	g.Eventually(reconnects).Should(Equal(1.0))
	reconnect()
	g.Eventually(reconnects).Should(Equal(2.0))
	must(t, s.unstage())
	s.attach()
	must(t, s.stage(blockCapability()))
	reconnect()
	g.Eventually(reconnects).Should(Equal(1.0))
	stop()
	must(t, <-counting)
	m, _ := s.metricsOf()
	g.Expect(scrape(t, m, "weft_path_reconnects_total")).To(BeEmpty())
}

// What one volume has wrong is said, and takes nothing from the others; the log repeats nothing.
func TestMetricsOfWhatCannotBeRead(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	must(t, s.stage(blockCapability()))
	must(t, os.WriteFile(filepath.Join(s.service.Records, "pvc-2.json"), []byte("{"), 0o600))
	m, log := s.metricsOf()
	for range 2 {
		g.Expect(scrape(t, m, "")).To(And(HaveKeyWithValue(`weft_node_unread_volumes{node="n1"}`, 1.0), HaveKey(ofVolume("weft_volume_paths", ""))))
	}
	g.Expect(strings.Count(log.String(), "pvc-2")).To(BeNumerically("<=", 2), log.String())
	g.Expect(strings.Count(log.String(), "\n")).To(Equal(1), log.String())

	must(t, s.kernel.SetStatistics(s.top().Name, "1 2 3"))
	g.Expect(scrape(t, m, "weft_node_unread")).To(HaveKeyWithValue(`weft_node_unread_volumes{node="n1"}`, 2.0))
	g.Expect(log.String()).To(ContainSubstring("3 fields"))
	g.Expect(scrape(t, m, "weft_node_places")).NotTo(HaveKey(ContainSubstring("used")), "it is not known")
}

// A device that lost what it was made of keeps its name in use, and has no figures.
func TestMetricsNameADeviceThatIsLost(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	must(t, s.stage(mountCapability("ext4")))
	must(t, s.publish(mountCapability("ext4"), "pods/0", false))
	m, _ := s.metricsOf()
	first := s.info()
	must(t, s.kernel.Drop("nvme0"))
	g.Expect(scrape(t, m, "weft_volume_")).To(And(HaveKey(first), Not(HaveKey(ofVolume("weft_volume_size_bytes", "")))))

	must(t, s.stage(mountCapability("ext4")))
	got := scrape(t, m, "weft_volume_")
	g.Expect(got).To(And(HaveKey(ofVolume("weft_volume_size_bytes", "")), Not(HaveKey(first))))
	g.Expect(got).To(HaveLen(15))
}

// stuckMapper does not answer until it is released.
type stuckMapper struct {
	node.Mapper
	release chan struct{}
}

func (m stuckMapper) Volumes() ([]nodetest.MappedDevice, error) {
	<-m.release
	return m.Mapper.Volumes()
}

// A kernel that does not answer holds up no scrape beyond its time, nor the next one, and there is one look at a time.
func TestScrapesEndThoughTheKernelHangs(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	s.named()
	must(t, s.stage(blockCapability()))
	release := make(chan struct{})
	s.service.Mapper = stuckMapper{s.service.Mapper, release}
	m, _ := s.metricsOf()
	m.Timeout = 10 * time.Millisecond
	for range 2 {
		g.Expect(scrape(t, m, "")).To(Equal(map[string]float64{`weft_node_unread_volumes{node="n1"}`: 1, `weft_node_places{node="n1",part="possible"}`: 7}))
	}
	close(release)
	m.Timeout = 0
	g.Eventually(func() map[string]float64 { return scrape(t, m, "") }).Should(HaveKey(ofVolume("weft_volume_size_bytes", "")))
}

// A record of an earlier version gets the names that people know its volume by.
func TestRecordsOfAnEarlierVersionGetNames(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	must(t, s.stage(blockCapability()))
	m, _ := s.metricsOf()
	g.Expect(scrape(t, m, "weft_volume_paths{")).To(HaveKey(ContainSubstring(`persistentvolumeclaim="",target=""`)))
	s.named()
	must(t, s.service.NameVolumes(t.Context()))
	g.Expect(scrape(t, m, "weft_volume_paths{")).To(HaveKey(ofVolume("weft_volume_paths", "")))
	delete(s.objects, vol)
	must(t, s.service.NameVolumes(t.Context()))
	g.Expect(scrape(t, m, "weft_volume_paths{")).To(HaveKey(ofVolume("weft_volume_paths", "")))
}

// A call of a volume may write its record meanwhile: the names wait for the next time.
func TestNamesWaitForACallOfTheVolume(t *testing.T) {
	g, s := NewWithT(t), setUp(t)
	must(t, s.stage(mountCapability("ext4")))
	m, _ := s.metricsOf()
	release, ended := s.mounter.Block(s.path("pod")), make(chan error, 1)
	go func() { ended <- s.publish(mountCapability("ext4"), "pod", false) }()
	<-s.kernel.Hanging
	s.named()
	err, during := s.service.NameVolumes(t.Context()), scrape(t, m, "weft_volume_paths{")
	release()
	must(t, <-ended)
	must(t, err)
	g.Expect(during).NotTo(HaveKey(ofVolume("weft_volume_paths", "")))
	must(t, s.service.NameVolumes(t.Context()))
	g.Expect(scrape(t, m, "weft_volume_paths{")).To(HaveKey(ofVolume("weft_volume_paths", "")))
}

// A mirror has its replicas by state, and how far a copy is.
func TestMetricsOfAMirror(t *testing.T) {
	s, mv := setUpPlain(t)
	first, second := s.legs["pvc-1-r1"], s.legs["pvc-1-r2"]
	must(t, s.stage(blockCapability()))
	mv.mirrored(first)
	must(t, s.service.MirrorChanged(t.Context(), vol))
	const some = size / 8
	s.kernel.SyncMax(some)
	mv.add(second, size)
	s.admit(second.name, true)
	m, _ := s.metricsOf()
	const labels = `{namespace="",node="n1",persistentvolumeclaim="",`
	copied := labels + `replica="pvc-1-r2",target="",volume="pvc-1"}`
	state := func(name string) string {
		return `weft_mirror_replicas` + labels + `state="` + name + `",target="",volume="pvc-1"}`
	}
	s.Eventually(func() map[string]float64 { return scrape(t, m, "weft_mirror_") }).Should(And(
		HaveKeyWithValue("weft_mirror_copied_bytes"+copied, float64(some)), HaveKeyWithValue("weft_mirror_copy_size_bytes"+copied, float64(size+v1alpha1.TrailerBytes)),
		HaveKeyWithValue(state("in_sync"), 1.0), HaveKeyWithValue(state("filling"), 1.0), HaveKeyWithValue(state("out"), 0.0),
		HaveKeyWithValue("weft_mirror_read_errors_total"+copied, 0.0), HaveKeyWithValue("weft_mirror_waiting"+labels+`target="",volume="pvc-1"}`, 0.0), HaveLen(9)))
	s.Expect(scrape(t, m, "weft_path_live")).To(HaveLen(2))
	s.kernel.SyncMax(-1)
	s.Eventually(mv.stateOf(second)).Should(Equal(v1alpha1.MemberInSync))
	s.Eventually(func() map[string]float64 { return scrape(t, m, "weft_mirror_") }).Should(And(
		HaveKeyWithValue(state("in_sync"), 2.0), HaveKeyWithValue(state("filling"), 0.0), HaveLen(7)))
	s.hang(first.name)
	s.hang(second.name)
	s.Eventually(func() map[string]float64 { return scrape(t, m, "") }).Should(And(
		HaveKeyWithValue("weft_volume_paths"+labels+`target="",volume="pvc-1"}`, 2.0), HaveKeyWithValue("weft_volume_paths_live"+labels+`target="",volume="pvc-1"}`, 0.0)))
}
