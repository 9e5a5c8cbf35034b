// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/config/crd"
)

// none: the schema says nothing of it.
const none = -1

// TestBounds holds the constants to the schema that the API server has: markers are comments to Go.
func TestBounds(t *testing.T) {
	for path, want := range map[string]struct {
		least, most int64
		byDefault   string
	}{
		"nvmftargets spec.transports[].port":                {v1alpha1.MinPort, v1alpha1.MaxPort, fmt.Sprint(v1alpha1.DefaultPort)},
		"nvmfnodes spec.plan.portals[].port":                {v1alpha1.MinPort, v1alpha1.MaxPort, ""},
		"nvmftargets spec.transports[].queueDepth":          {v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth, fmt.Sprint(v1alpha1.DefaultQueueDepth)},
		"nvmfnodes spec.plan.portals[].queueDepth":          {v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth, ""},
		"nvmfnodes spec.plan.spdk.transports[].queueDepth":  {v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth, ""},
		"nvmftargets spec.transports[].maxIOQueues":         {v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues, fmt.Sprint(v1alpha1.DefaultMaxIOQueues)},
		"nvmfnodes spec.plan.portals[].maxIOQueues":         {v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues, ""},
		"nvmfnodes spec.plan.spdk.transports[].maxIOQueues": {v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues, ""},
		"nvmftargets spec.attachments.ioQueues":             {v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues, fmt.Sprint(v1alpha1.DefaultAttachmentIOQueues)},
		"nvmfvolumes spec.connection.ioQueues":              {v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues, fmt.Sprint(v1alpha1.DefaultAttachmentIOQueues)},
		"nvmfvolumes spec.connection.queueDepth":            {v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth, fmt.Sprint(v1alpha1.DefaultQueueDepth)},
		"nvmfvolumes spec.connection.ctrlLossTimeoutSeconds": {
			v1alpha1.CtrlLossTimeoutForever, v1alpha1.MaxCtrlLossTimeoutSeconds, fmt.Sprint(v1alpha1.CtrlLossTimeoutForever)},
		"nvmfreplicas spec.connection.ioQueues":   {v1alpha1.MinIOQueues, v1alpha1.MaxIOQueues, fmt.Sprint(v1alpha1.DefaultAttachmentIOQueues)},
		"nvmfreplicas spec.connection.queueDepth": {v1alpha1.MinQueueDepth, v1alpha1.MaxQueueDepth, fmt.Sprint(v1alpha1.DefaultQueueDepth)},
		"nvmfreplicas spec.connection.ctrlLossTimeoutSeconds": {
			v1alpha1.CtrlLossTimeoutForever, v1alpha1.MaxCtrlLossTimeoutSeconds, fmt.Sprint(v1alpha1.CtrlLossTimeoutForever)},
		"nvmftargets spec.attachments.expected": {1, v1alpha1.MaxAttachments, fmt.Sprint(v1alpha1.DefaultAttachments)},

		"nvmftargets spec.transports[].inCapsuleDataSize":         {none, none, `"4Ki"`},
		"nvmfnodes spec.plan.portals[].inCapsuleDataSize":         {0, v1alpha1.MaxInCapsuleDataSize, ""},
		"nvmfnodes spec.plan.spdk.transports[].inCapsuleDataSize": {0, v1alpha1.MaxInCapsuleDataSize, ""},
		"nvmfnodes spec.plan.spdk.transports[].maxIOSize":         {v1alpha1.MinMaxIOSize, none, ""},

		"nvmftargets spec.transports[].srq.depth":        {v1alpha1.MinSRQDepth, v1alpha1.MaxSRQDepth, ""},
		"nvmfnodes spec.plan.spdk.transports[].srqDepth": {v1alpha1.MinSRQDepth, v1alpha1.MaxSRQDepth, ""},
		"nvmfnodes spec.plan.nvmet.rdma.srqDepth":        {v1alpha1.MinNvmetSRQDepth, v1alpha1.MaxSRQDepth, ""},

		"nvmftargets spec.cores.dynamic.loadLimit":              {1, v1alpha1.MaxLoadLimit, fmt.Sprint(v1alpha1.DefaultLoadLimit)},
		"nvmftargets spec.cores.dynamic.coreLimit":              {1, v1alpha1.MaxCoreLimit, fmt.Sprint(v1alpha1.DefaultCoreLimit)},
		"nvmftargets spec.cores.dynamic.coreBusy":               {1, v1alpha1.MaxCoreBusy, fmt.Sprint(v1alpha1.DefaultCoreBusy)},
		"nvmftargets spec.cores.dynamic.period":                 {none, none, fmt.Sprintf("%q", v1alpha1.DefaultSchedulerPeriod)},
		"nvmfnodes spec.plan.spdk.scheduler.periodMicroseconds": {v1alpha1.MinSchedulerPeriod.Microseconds(), none, ""},
		"nvmftargets spec.buffers.large.count":                  {8, v1alpha1.MaxBuffers, ""},
		"nvmftargets spec.buffers.small.count":                  {64, v1alpha1.MaxBuffers, ""},
		"nvmftargets spec.buffers.large.cachePerCore":           {1, v1alpha1.MaxCachePerCore, ""},
		"nvmftargets spec.buffers.small.cachePerCore":           {1, v1alpha1.MaxCachePerCore, ""},
		"nvmfnodes spec.plan.spdk.memoryBytes":                  {v1alpha1.MinMemoryBytes, none, ""},
		"nvmftargets spec.sockets.priority":                     {0, v1alpha1.MaxSocketPriority, ""},
		"nvmfnodes spec.plan.spdk.transports[].socketPriority":  {0, v1alpha1.MaxSocketPriority, ""},
		"nvmfnodes spec.plan.nvmet.tcp.socketPriority":          {0, v1alpha1.MaxSocketPriority, ""},
		"nvmftargets spec.overProvisioningPercent":              {v1alpha1.NoOverProvisioning, 400, fmt.Sprint(v1alpha1.NoOverProvisioning)},
		"nvmfnodes spec.plan.overProvisioningPercent":           {v1alpha1.NoOverProvisioning, 400, ""},
		"nvmfnodes spec.plan.clusterBytes":                      {v1alpha1.MinClusterSize, v1alpha1.MaxClusterSize, ""},
		"nvmfnodes spec.plan.drives":                            {none, v1alpha1.MaxPlanDrives, ""},
		"nvmfnodes spec.plan.drives[].serial":                   {none, v1alpha1.MaxDriveSerial, ""},
		"nvmfnodes spec.plan.tuning":                            {none, v1alpha1.MaxPlanSettings, ""},
		"nvmfnodes spec.plan.choices[].value":                   {none, v1alpha1.MaxChoiceValue, ""},
		"nvmfnodes spec.plan.choices[].why":                     {none, v1alpha1.MaxChoiceWords, ""},
		"nvmfnodes spec.plan.choices[].warning":                 {none, v1alpha1.MaxChoiceWords, ""},
		"nvmftargets status.notCapable":                         {none, v1alpha1.MaxNotCapable, ""},

		"nvmfnodes status.pools":                                        {none, v1alpha1.MaxPools, ""},
		"nvmfnodes status.portals":                                      {none, v1alpha1.MaxPortals, ""},
		"nvmfreplicas status.portals":                                   {none, v1alpha1.MaxPortals, ""},
		"nvmfvolumes spec.waiting":                                      {none, v1alpha1.MaxWaiting, ""},
		"nvmfvolumes spec.move.waiting":                                 {none, v1alpha1.MaxWaiting, ""},
		"nvmfvolumes spec.recovery.waiting":                             {none, v1alpha1.MaxWaiting, ""},
		"nvmfreplicas spec.description.members":                         {none, v1alpha1.MaxVolumeMembers, ""},
		"nvmfreplicas spec.description.replicas":                        {0, v1alpha1.MaxReplicas, ""},
		"nvmfreplicas spec.description.zones":                           {none, v1alpha1.MaxZones, ""},
		"nvmfreplicas spec.description.zoneLabel":                       {none, v1alpha1.MaxZoneLabel, ""},
		"nvmfreplicas spec.description.members[].name":                  {none, v1alpha1.MaxMemberName, ""},
		"nvmfreplicas spec.description.persistentVolume.reclaimPolicy":  {none, v1alpha1.MaxDescribedWord, ""},
		"nvmfreplicas spec.description.persistentVolume.volumeMode":     {none, v1alpha1.MaxDescribedWord, ""},
		"nvmfreplicas spec.description.persistentVolume.fsType":         {none, v1alpha1.MaxDescribedFSType, ""},
		"nvmfreplicas spec.description.persistentVolume.accessModes":    {none, v1alpha1.MaxDescribedModes, ""},
		"nvmfreplicas spec.description.persistentVolume.accessModes[]":  {none, v1alpha1.MaxDescribedMode, ""},
		"nvmfreplicas spec.description.persistentVolume.mountOptions":   {none, v1alpha1.MaxDescribedOptions, ""},
		"nvmfreplicas spec.description.persistentVolume.mountOptions[]": {none, v1alpha1.MaxDescribedOption, ""},
		"nvmfnodes status.orphans[].description.volumeUUID":             {none, v1alpha1.MaxUUID, ""},
		"nvmfnodes status.orphans[].description.volumeUID":              {none, v1alpha1.MaxDescribedUID, ""},
	} {
		field := schemaOfField(t, path)
		least, most := boundsOf(field)
		byDefault := ""
		if field.Default != nil {
			byDefault = string(field.Default.Raw)
		}
		if least != want.least || most != want.most || byDefault != want.byDefault {
			t.Errorf("%s: the schema says %d to %d, by default %q; the constants %d to %d, %q",
				path, least, most, byDefault, want.least, want.most, want.byDefault)
		}
	}
}

// TestBoundsInRules: what OpenAPI cannot bound is bounded by a rule.
func TestBoundsInRules(t *testing.T) {
	atMost := func(n int64) string { return fmt.Sprintf("q.asInteger() <= %d)", n) }
	for path, want := range map[string][]string{
		"spec.transports[].inCapsuleDataSize": {
			fmt.Sprintf("q.asInteger() <= %d && q.asInteger() %% %d == 0", v1alpha1.MaxInCapsuleDataSize, v1alpha1.InCapsuleDataStep)},
		"spec.devices.clusterSize":       {fmt.Sprintf("in [%d, ", v1alpha1.MinClusterSize), fmt.Sprintf(", %d]", v1alpha1.MaxClusterSize)},
		"spec.transports[].maxIOSize":    {fmt.Sprintf("in [%d, ", v1alpha1.MinMaxIOSize), fmt.Sprintf(", %d]", v1alpha1.MaxMaxIOSize)},
		"spec.sockets.zeroCopyThreshold": {atMost(v1alpha1.MaxZeroCopyThreshold)},
		"spec.sockets.sendBufferSize":    {fmt.Sprintf(">= %d && ", v1alpha1.MinSocketBuffer), atMost(v1alpha1.MaxSocketBuffer)},
		"spec.sockets.receiveBufferSize": {fmt.Sprintf(">= %d && ", v1alpha1.MinSocketBuffer), atMost(v1alpha1.MaxSocketBuffer)},
		"spec.sockets.idlePollPeriod":    {fmt.Sprintf("<= duration('%s')", v1alpha1.MaxIdlePollPeriod)},
		"spec.cores.dynamic.period":      {fmt.Sprintf(">= duration('%s')", v1alpha1.MinSchedulerPeriod), "<= duration('1m')"},
		"spec.memory.limit":              {fmt.Sprintf("quantity('%s')) >= 0", resource.NewQuantity(v1alpha1.MinMemoryBytes, resource.BinarySI))},
		"spec":                           {fmt.Sprintf("t.srq.depth >= %d", v1alpha1.MinNvmetSRQDepth)},
	} {
		var rules strings.Builder
		for _, r := range schemaOfField(t, "nvmftargets "+path).XValidations {
			fmt.Fprintln(&rules, r.Rule)
		}
		for _, part := range want {
			if !strings.Contains(rules.String(), part) {
				t.Errorf("%s: no rule says %q:\n%s", path, part, rules.String())
			}
		}
	}
	for _, path := range []string{"nvmfvolumes spec.size", "nvmfreplicas spec.size"} {
		size := schemaOfField(t, path).XValidations[0].Rule
		if step := fmt.Sprintf("/ %d * %[1]d)", v1alpha1.VolumeSizeStep); !strings.Contains(size, step) {
			t.Errorf("%s: the rule does not say %q: %s", path, step, size)
		}
	}
	if got, want := v1alpha1.MaxSchedulerPeriod.Minutes(), 1.0; got != want {
		t.Errorf("MaxSchedulerPeriod is %g minutes, the rule says 1", got)
	}
}

// boundsOf a number, a list or a text.
func boundsOf(field *apiextensionsv1.JSONSchemaProps) (least, most int64) {
	least, most = none, none
	if field.Minimum != nil {
		least = int64(*field.Minimum)
	}
	for _, n := range []*int64{field.MaxItems, field.MaxLength} {
		if n != nil {
			most = *n
		}
	}
	if field.Maximum != nil {
		most = int64(*field.Maximum)
	}
	return least, most
}

// schemaOfField finds a field by the resource and the path, in which [] stands for any item.
func schemaOfField(t *testing.T, path string) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	name, fields, ok := strings.Cut(path, " ")
	if !ok {
		t.Fatalf("%q is not a resource and a path", path)
	}
	text, err := crd.Files.ReadFile("weft.storage_" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &definition); err != nil {
		t.Fatal(err)
	}
	at := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	for field := range strings.SplitSeq(fields, ".") {
		field, list := strings.CutSuffix(field, "[]")
		next, ok := at.Properties[field]
		if !ok {
			t.Fatalf("%s: the schema has no field %s", path, field)
		}
		at = &next
		if list {
			at = at.Items.Schema
		}
	}
	return at
}
