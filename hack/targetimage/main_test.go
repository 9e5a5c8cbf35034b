// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/weft-storage/weft/hack/imagefile"
)

func TestUploadReplacesNoImage(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/weft-target:1"
	first, second := imagefile.Image{User: "1"}, imagefile.Image{User: "2"}
	for range 2 {
		if err := upload(t.Context(), io.Discard, first, ref); err != nil {
			t.Fatalf("the same image can be pushed again: %v", err)
		}
	}
	if err := upload(t.Context(), io.Discard, second, ref); err == nil || !strings.Contains(err.Error(), "choose another tag") {
		t.Errorf("another image under the same tag: %v", err)
	}
}
