package cluster

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// A snapshot of the control group:
//
//	+----------+---------+----------------+---------------------+---------+
//	| "ebbctl" | version | payload length | payload             | CRC32C  |
//	| 6 bytes  | u16     | u32            | ebbv1.ControlState  | u32     |
//	+----------+---------+----------------+---------------------+---------+
//
// Integers are little-endian. The CRC covers everything before it. The same
// state gives the same bytes.
const (
	controlMagic       = "ebbctl"
	controlVersion     = 1
	controlHeaderLen   = len(controlMagic) + 2 + 4
	controlPayloadMax  = 64 << 20
	controlTrailerLen  = 4
	controlSnapshotMax = controlHeaderLen + controlPayloadMax + controlTrailerLen
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ControlView is the control state at one moment. It does not change while the Control applies more entries.
type ControlView struct {
	applied uint64
	table   *Table
	changes map[string]uint32
	purges  purges
	clients clientChanges
}

// Freeze returns a view of the present state. Only the goroutine that applies may call it.
func (c *Control) Freeze() *ControlView {
	return &ControlView{
		applied: c.applied, table: c.Table(), changes: maps.Clone(c.changes), purges: maps.Clone(c.purges),
		clients: slices.Clone(c.clients),
	}
}

// WriteTo writes a snapshot of the view.
func (v *ControlView) WriteTo(w io.Writer) (int64, error) {
	state := &ebbv1.ControlState{Applied: v.applied, Table: v.table.Wire()}
	for _, ns := range v.table.AllNamespaces() {
		state.HalfLifeChanges = append(state.HalfLifeChanges, v.changes[ns.GetName()])
	}
	state.Purges, state.ClientChanges = v.purges.wire(v.table), v.clients.wire()
	payload, err := pb.MarshalOptions{Deterministic: true}.Marshal(state)
	if err != nil {
		return 0, fmt.Errorf("encode control snapshot: %w", err)
	}
	b := make([]byte, 0, controlHeaderLen+len(payload)+controlTrailerLen)
	b = append(b, controlMagic...)
	b = binary.LittleEndian.AppendUint16(b, controlVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	n, err := w.Write(b)
	return int64(n), err
}

// WriteTo writes a snapshot of the present state. Only the goroutine that applies may call it.
func (c *Control) WriteTo(w io.Writer) (int64, error) { return c.Freeze().WriteTo(w) }

// Restore replaces the state by a snapshot. It returns CORRUPT for bytes that are not a snapshot, and NEWER_VERSION for
// a snapshot of a newer version; the state is then unchanged.
func (c *Control) Restore(r io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(r, int64(controlSnapshotMax)+1))
	if err != nil {
		return fmt.Errorf("read control snapshot: %w", err)
	}
	view, err := parseControlSnapshot(raw)
	if err != nil {
		return err
	}
	c.applied, c.changes, c.purges, c.clients = view.applied, view.changes, view.purges, view.clients
	c.table.Store(view.table)
	return nil
}

func parseControlSnapshot(raw []byte) (*ControlView, error) {
	if len(raw) < controlHeaderLen+controlTrailerLen || !bytes.HasPrefix(raw, []byte(controlMagic)) {
		return nil, proto.ErrCorrupt.Errorf("control snapshot of %d bytes: not a snapshot", len(raw))
	}
	body, trailer := raw[:len(raw)-controlTrailerLen], raw[len(raw)-controlTrailerLen:]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(trailer) {
		return nil, proto.ErrCorrupt.Errorf("control snapshot of %d bytes: checksum does not match", len(raw))
	}
	if v := binary.LittleEndian.Uint16(body[len(controlMagic):]); v != controlVersion {
		return nil, proto.ErrNewerVersion.Errorf("control snapshot of version %d: this program reads version %d", v, controlVersion)
	}
	payload := body[controlHeaderLen:]
	if n := binary.LittleEndian.Uint32(body[len(controlMagic)+2:]); int(n) != len(payload) {
		return nil, proto.ErrCorrupt.Errorf("control snapshot announces %d bytes and has %d", n, len(payload))
	}
	return parseControlState(payload)
}

func parseControlState(payload []byte) (*ControlView, error) {
	state := new(ebbv1.ControlState)
	if err := pb.Unmarshal(payload, state); err != nil {
		return nil, proto.ErrCorrupt.Errorf("control snapshot: %v", err)
	}
	table, err := NewTable(state.GetTable())
	if err != nil {
		return nil, proto.ErrCorrupt.Errorf("control snapshot: %v", err)
	}
	namespaces := table.AllNamespaces()
	if len(state.GetHalfLifeChanges()) != len(namespaces) {
		return nil, proto.ErrCorrupt.Errorf("control snapshot counts changes of %d namespaces and has %d", len(state.GetHalfLifeChanges()), len(namespaces))
	}
	changes := make(map[string]uint32)
	for i, ns := range namespaces {
		// an older version wrote no template
		if err := proto.CheckNamespace(proto.FillNamespace(ns, proto.DefaultNamespaceSettings())); err != nil {
			return nil, proto.ErrCorrupt.Errorf("control snapshot, namespace %q: %v", ns.GetName(), err)
		}
		if n := state.GetHalfLifeChanges()[i]; n > 0 {
			changes[ns.GetName()] = n
		}
	}
	purges, err := parsePurges(table, state.GetPurges())
	if err != nil {
		return nil, err
	}
	clients, err := parseClientChanges(state.GetClientChanges())
	if err != nil {
		return nil, err
	}
	return &ControlView{
		applied: state.GetApplied(), table: table, changes: changes, purges: purges, clients: clients,
	}, nil
}
