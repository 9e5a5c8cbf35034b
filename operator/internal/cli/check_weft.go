// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// inventory of a node: what a probe found now, or else its agent reported; nil: none.
func (s *survey) inventory(node string) *v1alpha1.Inventory {
	if is := s.probed[node]; is != nil {
		return is
	}
	if n := s.nvmf[node]; n != nil {
		return n.Status.Inventory
	}
	return nil
}

// agentVersion of a node; empty: not known.
func (s *survey) agentVersion(node string) string {
	if n := s.nvmf[node]; n != nil {
		return n.Status.AgentVersion
	}
	return ""
}

// unavailable are the conditions of a Kubernetes Node that say what some volumes need and the node lacks, and what its
// pods then cannot do.
var unavailable = []struct {
	condition corev1.NodeConditionType
	says      string
}{
	{v1alpha1.ConditionMirrorsUnavailable, "its pods cannot use volumes with two replicas"},
	{v1alpha1.ConditionEncryptionUnavailable, "its pods cannot use encrypted volumes"},
	{v1alpha1.ConditionAuthenticationUnavailable, "it cannot authenticate to targets"},
}

// reported is what the node plugin and the operator found wrong with a node, or missing.
func (s *survey) reported(n *corev1.Node) []finding {
	var found []finding
	for _, kind := range conditionsOfUsers {
		if is := v1alpha1.NodeCondition(n, kind); is != nil && is.Status == corev1.ConditionTrue {
			found = append(found, finding{node: n.Name, wrong: true, says: is.Message})
		}
	}
	if nvmf := s.nvmf[n.Name]; nvmf != nil && meta.IsStatusConditionTrue(nvmf.Status.Conditions, v1alpha1.ConditionVersionSkew) {
		found = append(found, finding{node: n.Name, wrong: true, says: meta.FindStatusCondition(nvmf.Status.Conditions, v1alpha1.ConditionVersionSkew).Message})
	}
	for _, lacks := range unavailable {
		if is := v1alpha1.NodeCondition(n, lacks.condition); is != nil && is.Status == corev1.ConditionTrue {
			found = append(found, finding{node: n.Name, says: lacks.says + ": " + is.Message})
		}
	}
	return found
}

// ownVersion says whether this program is too far from what is installed.
func (s *survey) ownVersion() []finding {
	if v1alpha1.CompareVersions(s.version, s.installedVersion) != v1alpha1.VersionsUnsupported {
		return nil
	}
	return []finding{{says: fmt.Sprintf("kubectl weft has version %s, and weft %s is installed; use a kubectl weft that is at most one minor version older or newer", s.version, s.installedVersion)}}
}

// notKnown is what nobody has reported yet, or not lately, and what comes from it.
func (s *survey) notKnown() []string {
	var unreported, silentOnes []string
	for i := range s.nodes {
		name := s.nodes[i].Name
		is, tried := s.probed[name]
		switch {
		case is != nil: // it is of now
		case s.inventory(name) == nil && !tried:
			unreported = append(unreported, name)
		case s.inventory(name) != nil && silent(s.nvmf[name]):
			silentOnes = append(silentOnes, name)
		}
	}
	var all []string
	say := func(nodes []string, format string) {
		if len(nodes) > 0 {
			all = append(all, fmt.Sprintf(format, text.Few(nodes, maxNamed, ", ")))
		}
	}
	why := "; kubectl weft check --probe finds them out, and the agents report them once weft is installed"
	if s.installed {
		why = ", because no agent has reported them"
	}
	say(unreported, "%s: "+whatProbesTell+why)
	say(silentOnes, "%s: kernel modules, MTUs and hugepages of now; what is shown is old, because the agent does not answer")
	say(s.withoutClock(), "%s: the difference between its clock and that of the API server, because no Lease shows it")
	return slices.Concat(all, s.elsewhere())
}
