// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/internal/text"
)

// maxMessage bounds what is taken over from a pod, in bytes.
const maxMessage = 1000

// lastEnd returns how the target's container ended last, or nil when it never did.
func lastEnd(status *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if status == nil {
		return nil
	}
	if status.State.Terminated != nil {
		return status.State.Terminated
	}
	return status.LastTerminationState.Terminated
}

// failed tells why a target ended: in the words of its launcher where it left some, else in the kubelet's.
// Nothing that differs from one try to the next is in it: a pod that is tried
// again and again would be written again and again.
func failed(pod *corev1.Pod, end *corev1.ContainerStateTerminated) metav1.Condition {
	if end != nil {
		if reason, message, ok := refusal(end.Message); ok {
			return notReady(reason, message)
		}
		if text := clean(end.Message); text != "" {
			return notReady(v1alpha1.ReasonPodFailed, text)
		}
	}
	if text := clean(pod.Status.Message); text != "" {
		return notReady(v1alpha1.ReasonPodFailed, clean(fmt.Sprintf("the target pod failed (%s): %s", pod.Status.Reason, text)))
	}
	if end != nil {
		return notReady(v1alpha1.ReasonPodFailed, fmt.Sprintf("the target exited with code %d (%s); see the pod's log", end.ExitCode, end.Reason))
	}
	return notReady(v1alpha1.ReasonPodFailed, "the target pod ended for an unknown reason")
}

// reasonWord is what may be the reason of a condition.
var reasonWord = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{1,63}$`)

// refusal reads what weft-launch leaves when it does not start the target: {"reason", "message"}.
func refusal(text string) (reason, message string, ok bool) {
	var said struct{ Reason, Message string }
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return "", "", false
	}
	message = clean(said.Message)
	return said.Reason, message, reasonWord.MatchString(said.Reason) && message != ""
}

// clean makes one line of bounded length of what anybody may have written.
func clean(words string) string {
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(words, "?"))
	return text.Clip(strings.Join(strings.Fields(line), " "), maxMessage)
}
