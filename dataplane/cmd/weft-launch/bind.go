// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/weft-storage/weft/api/v1alpha1"
	"github.com/weft-storage/weft/dataplane/device"
)

const (
	devicesDir = "sys/bus/pci/devices"
	driversDir = "sys/bus/pci/drivers"
	probeFile  = "sys/bus/pci/drivers_probe"
)

// The kernel binds most drivers before a write returns, and NVMe's in the background.
const bindInterval = 10 * time.Millisecond

// driverOf names the driver that has a PCI function; empty when none has.
func driverOf(m Machine, address string) (string, error) {
	link, err := os.Readlink(m.path(devicesDir, address, "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(link), err
}

// takeDrives gives the drives to the driver, and writes down what is on each
// before the kernel can no longer see it. It answers those that the driver has; the kernel gets the others back.
func takeDrives(ctx context.Context, m Machine, o Options, drives []drive, records device.Records, left leftOut) ([]drive, error) {
	now := m.Now().UTC()
	for _, d := range drives {
		// What is on a drive that was not looked at now was seen earlier.
		if _, ok := records[d.address]; !ok || d.driver == driverNVMe {
			records[d.address] = device.Record{ID: d.id, Content: d.content, CheckedAt: now}
		}
	}
	if err := records.Write(o.Socket); err != nil {
		return nil, err
	}
	driver := wantedDriver(o.Driver)
	var taken []drive
	for _, d := range drives {
		if d.driver != driver {
			if err := bind(ctx, m, d.address, driver); err != nil {
				err = errors.Join(err, giveBack(ctx, m, o.Socket, records, []string{d.address}))
				if ctx.Err() != nil {
					return nil, err
				}
				left.out(err, o.planned(d.address)...)
				continue
			}
			m.Log.Info("took a drive from the kernel", "drive", d.address, "id", d.id, "driver", driver, "content", string(d.content))
		}
		taken = append(taken, d)
	}
	return taken, nil
}

// bind moves a drive to a driver.
func bind(ctx context.Context, m Machine, address, driver string) error {
	if err := write(m, driver, devicesDir, address, "driver_override"); err != nil {
		return err
	}
	if err := unbind(ctx, m, address); err != nil {
		return err
	}
	if err := write(m, address, probeFile); err != nil {
		return refuse(v1alpha1.ReasonDriverNotAvailable, "driver %s cannot take drive %s: %w", driver, address, err)
	}
	err := awaitDriver(ctx, m, address, func(now string) bool { return now == driver })
	if errors.Is(err, context.DeadlineExceeded) {
		return refuse(v1alpha1.ReasonDriverNotAvailable, "driver %s did not take drive %s; see the kernel log", driver, address)
	}
	return err
}

// unbind takes a drive from the driver that has it.
func unbind(ctx context.Context, m Machine, address string) error {
	driver, err := driverOf(m, address)
	if err != nil || driver == "" {
		return err
	}
	if err := write(m, address, driversDir, driver, "unbind"); err != nil {
		return err
	}
	if err := awaitDriver(ctx, m, address, func(now string) bool { return now == "" }); err != nil {
		return fmt.Errorf("driver %s did not release drive %s: %w", driver, address, err)
	}
	return nil
}

// giveBack returns drives to the kernel, as many as it can, also after ctx has ended, and forgets what was on them:
// from then on anybody may write there.
func giveBack(ctx context.Context, m Machine, socket string, records device.Records, addresses []string) error {
	ctx = context.WithoutCancel(ctx)
	var failed error
	for _, address := range addresses {
		if err := giveOneBack(ctx, m, address); err != nil {
			failed = errors.Join(failed, fmt.Errorf("return drive %s to the kernel: %w", address, err))
			continue
		}
		m.Log.Info("returned a drive to the kernel", "drive", address)
		delete(records, address)
	}
	return errors.Join(failed, records.Write(socket))
}

// giveAllBack returns every planned drive that SPDK's driver has, whoever took it.
func giveAllBack(ctx context.Context, m Machine, o Options, records device.Records) error {
	var addresses []string
	for _, address := range o.addresses() {
		d, err := driveAt(m, address)
		_, recorded := records[address]
		if err == nil && (d.driver == driverVFIO || d.driver == driverUIO || d.driver == "" && recorded) {
			addresses = append(addresses, address)
		}
	}
	return giveBack(ctx, m, o.Socket, records, addresses)
}

func giveOneBack(ctx context.Context, m Machine, address string) error {
	driver, err := driverOf(m, address)
	if err != nil {
		return err
	}
	if driver == driverNVMe {
		return nil
	}
	err = write(m, "", devicesDir, address, "driver_override")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // pulled out meanwhile
	}
	if err != nil {
		return err
	}
	if err := unbind(ctx, m, address); err != nil {
		return err
	}
	if err := write(m, address, probeFile); err != nil {
		return err
	}
	return awaitDriver(ctx, m, address, func(now string) bool { return now != "" })
}

// giveBackForgotten returns drives that an earlier target took and did not live to give
// back, and that the plan no longer names. The records tell that they were weft's.
func giveBackForgotten(ctx context.Context, m Machine, o Options, records device.Records) error {
	var forgotten []string
	for _, address := range slices.Sorted(maps.Keys(records)) {
		if len(o.planned(address)) == 0 {
			forgotten = append(forgotten, address)
		}
	}
	if len(forgotten) == 0 {
		return nil
	}
	return giveBack(ctx, m, o.Socket, records, forgotten)
}

// awaitDriver waits until the drive's driver is as it should be.
func awaitDriver(ctx context.Context, m Machine, address string, done func(driver string) bool) error {
	return wait.PollUntilContextTimeout(ctx, bindInterval, m.BindTimeout, true, func(context.Context) (bool, error) {
		driver, err := driverOf(m, address)
		return err == nil && done(driver), err
	})
}

// write gives a line to a file of sysfs, which is never made here.
func write(m Machine, line string, elem ...string) error {
	f, err := os.OpenFile(m.path(elem...), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}
