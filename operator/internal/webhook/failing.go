// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"encoding/json"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// failing turns an answer that the webhook itself failed (500 and more, a panic included) into no answer. The API
// server does what failurePolicy says only of a call that failed; an answer with an error in it is a refusal to it,
// whatever the policy.
func failing(webhook http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &held{ResponseWriter: w}
		webhook.ServeHTTP(answer, r)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(answer.body.Bytes(), &review); err == nil && review.Response != nil {
			if is := review.Response.Result; is != nil && is.Code >= http.StatusInternalServerError {
				log.FromContext(r.Context()).Info("An NvmfTarget could not be judged; the webhook's failurePolicy decides", "reason", is.Message)
				http.Error(w, is.Message, int(is.Code))
				return
			}
		}
		if _, err := w.Write(answer.body.Bytes()); err != nil {
			log.FromContext(r.Context()).Error(err, "The API server did not take the webhook's answer")
		}
	})
}

// held keeps the body of an answer back.
type held struct {
	http.ResponseWriter
	body bytes.Buffer
}

func (h *held) Write(p []byte) (int, error) { return h.body.Write(p) }
