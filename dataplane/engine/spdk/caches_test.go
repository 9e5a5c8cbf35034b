// SPDX-License-Identifier: Apache-2.0

package spdk_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	. "github.com/onsi/gomega/gstruct"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
	"github.com/weft-storage/weft/dataplane/engine"
	"github.com/weft-storage/weft/dataplane/engine/enginetest"
	"github.com/weft-storage/weft/dataplane/spdkrpc/spdktest"
)

// TestVolatileCaches of drives are off before their pools serve, after each reset of a controller and each restart of
// the target; of one that cannot be turned off, or where that is not known, it is said.
func TestVolatileCaches(t *testing.T) {
	t.Setenv(spdktest.TargetVariable, "")
	m := newMachine(t)
	g := NewWithT(t)
	caches := map[string]spdktest.WriteCache{
		"0000:01:00.0": spdktest.VolatileWriteCache, "0000:02:00.0": spdktest.FixedWriteCache, "0000:03:00.0": spdktest.NoWriteCache,
	}
	records := device.Records{}
	var devices []engine.Device
	for address, cache := range caches {
		path := filepath.Join(m.dir, address)
		check(t, os.WriteFile(path, nil, 0o600))
		check(t, os.Truncate(path, enginetest.PoolBytes))
		m.fake.Drives = append(m.fake.Drives, spdktest.Drive{Address: address, Path: path, Serial: address, WriteCache: cache})
		records[address] = device.Record{ID: address, Content: v1alpha1.ContentBlank}
		devices = append(devices, engine.Device{ID: address, PCIAddress: address})
	}
	check(t, records.Write(m.socket()))
	file := m.file(enginetest.PoolBytes)
	pools := func() map[string]error {
		state, err := m.engine(t).Gather(t.Context())
		check(t, err)
		found := map[string]error{}
		for _, p := range state.Pools {
			check(t, p.Err)
			found[p.Device] = p.NotDurable
		}
		return found
	}
	asItCanBe := MatchAllKeys(Keys{
		"0000:01:00.0": BeNil(), "0000:02:00.0": MatchError(device.ErrVolatile), "0000:03:00.0": BeNil(), file.ID: BeNil(),
	})
	m.launch(t)
	for range 2 {
		check(t, m.engine(t).Start(t.Context(), m.plan))
		check(t, errors.Join(m.engine(t).OpenPools(t.Context(), append(devices, file))...))
		fake := m.target.(*spdktest.Target)
		g.Expect(fake.CacheOn("0000:01:00.0")).To(BeFalse(), "before anything else is asked of the target")
		g.Expect(fake.CacheOn("0000:02:00.0")).To(BeTrue(), "it cannot be turned off")
		g.Expect(pools()).To(asItCanBe)
		g.Expect(synchronous(t, file.Path)).To(BeTrue())

		check(t, fake.ResetDrive("0000:01:00.0"))
		g.Expect(fake.CacheOn("0000:01:00.0")).To(BeTrue())
		g.Expect(pools()).To(asItCanBe)
		g.Expect(fake.CacheOn("0000:01:00.0")).To(BeFalse(), "after a reset")
		m.kill()
		m.launch(t)
	}

	m.kill()
	m.fake.Without = []string{"bdev_nvme_send_cmd"}
	m.restart(t)
	errs := m.engine(t).OpenPools(t.Context(), append(devices, file))
	g.Expect(errs[:3]).To(HaveEach(MatchError(ContainSubstring("which drive is at 0000:0"))), "a target that takes no commands for drives opens none")
	g.Expect(errs[3]).NotTo(HaveOccurred())
}

func synchronous(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	defer f.Close() //nolint:errcheck // nothing was written
	changed, err := device.SetSynchronous(f)
	check(t, err)
	return !changed
}
