// SPDX-License-Identifier: Apache-2.0

package spdk

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/spdkrpc"
)

// elsewhere are the fields of a plan that are in no row of the table, and why.
var elsewhere = map[string]string{
	"coreMask":          "nvmf_tgt -m; settings compares it as a set",
	"pollGroupMask":     "settings compares it as a set, of the cores that there are",
	"mode":              "nvmf_tgt --interrupt-mode, and the scheduler's name",
	"balance":           "the agent's",
	"hugepages":         "the pod's, and a flag of nvmf_tgt",
	"memoryBytes":       "the pod's, and a flag of nvmf_tgt; it cannot be asked for",
	"podMemoryBytes":    "the pod's",
	"driver":            "of drives",
	"latencyHistograms": "of statistics, which turn them on and off",
	"transports[].type": "says which transport it is",

	"authentication.mode": "the CSI controller's",

	"attachments.expected": "what memory is planned for; the agent counts",
	"attachments.ioQueues": "what memory is planned for; the agent counts",
}

// planFields by their names in JSON.
func planFields(t reflect.Type, prefix string) []string {
	var names []string
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		name = prefix + name
		of := field.Type
		if of.Kind() == reflect.Slice {
			name += "[]"
			of = of.Elem()
		}
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct {
			names = append(names, planFields(of, name+".")...)
			continue
		}
		names = append(names, name)
	}
	return names
}

// TestEveryFieldOfAPlan is in the table, or is known to belong elsewhere; and the table has nothing that no plan has.
func TestEveryFieldOfAPlan(t *testing.T) {
	g := NewWithT(t)
	var inTable []string
	for _, row := range table {
		g.Expect(inTable).NotTo(ContainElement(row.plan), "in two rows")
		inTable = append(inTable, row.plan)
		g.Expect([]string{row.field, row.name, row.call}).NotTo(ContainElement(""), row.plan)
	}
	fields := append(planFields(reflect.TypeFor[v1alpha1.SPDKPlan](), ""), planFields(reflect.TypeFor[v1alpha1.PlannedAuthentication](), "authentication.")...)
	g.Expect(fields).To(ContainElements("transports[].queueDepth", "sockets.quickAck", "scheduler.loadLimit"))
	for _, field := range fields {
		_, other := elsewhere[field]
		g.Expect(slices.Contains(inTable, field) != other).To(BeTrue(), "%s of the plan is in neither or in both of table and elsewhere", field)
	}
	for _, field := range inTable {
		g.Expect(fields).To(ContainElement(field), "no plan has it")
	}
	for field := range elsewhere {
		g.Expect(fields).To(ContainElement(field), "no plan has it")
	}
}

// fullPlan decides every setting, each otherwise than SPDK does by itself.
func fullPlan() v1alpha1.Plan {
	plan := &v1alpha1.SPDKPlan{
		CoreMask: "0x3", Mode: v1alpha1.CoresDynamic, SmallBuffers: 101, LargeBuffers: 102, BdevIOPoolSize: 103, MaxSubsystems: 104,
		Scheduler: &v1alpha1.PlannedScheduler{PeriodMicroseconds: 105, LoadLimit: 11, CoreLimit: 12, CoreBusy: 13}, Placement: v1alpha1.PlacementCPU,
		Sockets: &v1alpha1.PlannedSockets{
			ZeroCopySend: v1alpha1.SwitchDisabled, ZeroCopyThreshold: 106, ReceivePipe: v1alpha1.SwitchDisabled, QuickAck: v1alpha1.SwitchEnabled,
			SendBufferSize: 107, ReceiveBufferSize: 108,
		},
	}
	for i, of := range []v1alpha1.TransportType{tcp, rdma} {
		at := int32(1000 * (i + 1))
		p := v1alpha1.PlannedTransport{
			Type: of, QueueDepth: at + 1, MaxIOQueues: at + 2, InCapsuleDataSize: int64(at) + 3, MaxIOSize: int64(at) + 4, SmallCache: at + 5, LargeCache: at + 6,
		}
		if of == tcp {
			p.C2HSuccess, p.SocketPriority = v1alpha1.SwitchDisabled, 7
		} else {
			p.SRQDepth = new(at + 7)
		}
		plan.Transports = append(plan.Transports, p)
	}
	return v1alpha1.Plan{SPDK: plan, Authentication: &v1alpha1.PlannedAuthentication{DHGroup: v1alpha1.DHGroupFFDHE3072}}
}

// TestEveryRow: a planned value is sent in SPDK's field, and an answer that tells it reads as the plan's value again.
func TestEveryRow(t *testing.T) {
	for _, speaks := range dialects {
		t.Run(speaks.since.String(), func(t *testing.T) {
			g := NewWithT(t)
			want, err := wantedBy(fullPlan(), speaks)
			g.Expect(err).NotTo(HaveOccurred())
			for _, row := range table {
				for _, name := range want.transports.names(&row) {
					g.Expect(want.values).To(HaveKey(name))
				}
			}
			is := values{}
			sent := func(req any, call string, of transports, told any) {
				g.Expect(fill(req, call, of, want.values, speaks)).To(Succeed())
				text, err := json.Marshal(req)
				g.Expect(err).NotTo(HaveOccurred())
				if told != nil { // an answer that has what was asked for
					g.Expect(json.Unmarshal([]byte(strings.ReplaceAll(string(text), `"period"`, `"scheduler_period"`)), told)).To(Succeed())
				} else {
					told = json.RawMessage(text)
				}
				g.Expect(is.read(call, of, told, speaks)).To(Succeed())
			}
			sent(&spdkrpc.IobufSetOptions{}, setIobuf, nil, nil)
			sent(&spdkrpc.BdevSetOptions{}, setBdev, nil, nil)
			sent(&spdkrpc.NvmfSetMaxSubsystems{}, setSubsystems, nil, nil)
			sent(&spdkrpc.NvmfSetConfig{}, setNvmf, nil, nil)
			sent(&spdkrpc.SockImplSetOptions{}, setSockets, want.transports, &spdkrpc.SockImplOptions{})
			sent(&spdkrpc.NvmfCreateTransport{}, setTransport, transports{tcp: true}, &spdkrpc.Transport{})
			sent(&spdkrpc.NvmfCreateTransport{}, setTransport, transports{rdma: true}, &spdkrpc.Transport{})
			sent(&spdkrpc.FrameworkSetScheduler{}, setScheduler, nil, &spdkrpc.Scheduler{})
			g.Expect(is).To(Equal(want.values))
		})
	}
}

// TestEveryDifference is seen, named, and says that a restart is needed, unless the setting is a live one.
func TestEveryDifference(t *testing.T) {
	g := NewWithT(t)
	is, err := wantedBy(fullPlan(), dialects[0])
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(is.differences(is)).To(BeEmpty())
	for name, row := range is.transports.rows() {
		was := is.values[name]
		is.values[name] = "other"
		want, err := wantedBy(fullPlan(), dialects[0])
		g.Expect(err).NotTo(HaveOccurred())
		if row.live {
			g.Expect(is.differences(want)).To(BeEmpty(), name)
		} else {
			g.Expect(is.differences(want)).To(ConsistOf(And(HavePrefix(row.name), ContainSubstring("other, but should be "+inWords(was)))), name)
		}
		is.values[name] = was
	}
}
