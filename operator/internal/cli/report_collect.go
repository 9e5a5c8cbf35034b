// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const aboutReport = `A report of weft, made by kubectl weft report.

errors.txt      what could not be collected
versions.txt    versions of this program, Kubernetes and weft
status.txt      kubectl weft status; likewise check.txt, pools.txt, drives.txt, snapshots.txt
values.yaml     values of the Helm chart
objects/        objects of weft and Kubernetes
metrics/        POD.txt, the metrics of a pod in Prometheus' text format
kernel/         NODE.log, the lines about storage of the log of a node's kernel
logs/           POD/CONTAINER.log, and CONTAINER.previous.log of a container that ended before

Secrets were not read. What is, or looks like, a secret is replaced by (redacted).
`

// valuesConfigMap of the chart has its values.
const valuesConfigMap = "weft-values"

// kindOfReport is one kind of objects in the bundle.
type kindOfReport struct {
	schema.GroupVersionResource
	// ofWeft: only in weft's namespace.
	ofWeft bool
	// keep tells which objects belong to weft; nil keeps all.
	keep func(s *seen, o *unstructured.Unstructured) bool
	// trim takes away what does not concern weft.
	trim func(o *unstructured.Unstructured)
	// optional: the API server need not know the kind.
	optional bool
}

// seen is what earlier kinds tell about later ones.
type seen struct {
	// claims of PersistentVolumes as NAMESPACE/NAME, and the classes.
	claims, classes map[string]bool
	// pods of weft.
	pods []corev1.Pod
}

// reportedKinds in the order in which they are read. There is no Secret among them.
func reportedKinds() []kindOfReport {
	v1 := func(group, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
	}
	// Pods are the first: how many parts there are depends on them.
	kinds := []kindOfReport{{GroupVersionResource: v1("", "pods"), ofWeft: true, keep: keepPod}}
	for _, name := range []string{"nvmftargets", "nvmfnodes", "nvmfvolumes", "nvmfreplicas", "nvmfmirrors", "nvmfsnapshots"} {
		kinds = append(kinds, kindOfReport{GroupVersionResource: v1alpha1.GroupVersion.WithResource(name)})
	}
	return append(kinds,
		kindOfReport{GroupVersionResource: v1("storage.k8s.io", "storageclasses"), keep: keepClass},
		kindOfReport{GroupVersionResource: v1("", "persistentvolumes"), keep: keepPersistent},
		kindOfReport{GroupVersionResource: v1("", "persistentvolumeclaims"), keep: keepClaim},
		kindOfReport{GroupVersionResource: v1("storage.k8s.io", "volumeattachments"), keep: isOfDriver("spec", "attacher")},
		kindOfReport{GroupVersionResource: v1("storage.k8s.io", "csidrivers"), keep: isOfDriver("metadata", "name")},
		kindOfReport{GroupVersionResource: v1("storage.k8s.io", "csinodes")},
		kindOfReport{GroupVersionResource: v1("storage.k8s.io", "csistoragecapacities"), ofWeft: true},
		kindOfReport{GroupVersionResource: v1("snapshot.storage.k8s.io", "volumesnapshotclasses"), keep: isOfDriver("driver"), optional: true},
		kindOfReport{GroupVersionResource: v1("snapshot.storage.k8s.io", "volumesnapshotcontents"), keep: isOfDriver("spec", "driver"), optional: true},
		kindOfReport{GroupVersionResource: v1("", "nodes"), trim: trimNode},
		kindOfReport{GroupVersionResource: v1("apps", "deployments"), ofWeft: true, keep: isWefts},
		kindOfReport{GroupVersionResource: v1("apps", "daemonsets"), ofWeft: true, keep: isWefts},
		kindOfReport{GroupVersionResource: v1("policy", "poddisruptionbudgets"), ofWeft: true, keep: isWefts},
		kindOfReport{GroupVersionResource: v1("coordination.k8s.io", "leases"), ofWeft: true},
		kindOfReport{GroupVersionResource: v1("", "events"), keep: keepEvent},
	)
}

// isOfDriver tells whether a field is the driver's name.
func isOfDriver(field ...string) func(*seen, *unstructured.Unstructured) bool {
	return func(_ *seen, o *unstructured.Unstructured) bool {
		name, _, _ := unstructured.NestedString(o.Object, field...)
		return name == v1alpha1.DriverName
	}
}

func isWefts(_ *seen, o *unstructured.Unstructured) bool {
	labels := o.GetLabels()
	return labels["app.kubernetes.io/name"] == "weft" || labels["app.kubernetes.io/part-of"] == "weft"
}

func keepClass(s *seen, o *unstructured.Unstructured) bool {
	is := isOfDriver("provisioner")(s, o)
	if is {
		s.classes[o.GetName()] = true
	}
	return is
}

func keepPersistent(s *seen, o *unstructured.Unstructured) bool {
	if !isOfDriver("spec", "csi", "driver")(s, o) {
		return false
	}
	namespace, _, _ := unstructured.NestedString(o.Object, "spec", "claimRef", "namespace")
	name, _, _ := unstructured.NestedString(o.Object, "spec", "claimRef", "name")
	s.claims[namespace+"/"+name] = true
	return true
}

func keepClaim(s *seen, o *unstructured.Unstructured) bool {
	class, _, _ := unstructured.NestedString(o.Object, "spec", "storageClassName")
	key := o.GetNamespace() + "/" + o.GetName()
	if s.classes[class] {
		s.claims[key] = true
	}
	return s.claims[key]
}

func keepPod(s *seen, o *unstructured.Unstructured) bool {
	if !isWefts(s, o) {
		return false
	}
	var pod corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &pod); err == nil {
		s.pods = append(s.pods, pod)
	}
	return true
}

// volumeEvents are the reasons of Events about pods that concern volumes.
var volumeEvents = []string{"FailedAttachVolume", "FailedMount", "FailedMapVolume", "SuccessfulAttachVolume", "FailedScheduling", "VolumeResizeFailed", "VolumeConditionAbnormal"}

// keepEvent about weft's objects and pods, its volumes and claims, Nodes, and about pods that have trouble with
// volumes.
func keepEvent(s *seen, o *unstructured.Unstructured) bool {
	kind, _, _ := unstructured.NestedString(o.Object, "involvedObject", "kind")
	name, _, _ := unstructured.NestedString(o.Object, "involvedObject", "name")
	reason, _, _ := unstructured.NestedString(o.Object, "reason")
	switch kind {
	case "PersistentVolumeClaim":
		return s.claims[o.GetNamespace()+"/"+name]
	case "Node", "PersistentVolume", "VolumeSnapshot", "VolumeSnapshotContent":
		return true
	case "Pod":
		return slices.Contains(volumeEvents, reason) || slices.ContainsFunc(s.pods, func(p corev1.Pod) bool { return p.Namespace == o.GetNamespace() && p.Name == name })
	}
	return strings.HasPrefix(kind, "Nvmf") || strings.HasPrefix(name, "weft-")
}

// trimNode to what concerns weft: images, volumes and what else others keep in a Node's status are not told.
func trimNode(o *unstructured.Unstructured) {
	kept := map[string]any{}
	for _, field := range []string{"capacity", "allocatable", "conditions", "addresses", "nodeInfo"} {
		if value, ok, _ := unstructured.NestedFieldNoCopy(o.Object, "status", field); ok {
			kept[field] = value
		}
	}
	o.Object["status"] = kept
}

// collect everything. What fails is noted in the bundle.
func (r *reporter) collect(ctx context.Context, b *bundle) {
	b.put("README.txt", aboutReport)
	s := &seen{claims: map[string]bool{}, classes: map[string]bool{}}
	kinds := reportedKinds()
	fixed := len(kinds) + 4 // tables, check, versions and values
	b.parts = fixed
	r.collectTables(ctx, b)
	b.step()
	r.collectCheck(ctx, b)
	b.step()
	for _, kind := range kinds {
		r.collectObjects(ctx, b, kind, s)
		b.parts = fixed + r.partsOf(s.pods)
		b.step()
	}
	r.collectVersions(b, s)
	b.step()
	r.collectValues(ctx, b)
	b.step()
	r.collectMetrics(ctx, b, s.pods)
	if r.exec != nil {
		r.collectKernelLogs(ctx, b, s.pods)
	}
	for _, log := range logsOf(s.pods) {
		r.collectLog(ctx, b, log)
		b.step()
	}
	if len(s.pods) == 0 {
		b.fail("logs", fmt.Errorf("no pods of weft found in namespace %s; set it with -n", r.namespace))
	}
}

// partsOf the bundle that are of pods.
func (r *reporter) partsOf(pods []corev1.Pod) int {
	n := len(scraped(pods)) + len(logsOf(pods))
	if r.exec != nil {
		n += len(readers(pods))
	}
	return n
}

// collectTables: what people look at first.
func (r *reporter) collectTables(ctx context.Context, b *bundle) {
	f, err := lookAtFleet(ctx, r.api, r.now)
	if err != nil {
		b.fail("status.txt, pools.txt, drives.txt, snapshots.txt", err)
		return
	}
	wide := &output{format: outputWide}
	var status, pools, drives, snapshots bytes.Buffer
	f.wide = true
	f.lookAround(ctx, r.api)
	f.overview(newTable(&status)) // a buffer takes everything
	err = errors.Join(f.listPools(nil, sortByName).show(&pools, wide), f.listDrives(nil).show(&drives, wide), f.listSnapshots(nil, readContents(ctx, r.api)).show(&snapshots, wide))
	if err != nil {
		b.fail("tables", err)
	}
	b.add("status.txt", status.String())
	b.add("pools.txt", pools.String())
	b.add("drives.txt", drives.String())
	b.add("snapshots.txt", snapshots.String())
}

// collectCheck: what nodes lack.
func (r *reporter) collectCheck(ctx context.Context, b *bundle) {
	const name = "check.txt"
	s, err := r.check(ctx)
	if err != nil {
		b.fail(name, err)
		return
	}
	var text bytes.Buffer // it takes everything
	s.report().print(newTable(&text), true)
	b.add(name, text.String())
}

// collectObjects of one kind into one file, as many as there is room for.
func (r *reporter) collectObjects(ctx context.Context, b *bundle, kind kindOfReport, s *seen) {
	name := "objects/" + kind.Resource + ".yaml"
	resource := r.objects.Resource(kind.GroupVersionResource)
	var out bytes.Buffer
	left := 0
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if kind.ofWeft {
			return resource.Namespace(r.namespace).List(ctx, options)
		}
		return resource.List(ctx, options)
	}
	err := pager.New(list).EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
		o, ok := item.(*unstructured.Unstructured)
		if !ok || kind.keep != nil && !kind.keep(s, o) {
			return nil
		}
		if kind.trim != nil {
			kind.trim(o)
		}
		redactObject(o.Object)
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			return err
		}
		if int64(out.Len()+len(text)) > b.most/objectsShare {
			left++
			return nil
		}
		out.WriteString("---\n")
		out.Write(text)
		return nil
	})
	if err != nil && (!kind.optional || !apierrors.IsNotFound(err)) {
		b.fail(name, err)
	}
	if left > 0 {
		b.fail(name, fmt.Errorf("%d objects were left out: the kind would take more than a quarter of --max-size", left))
	}
	if out.Len() > 0 {
		b.add(name, out.String())
	}
}

// collectVersions of everything that has one.
func (r *reporter) collectVersions(b *bundle, s *seen) {
	server, err := r.server()
	if err != nil {
		b.fail("version of Kubernetes", err)
		server = "unknown"
	}
	lines := []string{"kubectl weft " + r.version, "Kubernetes " + server}
	for _, pod := range s.pods {
		for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			lines = append(lines, fmt.Sprintf("pod %s, container %s: %s (%s), %d restarts", pod.Name, c.Name, c.Image, c.ImageID, c.RestartCount))
		}
	}
	b.add("versions.txt", strings.Join(lines, "\n")+"\n")
}

// collectValues of the chart, which writes them into a ConfigMap. What Helm keeps of a release is in a Secret, with
// everything that was set, also for other charts; and there is none where something else than Helm installs the chart.
func (r *reporter) collectValues(ctx context.Context, b *bundle) {
	const name, key = "values.yaml", "values.yaml"
	stored, err := r.objects.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace(r.namespace).Get(ctx, valuesConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w; charts before this version do not write it: see the arguments in objects/deployments.yaml and daemonsets.yaml", err)
	}
	if err != nil {
		b.fail(name, err)
		return
	}
	text, _, _ := unstructured.NestedString(stored.Object, "data", key)
	var values map[string]any
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		b.fail(name, fmt.Errorf("ConfigMap %s: %s cannot be read", valuesConfigMap, key)) // the error would quote it
		return
	}
	redactObject(values)
	written, err := yaml.Marshal(values)
	if err != nil {
		b.fail(name, err)
		return
	}
	b.add(name, string(written))
}

// containerLog is the log of a container, or of the one that ended before.
type containerLog struct {
	pod       *corev1.Pod
	container string
	previous  bool
}

// logsOf all containers of pods, and of those that ended before.
func logsOf(pods []corev1.Pod) []containerLog {
	var all []containerLog
	for i := range pods {
		for _, c := range slices.Concat(pods[i].Status.InitContainerStatuses, pods[i].Status.ContainerStatuses) {
			all = append(all, containerLog{pod: &pods[i], container: c.Name})
			if c.RestartCount > 0 {
				all = append(all, containerLog{pod: &pods[i], container: c.Name, previous: true})
			}
		}
	}
	return all
}

func (r *reporter) collectLog(ctx context.Context, b *bundle, of containerLog) {
	name := "logs/" + of.pod.Name + "/" + of.container + ".log"
	if of.previous {
		name = strings.TrimSuffix(name, ".log") + ".previous.log"
	}
	if b.left <= 0 || ctx.Err() != nil {
		b.fail(name, errors.New("left out: the report is as large as --max-size allows, or was interrupted"))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	in, err := r.logs(ctx, of.pod.Namespace, of.pod.Name, of.container, of.previous)
	if err != nil {
		b.fail(name, err)
		return
	}
	defer func() { _ = in.Close() }()
	text, err := lastBytes(in, maxLogBytes)
	if err != nil {
		b.fail(name, err) // what was read until then is of use
	}
	b.add(name, text)
}
