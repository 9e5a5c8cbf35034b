// SPDX-License-Identifier: Apache-2.0

package targetpod

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-storage/weft/api/v1alpha1"
)

func TestFailed(t *testing.T) {
	for name, test := range map[string]struct{ message, want string }{
		"a refusal":               {`{"reason":"CPUsNotGranted","message":"0x6 was planned, and 0x1 given"}`, "CPUsNotGranted: 0x6 was planned, and 0x1 given"},
		"with a line's end":       {"{\"reason\":\"DeviceInUse\",\"message\":\"0000:5e:00.0 is mounted\"}\n", "DeviceInUse: 0000:5e:00.0 is mounted"},
		"with more than is known": {`{"reason":"TargetNotFound","message":"no nvmf_tgt","pid":1}`, "TargetNotFound: no nvmf_tgt"},
		"text":                    {"EAL: no free 2048 kB hugepages\n", "PodFailed: EAL: no free 2048 kB hugepages"},
		"a reason that is none":   {`{"reason":"no hugepages","message":"x"}`, `PodFailed: {"reason":"no hugepages","message":"x"}`},
		"a refusal without words": {`{"reason":"HugepagesMissing"}`, `PodFailed: {"reason":"HugepagesMissing"}`},
		"a refusal cut short":     {`{"reason":"HugepagesMissing","mess`, `PodFailed: {"reason":"HugepagesMissing","mess`},
		"another kind of JSON":    {`["x"]`, `PodFailed: ["x"]`},
		"bytes":                   {"\xff\xfe\x00ab\x1b", "PodFailed: ? ab"},
		"nothing":                 {"", "PodFailed: the target exited with code 139 (Error); see the pod's log"},
		"white space":             {" \n", "PodFailed: the target exited with code 139 (Error); see the pod's log"},
	} {
		t.Run(name, func(t *testing.T) {
			c := failed(&corev1.Pod{}, &corev1.ContainerStateTerminated{ExitCode: 139, Reason: "Error", Message: test.message})
			if got := c.Reason + ": " + c.Message; got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
	if c := failed(&corev1.Pod{}, nil); c.Reason != v1alpha1.ReasonPodFailed || c.Message == "" {
		t.Errorf("a pod that says nothing: %+v", c)
	}
}

// FuzzFailed: whatever a container leaves, the API server takes the condition.
func FuzzFailed(f *testing.F) {
	f.Add(`{"reason":"HugepagesMissing","message":"12 of 256"}`)
	f.Add(strings.Repeat("ü\n", 4096))
	f.Add("\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		c := failed(&corev1.Pod{}, &corev1.ContainerStateTerminated{Message: text})
		if !reasonWord.MatchString(c.Reason) || c.Message == "" || len(c.Message) > maxMessage || !utf8.ValidString(c.Message) || strings.ContainsAny(c.Message, "\n\x00") {
			t.Errorf("%q becomes %s: %q", text, c.Reason, c.Message)
		}
	})
}
