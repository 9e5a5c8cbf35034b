// SPDX-License-Identifier: Apache-2.0

package enginetest

import (
	"errors"

	. "github.com/onsi/gomega" //nolint:staticcheck // gomega reads as sentences only so

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine"
)

func startCases() map[string]func(*suite) {
	return map[string]func(*suite){
		"a target that runs by its plan goes on as it is": func(s *suite) {
			x := exportOf(s.create(s.openPool().ID, 4*mib), newHost())
			s.openPortals()
			s.exportAs(x)
			before := s.state()
			for range 2 {
				s.Expect(s.fresh().Start(s.ctx, s.Plan(s.t))).To(Succeed())
				s.Expect(s.state()).To(Equal(before))
			}
		},
		"a plan that only a restart can follow is named, and changes nothing": func(s *suite) {
			plan := s.Plan(s.t)
			if plan.SPDK == nil {
				s.t.Skip("this engine's plan has no settings of the target")
			}
			x := exportOf(s.create(s.openPool().ID, 4*mib), newHost())
			s.openPortals()
			s.exportAs(x)
			before := s.state()
			spdk := *plan.SPDK
			spdk.LargeBuffers++
			spdk.Transports = append([]v1alpha1.PlannedTransport{}, spdk.Transports...)
			spdk.Transports[0].QueueDepth *= 2
			other := plan
			other.SPDK = &spdk
			var restart *engine.RestartNeededError
			err := s.fresh().Start(s.ctx, other)
			s.Expect(err).To(MatchError(engine.ErrRestartNeeded))
			s.Expect(errors.As(err, &restart)).To(BeTrue())
			s.Expect(restart.Differences).To(HaveLen(2))
			s.Expect(s.state()).To(Equal(before))
			s.Expect(s.fresh().Start(s.ctx, plan)).To(Succeed())
		},
		"another engine's plan is not supported": func(s *suite) {
			plan := s.Plan(s.t)
			other := v1alpha1.Plan{Engine: v1alpha1.EngineNvmet, Portals: plan.Portals}
			if plan.Engine == v1alpha1.EngineNvmet {
				other.Engine = v1alpha1.EngineSPDK
			}
			s.Expect(s.engine.Start(s.ctx, other)).To(MatchError(engine.ErrUnsupported))
		},
	}
}
