// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package agent

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/tuning"
)

// tuner that was just started, with the agent's role and nothing remembered.
func (l *lab) tuner(host tuning.Host) *TuningReconciler {
	r := l.agent()
	return &TuningReconciler{TuningConfig{NodeName: l.node, Client: r.Client, Live: r.Client, Recorder: l, Host: host, Clock: clock.RealClock{}}}
}

// tune to success.
func (l *lab) tune(host tuning.Host) reconcile.Result {
	l.t.Helper()
	result, err := l.tuner(host).Reconcile(l.t.Context(), reconcile.Request{})
	l.Expect(err).NotTo(HaveOccurred())
	return result
}

// want settings, as the operator plans them, written setting=value.
func (l *lab) want(settings ...string) {
	l.t.Helper()
	node := l.nvmfNode()
	node.Spec.Plan.Tuning = nil
	for _, s := range settings {
		setting, value, _ := strings.Cut(s, "=")
		node.Spec.Plan.Tuning = append(node.Spec.Plan.Tuning, v1alpha1.PlannedSetting{Setting: setting, Value: value})
	}
	l.Expect(l.admin.Update(l.t.Context(), node)).To(Succeed())
}

func (l *lab) tuned() string {
	l.t.Helper()
	return said(l.nvmfNode().Status.Conditions)[v1alpha1.ConditionTuned]
}

func TestTuning(t *testing.T) {
	l := newLab(t)
	host := enginetest.NewMachine()
	before := host.Everything()

	l.Expect(l.tune(host).RequeueAfter).To(BeZero())
	l.Expect(l.tuned()).To(Equal("True/NotNeeded"))
	l.Expect(l.nvmfNode().Status.Tuning).To(BeNil())
	l.Expect(l.nvmfNode().Finalizers).To(BeEmpty())
	l.Expect(host.Writes()).To(BeEmpty())

	l.want("net.core.rmem_max=16777216", "eth0/rings.rx=1024")
	l.Expect(l.tune(host).RequeueAfter).To(Equal(tuningPeriod))
	l.Expect(l.tuned()).To(Equal("True/AsExpected"))
	node := l.nvmfNode()
	l.Expect(node.Finalizers).To(ConsistOf(v1alpha1.TuningFinalizer))
	l.Expect(node.Status.Tuning).To(Equal(&v1alpha1.TuningStatus{
		BootID: "boot-1", NICs: []v1alpha1.TunedNIC{{Name: "eth0", Index: 2}},
		Settings: []v1alpha1.TunedSetting{
			{Setting: "eth0/rings.rx", Former: "256", Wanted: "1024", Value: "1024", State: v1alpha1.TuningApplied},
			{Setting: "net.core.rmem_max", Former: "212992", Wanted: "16777216", Value: "16777216", State: v1alpha1.TuningApplied},
		},
	}))

	// The rest of the agent writes the rest of the status, from a cache that may be old.
	l.reconcile(l.agent())
	l.Expect(l.nvmfNode().Status.Tuning).To(Equal(node.Status.Tuning))
	l.Expect(l.tuned()).To(Equal("True/AsExpected"))
	l.Expect(said(l.nvmfNode().Status.Conditions)).To(HaveKeyWithValue("Ready", "True/AsExpected"))

	version, writes := l.nvmfNode().ResourceVersion, host.Writes()
	l.tune(host)
	l.Expect(l.nvmfNode().ResourceVersion).To(Equal(version), "nothing changed, so nothing is written")
	l.Expect(host.Writes()).To(Equal(writes))

	host.Kernel["net.core.rmem_max"] = "1"
	l.tune(host)
	l.Expect(l.events).To(ContainElement(ContainSubstring("SettingDrifted settings of the target's tuning were changed by something else and have been restored: net.core.rmem_max (was 16777216, had become 1)")))

	l.want()
	l.Expect(l.tune(host).RequeueAfter).To(BeZero())
	l.Expect(host.Everything()).To(Equal(before))
	l.Expect(l.nvmfNode().Status.Tuning).To(BeNil())
	l.Expect(l.nvmfNode().Finalizers).To(BeEmpty())
	l.Expect(l.tuned()).To(Equal("True/NotNeeded"))
}

// A rollout goes on to the next node when this one's settings are said to be written, so it must not be said before.
func TestTuningIsNotSaidOfAPlanBeforeItIsWritten(t *testing.T) {
	l := newLab(t)
	host := enginetest.NewMachine()
	l.want("eth0/rings.rx=1024")
	l.tune(host)
	l.want("eth0/rings.rx=2048")
	var seen []string
	host.Before = func(string) error {
		is := meta.FindStatusCondition(l.nvmfNode().Status.Conditions, v1alpha1.ConditionTuned)
		if is.ObservedGeneration == l.nvmfNode().Generation && is.Status != "Unknown" && host.Interfaces["eth0"].Settings[tuning.Rings]["rx"] != "2048" {
			seen = append(seen, said(l.nvmfNode().Status.Conditions)[v1alpha1.ConditionTuned])
		}
		return nil
	}
	l.tune(host)
	l.Expect(seen).To(BeEmpty(), "Tuned speaks of the new plan, and its setting is not written")
	l.Expect(l.tuned()).To(Equal("True/AsExpected"))
}

func TestTuningThatIsRefused(t *testing.T) {
	l := newLab(t)
	host := enginetest.NewMachine()
	l.want("net.core.rmem_max=16777216", "eth0/rings.rx=9999")
	l.tune(host)
	l.Expect(l.tuned()).To(Equal("False/SettingRefused"))
	message := meta.FindStatusCondition(l.nvmfNode().Status.Conditions, v1alpha1.ConditionTuned).Message
	l.Expect(message).To(Equal("eth0/rings.rx: requested 9999, but the kernel answered: invalid argument; it is 256; use at most 4096, the maximum of the driver"))
	l.Expect(host.Kernel["net.core.rmem_max"]).To(Equal("16777216"), "what is refused stops nothing else")
	l.Expect(l.events).To(ContainElement(HavePrefix("Warning SettingRefused Tuned is False: eth0/rings.rx")))
	version, events := l.nvmfNode().ResourceVersion, len(l.events)
	l.tune(host)
	l.Expect(l.nvmfNode().ResourceVersion).To(Equal(version))
	l.Expect(l.events).To(HaveLen(events))

	host.Before = func(call string) error {
		if call == "nics" {
			return syscall.EIO
		}
		return nil
	}
	_, err := l.tuner(host).Reconcile(t.Context(), reconcile.Request{})
	l.Expect(err).To(MatchError(syscall.EIO))
	l.Expect(l.tuned()).To(Equal("Unknown/SettingsUnknown"))
	l.Expect(l.nvmfNode().Status.Tuning.Settings).To(HaveLen(2), "unknown is not absent")
}

// A target that goes takes its tuning with it, and an NvmfNode that is deleted waits until everything is put back.
func TestTuningGoesWithItsTarget(t *testing.T) {
	for name, end := range map[string]func(l *lab){
		"released": func(l *lab) {
			node := l.nvmfNode()
			node.Spec = v1alpha1.NvmfNodeSpec{}
			l.Expect(l.admin.Update(t.Context(), node)).To(Succeed())
		},
		"deleted": func(l *lab) { l.Expect(l.admin.Delete(t.Context(), l.nvmfNode())).To(Succeed()) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			host := enginetest.NewMachine()
			before := host.Everything()
			l.want("net.core.rmem_max=16777216", "eth0/offloads.rx-gro=off")
			l.tune(host)
			end(l)
			l.Expect(l.nvmfNode().Status.Tuning).NotTo(BeNil(), "it is there until everything is put back")
			l.tune(host)
			l.Expect(host.Everything()).To(Equal(before))
			err := l.admin.Get(t.Context(), client.ObjectKey{Name: l.node}, &v1alpha1.NvmfNode{})
			if name == "released" {
				l.Expect(err).NotTo(HaveOccurred())
				l.Expect(l.tuned()).To(Equal("True/NotNeeded"))
				return
			}
			l.Expect(client.IgnoreNotFound(err)).To(Succeed())
			l.Expect(err).To(HaveOccurred())
			l.tune(host) // there is nothing to tune by
			l.reconcile(l.agent())
			l.tune(host)
			l.Expect(l.tuned()).To(Equal("True/NotNeeded"))
		})
	}
}

// TestTuningInterrupted loses the API server before each of the agent's writes in turn; nothing is ever
// written to the node that is not on record, and a successor has the same result.
func TestTuningInterrupted(t *testing.T) {
	l := newLab(t)
	host := enginetest.NewMachine()
	before := host.Everything()
	lost := errors.New("the API server is gone")
	interrupted := 0
	for _, wants := range [][]string{{"net.core.rmem_max=16777216", "eth0/channels.combined=2", "eth0/interrupts=3"}, {}} {
		l.want(wants...)
		for allowed := 0; ; allowed++ {
			left := allowed
			l.beforeWrite = func(context.Context) error {
				if left--; left < 0 {
					return lost
				}
				return nil
			}
			made := len(host.Writes())
			_, err := l.tuner(host).Reconcile(t.Context(), reconcile.Request{})
			l.beforeWrite = nil
			if len(host.Writes()) > made {
				l.Expect(l.nvmfNode().Status.Tuning).NotTo(BeNil())
				l.Expect(l.nvmfNode().Finalizers).NotTo(BeEmpty())
			}
			if err == nil {
				break
			}
			interrupted++
			l.Expect(err).To(MatchError(lost))
		}
	}
	l.Expect(interrupted).To(BeNumerically(">=", 4))
	after := host.Everything()
	for setting, value := range before {
		if !strings.Contains(setting, "/interrupts.") {
			l.Expect(after).To(HaveKeyWithValue(setting, value))
		}
	}
	l.Expect(l.nvmfNode().Status.Tuning).To(BeNil())
	l.Expect(l.nvmfNode().Finalizers).To(BeEmpty())
}

// Others write the NvmfNode while settings are written, which takes a driver its time. What came of them is not lost: a
// value that the driver made another of would be written again, and reset the link again.
func TestTuningWhileOthersWrite(t *testing.T) {
	l := newLab(t)
	host := enginetest.NewMachine()
	host.Clamp = func(_ tuning.Place, _, value string) string { return value + "0" }
	l.want("eth0/rings.rx=100")
	calls := 0
	l.beforeWrite = func(ctx context.Context) error {
		if calls++; calls > 1 && calls < 4 { // not the finalizer, but the record twice
			node := &v1alpha1.NvmfNode{}
			if err := l.admin.Get(ctx, client.ObjectKey{Name: l.node}, node); err != nil {
				return err
			}
			node.Labels = map[string]string{"calls": strconv.Itoa(calls)}
			return l.admin.Update(ctx, node)
		}
		return nil
	}
	l.tune(host)
	l.Expect(calls).To(BeNumerically(">", 4))
	l.Expect(l.tuned()).To(Equal("False/SettingRefused"))
	l.Expect(l.nvmfNode().Status.Tuning.Settings).To(ConsistOf(HaveField("State", v1alpha1.TuningClamped)))
	l.Expect(host.Writes()).To(HaveLen(1))
}
