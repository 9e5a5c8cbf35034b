// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/weft-storage/weft/api/v1alpha1"
)

// blind cannot list anything.
type blind struct {
	client.Reader
	list func() error
}

func (b blind) List(context.Context, client.ObjectList, ...client.ListOption) error { return b.list() }

// ask the webhook about a new target, as the API server does.
func ask(t *testing.T, reader client.Reader) (code int, body string) {
	t.Helper()
	scheme := runtime.NewScheme()
	g := NewWithT(t)
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	server := httptest.NewServer(serve(scheme, &Targets{Reader: reader}))
	defer server.Close()
	target := []byte(`{"apiVersion":"weft.storage/v1alpha1","kind":"NvmfTarget","metadata":{"name":"fast"},"spec":{"engine":"Nvmet","nodeSelector":{}}}`)
	review := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "1", Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: target}}}
	review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
	question, err := json.Marshal(review)
	g.Expect(err).NotTo(HaveOccurred())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, bytes.NewReader(question))
	g.Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Content-Type", "application/json")
	answer, err := server.Client().Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer answer.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(answer.Body)
	g.Expect(err).NotTo(HaveOccurred())
	return answer.StatusCode, string(text)
}

// Of a target that could not be judged the API server must hear a failure: only then does it do what failurePolicy
// says.
func TestWhatCannotBeJudgedIsLeftToTheFailurePolicy(t *testing.T) {
	for name, list := range map[string]func() error{
		"nodes that cannot be read": func() error { return errors.New("the cache is closed") },
		"a mistake of weft's":       func() error { panic("a mistake") },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			code, text := ask(t, blind{list: list})
			g.Expect(code).To(BeNumerically(">=", http.StatusInternalServerError), text)
			g.Expect(json.Valid([]byte(text))).To(BeFalse(), "no review that could be taken for a refusal: %s", text)
		})
	}
}

func TestAnAnswerIsPassedOn(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
	code, text := ask(t, fake.NewClientBuilder().WithScheme(scheme).Build())
	g.Expect(code).To(Equal(http.StatusOK))
	var review admissionv1.AdmissionReview
	g.Expect(json.Unmarshal([]byte(text), &review)).To(Succeed())
	g.Expect(review.Response.Allowed).To(BeTrue())
	g.Expect(review.Response.Warnings).To(ConsistOf(ContainSubstring("no node matches")))
}
