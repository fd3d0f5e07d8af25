package acked

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	iofs "io/fs"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto/ebbv1"
)

// sumBytes is the length of the checksum at the end of a file.
const sumBytes = 4

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errDamaged = errors.New("its checksum is another")
)

// Load reads what an earlier process saved, except replicas for which there returns false. A missing file counts as
// empty. After an error the returned Memory is empty.
func Load(fsys fs.FS, name string, there func(Replica) bool) (*Memory, error) {
	m := new(Memory)
	raw, err := fs.ReadFile(fsys, name)
	if errors.Is(err, iofs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	all, err := decode(raw)
	if err != nil {
		return m, fmt.Errorf("%s is damaged: %w", name, err)
	}
	for _, a := range all.GetReplicas() {
		if there(Replica{a.GetShard(), a.GetReplica()}) {
			m.Group(a.GetShard()).Saw(a.GetNode(), a.GetReplica(), MarkOf(a))
		}
	}
	m.changed()
	return m, nil
}

func decode(raw []byte) (*ebbv1.AcknowledgedResponse, error) {
	n := len(raw) - sumBytes
	if n < 0 || binary.LittleEndian.Uint32(raw[n:]) != crc32.Checksum(raw[:n], castagnoli) {
		return nil, errDamaged
	}
	all := new(ebbv1.AcknowledgedResponse)
	return all, protobuf.Unmarshal(raw[:n], all)
}

// Save writes the memory to a file, if it has changed since the last Save. After an error the next call tries again.
func (m *Memory) Save(fsys fs.FS, name string) error {
	changed := m.changed()
	if len(changed) == 0 {
		return nil
	}
	raw, err := protobuf.Marshal(&ebbv1.AcknowledgedResponse{Replicas: m.Wire("")})
	if err == nil {
		raw = binary.LittleEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli))
		err = fs.WriteFile(fsys, name, raw)
	}
	if err != nil {
		for _, g := range changed {
			g.mu.Lock()
			g.dirty = true
			g.mu.Unlock()
		}
	}
	return err
}

// changed returns the groups that have changed since the last call.
func (m *Memory) changed() (changed []*Group) {
	for _, g := range m.all() {
		g.mu.Lock()
		if g.dirty {
			changed = append(changed, g)
		}
		g.dirty = false
		g.mu.Unlock()
	}
	return changed
}
