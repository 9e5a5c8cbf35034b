// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"errors"
	"fmt"
	"strconv"
	"syscall"

	"github.com/safchain/ethtool"
)

// Drivers of NICs, for channels, rings, coalescing and offloads; as Host's Read and Write.
type Drivers interface {
	Read(place Place, names []string) (map[string]Reading, error)
	Write(place Place, values map[string]string) error
}

// Ethtool asks drivers by ethtool's ioctls, in the process's own network namespace.
type Ethtool struct{ *ethtool.Ethtool }

// NewEthtool opens the socket that the ioctls go through.
func NewEthtool() (Ethtool, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return Ethtool{}, fmt.Errorf("open ethtool's socket: %w", err)
	}
	return Ethtool{e}, nil
}

// A knob is one number of ethtool's structures. most is 0 where there is no such limit.
type knob struct {
	value *uint32
	most  uint32
}

// bounded knobs tell their limit, and are not there without one.
func bounded(value *uint32, most uint32) *knob {
	if most == 0 {
		return nil
	}
	return &knob{value, most}
}

// Read implements Drivers. A driver that does not know the whole group has none of its settings.
func (e Ethtool) Read(place Place, names []string) (map[string]Reading, error) {
	if place.Group == Offloads {
		return e.readOffloads(place.NIC, names)
	}
	knobs, _, err := e.knobs(place)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return map[string]Reading{}, nil
	}
	if err != nil {
		return nil, err
	}
	settings := map[string]Reading{}
	for _, name := range names {
		k := knobs[name]
		if k == nil {
			continue
		}
		r := Reading{Value: strconv.FormatUint(uint64(*k.value), 10), Most: int64(k.most)}
		if isSwitch(name) {
			r.Value = onOff(*k.value != 0)
		}
		settings[name] = r
	}
	return settings, nil
}

// Write implements Drivers. What is not to be changed is written as it is.
func (e Ethtool) Write(place Place, values map[string]string) error {
	if place.Group == Offloads {
		changes := map[string]bool{}
		for name, value := range values {
			changes[name] = value == On
		}
		return e.Change(place.NIC, changes)
	}
	knobs, set, err := e.knobs(place)
	if err != nil {
		return err
	}
	for name, value := range values {
		k := knobs[name]
		if k == nil {
			return fmt.Errorf("%s: %w", place.setting(name), syscall.EOPNOTSUPP)
		}
		number := map[string]string{On: "1", Off: "0"}[value]
		if !isSwitch(name) {
			number = value
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return fmt.Errorf("%s: %w", place.setting(name), err)
		}
		*k.value = uint32(n)
	}
	return set()
}

func isSwitch(name string) bool { return name == adaptiveRX || name == adaptiveTX }

func onOff(on bool) string {
	if on {
		return On
	}
	return Off
}

// knobs of a group as they are, by name, and what sets the group to what they were changed to.
func (e Ethtool) knobs(place Place) (map[string]*knob, func() error, error) {
	nic := place.NIC
	switch place.Group {
	case Channels:
		c, err := e.GetChannels(nic)
		return map[string]*knob{
			"rx": bounded(&c.RxCount, c.MaxRx), "tx": bounded(&c.TxCount, c.MaxTx), "combined": bounded(&c.CombinedCount, c.MaxCombined),
		}, func() error { _, err := e.SetChannels(nic, c); return err }, err
	case Rings:
		r, err := e.GetRing(nic)
		return map[string]*knob{
			"rx": bounded(&r.RxPending, r.RxMaxPending), "tx": bounded(&r.TxPending, r.TxMaxPending),
		}, func() error { _, err := e.SetRing(nic, r); return err }, err
	case Coalescing:
		c, err := e.GetCoalesce(nic)
		return map[string]*knob{
			adaptiveRX: {value: &c.UseAdaptiveRxCoalesce}, adaptiveTX: {value: &c.UseAdaptiveTxCoalesce},
			"rxUsecs": {value: &c.RxCoalesceUsecs}, "rxFrames": {value: &c.RxMaxCoalescedFrames},
			"txUsecs": {value: &c.TxCoalesceUsecs}, "txFrames": {value: &c.TxMaxCoalescedFrames},
		}, func() error { _, err := e.SetCoalesce(nic, c); return err }, err
	}
	return nil, nil, fmt.Errorf("drivers have no settings %s", place.Group)
}

func (e Ethtool) readOffloads(nic string, names []string) (map[string]Reading, error) {
	features, err := e.FeaturesWithState(nic)
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return map[string]Reading{}, nil
	}
	if err != nil {
		return nil, err
	}
	settings := map[string]Reading{}
	for _, name := range names {
		if f, has := features[name]; has {
			settings[name] = Reading{Value: onOff(f.Active), Fixed: !f.Available || f.NeverChanged}
		}
	}
	return settings, nil
}
