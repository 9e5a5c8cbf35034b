// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/weft-storage/weft/api/v1alpha1"
)

const (
	guardTable = "weft-guard"
	// guardLifetime after which the kernel lets connections in again by
	// itself; linking thousands of subsystems takes less than a second.
	guardLifetime = time.Minute
)

// guard drops new TCP connections to portals whose exports are being linked; see the package's doc.
type guard struct {
	// clean says that no table is left, of this process or of one that was killed.
	clean bool
	// tried says that this process has looked for one of a process that was killed.
	tried bool
}

// begin a call. What a process left that was killed is removed; if it cannot
// be, it ends by itself.
func (g *guard) begin(ctx context.Context) {
	if g.tried {
		return
	}
	g.tried = true
	if err := g.remove(); err != nil {
		logr.FromContextOrDiscard(ctx).Info("Hosts that reconnect while the target restores its exports may give up: cannot use nftables", "reason", err.Error())
	}
}

// close TCP portals for new connections; open must be called. Where nftables
// cannot be used nothing is closed, and that is logged.
func (g *guard) close(ctx context.Context, portals []v1alpha1.Portal) (open func()) {
	log := logr.FromContextOrDiscard(ctx)
	var tcp []v1alpha1.Portal
	for _, p := range portals {
		if p.Transport == v1alpha1.TransportTCP {
			tcp = append(tcp, p)
		}
	}
	if len(tcp) == 0 {
		return func() {}
	}
	if err := g.remove(); err != nil {
		log.Info("Hosts that reconnect now may give up: cannot use nftables", "reason", err.Error())
		return func() {}
	}
	if err := addGuard(tcp); err != nil {
		log.Info("Hosts that reconnect now may give up: cannot use nftables", "reason", err.Error())
	}
	g.clean = false
	return func() {
		if err := g.remove(); err != nil {
			log.Info("New connections are accepted only after a minute: cannot remove the rule", "reason", err.Error())
		}
	}
}

// remove the table, also one that a process left which was killed.
func (g *guard) remove() error {
	if g.clean {
		return nil
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == guardTable {
			conn.DelTable(t)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("delete table %s: %w", guardTable, err)
	}
	g.clean = true
	return nil
}

func addGuard(portals []v1alpha1.Portal) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: guardTable})
	chain := conn.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityRaw,
	})
	// The set is what ends by itself: its elements time out, a rule cannot.
	set := &nftables.Set{Table: table, Name: "closed", KeyType: nftables.TypeInetService, HasTimeout: true}
	elements := make([]nftables.SetElement, 0, len(portals))
	seen := map[int32]bool{}
	for _, p := range portals {
		if !seen[p.Port] {
			elements = append(elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(uint16(p.Port)), Timeout: guardLifetime})
		}
		seen[p.Port] = true
	}
	if err := conn.AddSet(set, elements); err != nil {
		return err
	}
	for _, p := range portals {
		addr, err := netip.ParseAddr(p.Address)
		if err != nil {
			return err
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: dropNew(addr, set)})
	}
	return conn.Flush()
}

// dropNew matches the first packet of a TCP connection to the address, on a port of the set, and drops it.
func dropNew(addr netip.Addr, set *nftables.Set) []expr.Any {
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16) // where the destination is in the IP header
	if addr.Is6() {
		family, offset = unix.NFPROTO_IPV6, 24
	}
	raw := addr.AsSlice()
	const syn, flags = 0x02, 0x17 // of FIN, SYN, RST and ACK only SYN is set
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(raw))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: raw},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{flags}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}
