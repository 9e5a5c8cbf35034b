// SPDX-License-Identifier: Apache-2.0

//go:build !lab

package spdk_test

import (
	"context"
	"errors"
	"testing"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
	"github.com/weft-storage/weft/internal/dhchap"
)

func TestConformance(t *testing.T) {
	m := newMachine(t)
	m.withoutPipes()
	enginetest.Run(t, &hostless{m})
}

// TestConformanceOfOlderReleases: the engine does the same on each release that it knows.
func TestConformanceOfOlderReleases(t *testing.T) {
	for _, version := range []string{"25.05", "26.01"} {
		t.Run(version, func(t *testing.T) { enginetest.Run(t, &hostless{onFake(t, version)}) })
	}
}

// hostless machine: the fake moves no data, and this machine's kernel is not asked to connect to a real target.
// Built with the tag lab the suite runs with hosts.
type hostless struct{ *machine }

func (h hostless) Traits() enginetest.Traits {
	traits := enginetest.Traits{
		NoNotes:         true,
		NoBlockLists:    true,
		FixedTransports: true,
		NoHosts:         "no initiator here: compile with -tags lab and run it on a node of the lab, with WEFT_SPDK_TARGET",
	}
	if h.real == "" {
		traits.NoWire = "the fake listens on no socket for hosts: name a real nvmf_tgt in " + spdktest.TargetVariable
	}
	traits.Lingers = h.lingers()
	traits.RepeatsReads = h.real != "" // SPDK 26.05: nvmf_tcp_req_process leaves such a command in AWAIT_REQ
	return traits
}

func (hostless) Connect(context.Context, *testing.T, v1alpha1.Portal, string, string, dhchap.Pair) (enginetest.Connection, error) {
	return nil, errors.New("no initiator on this machine")
}
