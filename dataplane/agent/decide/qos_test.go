// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

func limitedTo(iops int64) func(*v1alpha1.NvmfReplica) {
	return func(v *v1alpha1.NvmfReplica) { v.Spec.QoS = &v1alpha1.VolumeQoS{IOPS: &iops} }
}

// servedWith is volume 1, exported, with these limits in force.
func servedWith(q engine.QoS, change ...func(*v1alpha1.NvmfReplica)) func(*Observed) {
	return func(s *Observed) {
		s.Target.Info = engine.Info{Type: v1alpha1.EngineSPDK, QoS: true}
		s.Volumes = []*v1alpha1.NvmfReplica{testVolume(1, append(change, isCreatedOn("a"))...)}
		is := engineVolume(1, "a")
		is.QoS = q
		holds(is)(s)
		s.Target.State.Exports = []engine.Export{exported(1)}
	}
}

func TestDecideQoS(t *testing.T) {
	inForce := func(iops int64) func(*WithT, Decision) {
		return func(g *WithT, d Decision) {
			g.Expect(d.Volumes["v1"].QoS).To(HaveValue(HaveField("IOPS", HaveValue(Equal(iops)))))
		}
	}
	asked := attempt{VerbSetQoS, uuid(1)}
	for _, c := range []decideCase{
		{
			name: "none are asked for", given: servedWith(engine.QoS{}),
			volumes: map[string]says{"v1": {"QoSApplied": "True/NotNeeded", "Ready": "True/AsExpected"}},
			also:    func(g *WithT, d Decision) { g.Expect(d.Volumes["v1"].QoS).To(BeNil()) },
		},
		{
			name: "they are set on a volume that is exported", given: servedWith(engine.QoS{}, limitedTo(2000)),
			does: []string{"SetQoS 1 2000 IOPS"}, volumes: map[string]says{"v1": {"QoSApplied": "False/Pending"}},
		},
		{
			name: "they are in force", given: servedWith(engine.QoS{IOPS: 2000}, limitedTo(2000)),
			volumes: map[string]says{"v1": {"QoSApplied": "True/AsExpected"}}, also: inForce(2000),
		},
		{
			name: "they are lifted when they are no longer asked for", given: servedWith(engine.QoS{IOPS: 2000}),
			does: []string{"SetQoS 1 no limits"}, volumes: map[string]says{"v1": {"QoSApplied": "False/Pending"}}, also: inForce(2000),
		},
		{
			name: "the export comes first, and portals wait",
			given: func(s *Observed) {
				servedWith(engine.QoS{}, limitedTo(2000))(s)
				s.Target.State.Exports, s.Target.State.Portals = nil, nil
			},
			does: []string{"Export v1 to 0"}, volumes: map[string]says{"v1": {"QoSApplied": "False/Pending"}},
		},
		{
			name: "portals wait for limits",
			given: func(s *Observed) {
				servedWith(engine.QoS{}, limitedTo(2000))(s)
				s.Target.State.Portals, s.Target.State.Exports[0].Portals = nil, nil
			},
			does: []string{"SetQoS 1 2000 IOPS"},
		},
		{
			name: "what was refused is said, and the volume is served, portals and all",
			given: func(s *Observed) {
				servedWith(engine.QoS{}, limitedTo(2000))(s)
				s.Target.State.Portals, s.Target.State.Exports[0].Portals = nil, nil
				s.Attempts[asked] = errors.New("no luck")
			},
			does:    []string{"OpenPortals " + PortalKey(tcp)},
			volumes: map[string]says{"v1": {"QoSApplied": "False/QoSFailed"}},
		},
		{
			name: "a target that takes others is told on",
			given: func(s *Observed) {
				servedWith(engine.QoS{IOPS: 3000}, limitedTo(2000))(s)
				s.Attempts[asked] = nil
			},
			volumes: map[string]says{"v1": {"QoSApplied": "False/QoSFailed"}}, also: inForce(3000),
		},
		{
			name: "an engine without limits is not asked, and the volume goes on",
			given: func(s *Observed) {
				servedWith(engine.QoS{}, limitedTo(2000))(s)
				s.Target.Info = engine.Info{Type: v1alpha1.EngineNvmet}
			},
			volumes: map[string]says{"v1": {"QoSApplied": "False/Unsupported", "Ready": "True/AsExpected"}},
		},
		{
			name: "of a volume that cannot be seen nothing is known",
			given: func(s *Observed) {
				servedWith(engine.QoS{}, limitedTo(2000))(s)
				s.Target.State.Volumes = nil
				brokenA(s)
			},
			volumes: map[string]says{"v1": {"QoSApplied": "Unknown/PoolFailed"}},
		},
		{
			name: "one that goes keeps what it has", given: servedWith(engine.QoS{}, limitedTo(2000), isDeleting),
			does: []string{"Unexport v1"}, volumes: map[string]says{"v1": {"QoSApplied": "False/Deleting"}},
		},
	} {
		c.run(t)
	}
}
