// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestParseAcceptsWhatIsDocumented(t *testing.T) {
	for name, tc := range map[string]struct {
		in   map[string]string
		want Parameters
	}{
		"only the target": {
			map[string]string{Target: "fast"}, Parameters{Target: "fast"},
		},
		"everything": {
			map[string]string{
				Target: "fast", Transport: "RDMA", IOQueues: "8", QueueDepth: "1024", CtrlLossTimeout: "600", FSType: "xfs",
				pvName: "pvc-1", pvcName: "data", pvcNamespace: "shop",
			},
			Parameters{
				Target: "fast", Connection: v1alpha1.Connection{Transports: rdma, IOQueues: 8, QueueDepth: 1024, CtrlLossTimeoutSeconds: 600}, FSType: "xfs",
				PVName: "pvc-1", PVCName: "data", PVCNamespace: "shop",
			},
		},
		"both transports":                {map[string]string{Target: "t", Transport: "RDMA,TCP"}, Parameters{Target: "t", Connection: v1alpha1.Connection{Transports: rdmaAndTCP}}},
		"both transports, the other way": {map[string]string{Target: "t", Transport: "TCP, RDMA"}, Parameters{Target: "t", Connection: v1alpha1.Connection{Transports: rdmaAndTCP}}},
		"limits": {
			map[string]string{Target: "t", IOPS: "3000", Bandwidth: "1Gi", ReadBandwidth: "1048576", WriteBandwidth: "7Mi"},
			Parameters{Target: "t", QoS: &v1alpha1.VolumeQoS{IOPS: new(int64(3000)), BandwidthMiBps: new(int64(1024)), ReadBandwidthMiBps: new(int64(1)), WriteBandwidthMiBps: new(int64(7))}},
		},
		"the largest limits": {
			map[string]string{Target: "t", IOPS: "100000000", Bandwidth: "1Ti"},
			Parameters{Target: "t", QoS: &v1alpha1.VolumeQoS{IOPS: new(int64(v1alpha1.QoSMaxIOPS)), BandwidthMiBps: new(int64(v1alpha1.QoSMaxBandwidthMiBps))}},
		},
		"lower bounds": {
			map[string]string{Target: "t", IOQueues: "1", QueueDepth: "16", CtrlLossTimeout: "10"},
			Parameters{Target: "t", Connection: v1alpha1.Connection{IOQueues: 1, QueueDepth: 16, CtrlLossTimeoutSeconds: 10}},
		},
		"upper bounds": {
			map[string]string{Target: "t", IOQueues: "127", QueueDepth: "1024", CtrlLossTimeout: "24h"},
			Parameters{Target: "t", Connection: v1alpha1.Connection{IOQueues: 127, QueueDepth: 1024, CtrlLossTimeoutSeconds: 86400}},
		},
		"a duration": {map[string]string{Target: "t", CtrlLossTimeout: "10m30s"}, Parameters{Target: "t", Connection: v1alpha1.Connection{CtrlLossTimeoutSeconds: 630}}},
		"where the volumes lie": {
			map[string]string{Target: "t", DeviceClass: "qlc", Zones: "b,a", ZoneLabel: "example.com/rack", Placement: "PreferSameNode"},
			Parameters{Target: "t", DeviceClass: "qlc", Zones: []string{"a", "b"}, ZoneLabel: "example.com/rack", Placement: PreferSameNode},
		},
		"a zone label for replicas":      {map[string]string{Target: "t", ZoneLabel: "rack", Replicas: "2"}, Parameters{Target: "t", ZoneLabel: "rack", Replicas: 2}},
		"a zone label for the placement": {map[string]string{Target: "t", ZoneLabel: "rack", Placement: "PreferSameZone"}, Parameters{Target: "t", ZoneLabel: "rack", Placement: PreferSameZone}},
		"spread":                         {map[string]string{Target: "t", Placement: "Spread"}, Parameters{Target: "t", Placement: Spread}},
		"for ever":                       {map[string]string{Target: "t", CtrlLossTimeout: "forever"}, Parameters{Target: "t", Connection: v1alpha1.Connection{CtrlLossTimeoutSeconds: -1}}},
		"the kernel's -1":                {map[string]string{Target: "t", CtrlLossTimeout: "-1"}, Parameters{Target: "t", Connection: v1alpha1.Connection{CtrlLossTimeoutSeconds: -1}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseSaysWhatToWriteInstead(t *testing.T) {
	for name, tc := range map[string]struct {
		in   map[string]string
		want []string
	}{
		"I/Os between two steps":      {map[string]string{Target: "t", IOPS: "2500"}, []string{`iops: "2500" is not a multiple of 1000; use 2000 or 3000`}},
		"too few I/Os":                {map[string]string{Target: "t", IOPS: "0"}, []string{`iops: "0" is not a whole number from 1000 to 100000000; remove it for no limit`}},
		"bandwidth between two steps": {map[string]string{Target: "t", Bandwidth: "100M"}, []string{`bandwidth: "100M" is not a multiple of 1Mi; use 95Mi or 96Mi`}},
		"a fraction of a byte":        {map[string]string{Target: "t", ReadBandwidth: "1048576.5"}, []string{`readBandwidth: "1048576.5" is not a multiple of 1Mi; use 1Mi or 2Mi`}},
		"no bandwidth":                {map[string]string{Target: "t", WriteBandwidth: "fast"}, []string{`writeBandwidth: "fast" is not a number of bytes per second from 1Mi to 1Ti; remove it for no limit`}},
		"nothing":                     {nil, []string{"target is required; set it to the name of an NvmfTarget"}},
		"empty target":                {map[string]string{Target: ""}, []string{"target is empty"}},
		"replicas":                    {map[string]string{Target: "t", "replicas": "3"}, []string{`replicas: "3" is not possible; weft keeps 1 or 2 copies of a volume`}},
		"unknown":                     {map[string]string{Target: "t", "copies": "3"}, []string{`"copies" is unknown; supported parameters: target, transport, ioQueues, queueDepth, ctrlLossTimeout, replicas, replaceLostReplicaAfter, deviceClass, zones, zoneLabel, placement, encrypted, csi.storage.k8s.io/fstype`}},
		"several unknown": {map[string]string{Target: "t", "numberOfReplicas": "3", "fsType": "xfs", "staleReplicaTimeout": "1", "transprot": "TCP", "IOPS": "1000"}, []string{
			`"IOPS" is unknown; use iops; "fsType" is unknown; you may mean csi.storage.k8s.io/fstype; "numberOfReplicas" is unknown; you may mean replicas; ` +
				`"staleReplicaTimeout" is unknown; "transprot" is unknown; you may mean transport; supported parameters: target, transport,`}},
		"wrong case":                   {map[string]string{Target: "t", "ioqueues": "3"}, []string{`"ioqueues" is unknown; use ioQueues`}},
		"lower-case transport":         {map[string]string{Target: "t", Transport: "tcp"}, []string{`"tcp" is not a transport; use TCP, RDMA, or RDMA,TCP for both`}},
		"empty transport":              {map[string]string{Target: "t", Transport: ""}, []string{`"" is not a transport; use TCP, RDMA`}},
		"no second transport":          {map[string]string{Target: "t", Transport: "TCP,"}, []string{`"" is not a transport`}},
		"a transport twice":            {map[string]string{Target: "t", Transport: "TCP,TCP"}, []string{`"TCP,TCP" contains TCP twice; list each transport once`}},
		"no queues":                    {map[string]string{Target: "t", IOQueues: "0"}, []string{`ioQueues: "0" is not a whole number from 1 to 127`}},
		"too many queues":              {map[string]string{Target: "t", IOQueues: "128"}, []string{"from 1 to 127"}},
		"shallow queue":                {map[string]string{Target: "t", QueueDepth: "15"}, []string{"from 16 to 1024"}},
		"queue depth in words":         {map[string]string{Target: "t", QueueDepth: "deep"}, []string{`queueDepth: "deep" is not a whole number from 16 to 1024`}},
		"int32 overflow":               {map[string]string{Target: "t", QueueDepth: "4294967424"}, []string{"from 16 to 1024"}},
		"giving up at once":            {map[string]string{Target: "t", CtrlLossTimeout: "0"}, []string{`ctrlLossTimeout: "0"`, "600", "10m", "forever"}},
		"too few tries to reconnect":   {map[string]string{Target: "t", CtrlLossTimeout: "9"}, []string{`ctrlLossTimeout: "9"`, "from 10 to 86400", "forever"}},
		"negative":                     {map[string]string{Target: "t", CtrlLossTimeout: "-2"}, []string{`ctrlLossTimeout: "-2"`}},
		"more than a day":              {map[string]string{Target: "t", CtrlLossTimeout: "86401"}, []string{"from 10 to 86400"}},
		"half a second":                {map[string]string{Target: "t", CtrlLossTimeout: "1500ms"}, []string{"whole seconds"}},
		"overflowing seconds":          {map[string]string{Target: "t", CtrlLossTimeout: "9223372037"}, []string{"ctrlLossTimeout"}},
		"no name of a class":           {map[string]string{Target: "t", DeviceClass: "QLC"}, []string{`deviceClass: "QLC" is not the name of a device class; use a name from devices.classes of the target`}},
		"another placement":            {map[string]string{Target: "t", Placement: "Local"}, []string{`placement: "Local" is not a placement; use Spread, PreferSameNode or PreferSameZone`}},
		"more zones than there can be": {map[string]string{Target: "t", Zones: numbered(65)}, []string{"zones: 65 zones; at most 64 are supported"}},
		"no label":                     {map[string]string{Target: "t", Zones: "a", ZoneLabel: "a b"}, []string{`zoneLabel: "a b" is not the key of a node label`}},
		"a label without zones":        {map[string]string{Target: "t", ZoneLabel: "rack", Placement: "Spread"}, []string{"zoneLabel has no effect without zones, replicas \"2\", or placement PreferSameNode or PreferSameZone; add one of them, or remove it"}},
		"neither true nor false":       {map[string]string{Target: "t", Encrypted: "yes"}, []string{`encrypted: "yes" is neither "true" nor "false"`}},
		"another filesystem":           {map[string]string{Target: "t", FSType: "btrfs"}, []string{`"btrfs"`, "use ext4 or xfs"}},
		"several things at once":       {map[string]string{IOQueues: "x", "zz": "", "aa": ""}, []string{"ioQueues", "target is required", `"aa" is unknown`, `"zz" is unknown`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.in)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

var (
	tcp        = []v1alpha1.TransportType{v1alpha1.TransportTCP}
	rdma       = []v1alpha1.TransportType{v1alpha1.TransportRDMA}
	rdmaAndTCP = []v1alpha1.TransportType{v1alpha1.TransportRDMA, v1alpha1.TransportTCP}
)

var both = []v1alpha1.Transport{
	{Type: v1alpha1.TransportRDMA, MaxIOQueues: 16, QueueDepth: 256},
	{Type: v1alpha1.TransportTCP, MaxIOQueues: 8, QueueDepth: 128},
	{Type: v1alpha1.TransportTCP, MaxIOQueues: 4, QueueDepth: 64},
}

func TestConnectionFillsInDefaultsWithinTheTargetsLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		p    Parameters
		want v1alpha1.Connection
	}{
		"the target's first transport": {Parameters{},
			v1alpha1.Connection{Transports: rdma, IOQueues: 2, QueueDepth: 128, CtrlLossTimeoutSeconds: -1}},
		"defaults lowered to the target's weakest portal": {Parameters{Connection: v1alpha1.Connection{Transports: tcp}},
			v1alpha1.Connection{Transports: tcp, IOQueues: 2, QueueDepth: 64, CtrlLossTimeoutSeconds: -1}},
		"defaults lowered to the weakest portal of both transports": {Parameters{Connection: v1alpha1.Connection{Transports: rdmaAndTCP}},
			v1alpha1.Connection{Transports: rdmaAndTCP, IOQueues: 2, QueueDepth: 64, CtrlLossTimeoutSeconds: -1}},
		"as given, within what both transports take": {Parameters{Connection: v1alpha1.Connection{Transports: rdmaAndTCP, IOQueues: 4, QueueDepth: 64}},
			v1alpha1.Connection{Transports: rdmaAndTCP, IOQueues: 4, QueueDepth: 64, CtrlLossTimeoutSeconds: -1}},
		"as given": {Parameters{Connection: v1alpha1.Connection{Transports: rdma, IOQueues: 16, QueueDepth: 256, CtrlLossTimeoutSeconds: 60}},
			v1alpha1.Connection{Transports: rdma, IOQueues: 16, QueueDepth: 256, CtrlLossTimeoutSeconds: 60}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tc.p.ConnectionTo("fast", both)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestConnectionRefusesWhatTheTargetCannotDo(t *testing.T) {
	for name, tc := range map[string]struct {
		p          Parameters
		transports []v1alpha1.Transport
		want       string
	}{
		"a transport it lacks": {Parameters{Connection: v1alpha1.Connection{Transports: rdma}}, both[1:], `target "fast" has no RDMA; use TCP,`},
		"one of two it lacks":  {Parameters{Connection: v1alpha1.Connection{Transports: rdmaAndTCP}}, both[:1], `target "fast" has no TCP; use RDMA,`},
		"too many for one":     {Parameters{Connection: v1alpha1.Connection{Transports: rdmaAndTCP, IOQueues: 16}}, both[:2], `ioQueues: 16 is greater than 8, the maximum of target "fast" over TCP; lower it, or raise maxIOQueues of the target's TCP transport`},
		"more than any takes":  {Parameters{Connection: v1alpha1.Connection{IOQueues: 127}}, []v1alpha1.Transport{{Type: v1alpha1.TransportTCP, MaxIOQueues: 126}}, `127 is greater than 126, the maximum of target "fast" over TCP`},
		"too many queues":      {Parameters{Connection: v1alpha1.Connection{Transports: tcp, IOQueues: 5}}, both, `ioQueues: 5 is greater than 4, the maximum of target "fast" over TCP`},
		"too deep":             {Parameters{Connection: v1alpha1.Connection{QueueDepth: 512}}, both, `queueDepth: 512 is greater than 256, the maximum of target "fast" over RDMA`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.p.ConnectionTo("fast", tc.transports)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestDifferencesComparesOnlyWhatIsGiven(t *testing.T) {
	spec := v1alpha1.NvmfVolumeSpec{Target: "fast", Connection: v1alpha1.Connection{
		Transports: tcp, IOQueues: 2, QueueDepth: 64, CtrlLossTimeoutSeconds: -1,
	}}
	if d := (Parameters{Target: "fast"}).Differences(spec); len(d) != 0 {
		t.Errorf("defaults differ: %v", d)
	}
	if d := (Parameters{Target: "fast", Connection: v1alpha1.Connection{Transports: tcp, IOQueues: 2, QueueDepth: 64, CtrlLossTimeoutSeconds: -1}}).Differences(spec); len(d) != 0 {
		t.Errorf("the same settings differ: %v", d)
	}
	d := Parameters{Target: "slow", DeviceClass: "qlc", Connection: v1alpha1.Connection{Transports: rdma, IOQueues: 4, QueueDepth: 128, CtrlLossTimeoutSeconds: 5}}.Differences(spec)
	want := []string{"target is fast, not slow", `deviceClass is "", not "qlc"`, "transport is TCP, not RDMA", "ioQueues is 2, not 4", "queueDepth is 64, not 128", "ctrlLossTimeout is -1, not 5"}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Error(diff)
	}
}

// A retry of the same request fits whatever order the transports are written in; one path more, or less, is another
// volume.
func TestDifferencesOfTransports(t *testing.T) {
	for name, tc := range map[string]struct {
		has, asked []v1alpha1.TransportType
		want       string
	}{
		"both":                {rdmaAndTCP, rdmaAndTCP, ""},
		"both, the other way": {[]v1alpha1.TransportType{v1alpha1.TransportTCP, v1alpha1.TransportRDMA}, rdmaAndTCP, ""},
		"any":                 {rdmaAndTCP, nil, ""},
		"fewer than it has":   {rdmaAndTCP, tcp, "transport is RDMA,TCP, not TCP"},
		"more than it has":    {tcp, rdmaAndTCP, "transport is TCP, not RDMA,TCP"},
		"another than it has": {tcp, rdma, "transport is TCP, not RDMA"},
		"the one that it has": {rdma, rdma, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := Parameters{Target: "fast", Connection: v1alpha1.Connection{Transports: tc.asked}}.Differences(v1alpha1.NvmfVolumeSpec{Target: "fast", Connection: v1alpha1.Connection{Transports: tc.has}})
			if strings.Join(d, "; ") != tc.want {
				t.Errorf("got %q, want %q", d, tc.want)
			}
		})
	}
}

func TestParseMutable(t *testing.T) {
	for name, tc := range map[string]struct {
		in   map[string]string
		want Mutable
		says string
	}{
		"nothing":           {nil, Mutable{}, ""},
		"limits":            {map[string]string{"iops": "3000", "readBandwidth": "1Mi"}, Mutable{QoS: &v1alpha1.VolumeQoS{IOPS: new(int64(3000)), ReadBandwidthMiBps: new(int64(1))}}, ""},
		"replicas":          {map[string]string{"replicas": "2"}, Mutable{Replicas: 2}, ""},
		"too many replicas": {map[string]string{"replicas": "3"}, Mutable{}, `replicas: "3" is not possible; weft keeps 1 or 2 copies of a volume`},
		"replaced later":    {map[string]string{"replaceLostReplicaAfter": "1h30m"}, Mutable{ReplaceLostReplicaAfterMinutes: 90}, ""},
		"never replaced":    {map[string]string{"replaceLostReplicaAfter": "never"}, Mutable{ReplaceLostReplicaAfterMinutes: v1alpha1.ReplaceLostNever}, ""},
		"between steps":     {map[string]string{"iops": "2500"}, Mutable{}, "VolumeAttributesClass parameters: iops: \"2500\" is not a multiple of 1000"},
		"fixed for good":    {map[string]string{"transport": "TCP"}, Mutable{}, "supported parameters: replicas, replaceLostReplicaAfter, iops, bandwidth, readBandwidth, writeBandwidth"},
	} {
		got, err := ParseMutable(tc.in)
		if diff := cmp.Diff(tc.want, got); diff != "" || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}

func TestReplaceLostReplicaAfter(t *testing.T) {
	for in, want := range map[string]int32{"1m": 1, "30m": 30, "2h": 120, "168h": 10080, "never": -1, "": 0, "0": 0, "59s": 0, "90s": 0, "30": 0, "168h1m": 0, "-1": 0, "-5m": 0} {
		p, err := Parse(map[string]string{Target: "t", ReplaceLostReplicaAfter: in})
		if (err == nil) != (want != 0) || p.ReplaceLostReplicaAfterMinutes != want {
			t.Errorf("%q: got %d, %v", in, p.ReplaceLostReplicaAfterMinutes, err)
		}
		if err != nil && !strings.Contains(err.Error(), "is not a duration of whole minutes from 1m to 168h; use one such as 30m, or never") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestZones(t *testing.T) {
	for in, want := range map[string]string{"a": "[a]", " zone-b, zone-a,zone-b": "[zone-a zone-b]", "": "", "a,,b": "", "a b": ""} {
		p, err := Parse(map[string]string{Target: "t", Zones: in})
		if (err == nil) != (want != "") || err == nil && fmt.Sprint(p.Zones) != want {
			t.Errorf("%q: got %v, %v", in, p.Zones, err)
		}
	}
}

// numbered zones.
func numbered(n int) string {
	zones := make([]string, n)
	for i := range zones {
		zones[i] = fmt.Sprint("zone-", i)
	}
	return strings.Join(zones, ",")
}
