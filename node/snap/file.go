package snap

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"
	"github.com/zeebo/xxh3"

	"github.com/ebbdb/ebb/node/fs"
	"github.com/ebbdb/ebb/proto"
)

const (
	formatVersion = 2 // 2: chunks, and a list
	headerLen     = 16
	trailerLen    = 24
	metaLenMax    = 1 << 20
)

var (
	headerMagic  = [8]byte{'e', 'b', 'b', ' ', 's', 'n', 'a', 'p'}
	trailerMagic = [8]byte{'p', 'a', 'n', 's', ' ', 'b', 'b', 'e'}
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
	le           = binary.LittleEndian
)

// meta is the description of a snapshot in its file.
type meta struct {
	Index, Term        uint64
	Configuration      raft.Configuration
	ConfigurationIndex uint64
	Size               int64  // of the content
	ListLen            int64  // bytes
	ListHash           uint64 // XXH3-64
	Files              []piece
	Owner              string `json:",omitempty"` // Config.Owner; "" in files of builds that had none

	listAt int64 // where the list begins
}

// piece is an older file that holds chunks of a snapshot.
type piece struct {
	ID   string
	Size int64 // of the file
}

func (m *meta) raft(id string) *raft.SnapshotMeta {
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: id, Index: m.Index, Term: m.Term,
		Configuration: m.Configuration.Clone(), ConfigurationIndex: m.ConfigurationIndex, Size: m.Size,
	}
}

func header() []byte {
	b := append(make([]byte, 0, headerLen), headerMagic[:]...)
	b = le.AppendUint32(b, formatVersion)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ending encodes what follows the list: meta and the trailer.
func (m *meta) ending() ([]byte, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	length, crc := len(b), crc32.Checksum(b, castagnoli)
	b = le.AppendUint32(b, uint32(length))
	b = le.AppendUint32(b, crc)
	b = le.AppendUint64(b, 0)
	return append(b, trailerMagic[:]...), nil
}

// readMeta reads and checks all of a file except its chunks and its list.
func readMeta(f fs.File) (*meta, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if err := checkHeader(f, size); err != nil {
		return nil, err
	}
	var t [trailerLen]byte
	if size < headerLen+trailerLen {
		return nil, corrupt(f, size, "it is cut off")
	}
	at := size - trailerLen
	if _, err := f.ReadAt(t[:], at); err != nil {
		return nil, err
	}
	length := int64(le.Uint32(t[:]))
	if !bytes.Equal(t[16:], trailerMagic[:]) || le.Uint64(t[8:]) != 0 || length > metaLenMax || length > at-headerLen {
		return nil, corrupt(f, at, "it does not end like a snapshot")
	}
	b := make([]byte, length)
	if _, err := f.ReadAt(b, at-length); err != nil {
		return nil, err
	}
	if crc32.Checksum(b, castagnoli) != le.Uint32(t[4:]) {
		return nil, corrupt(f, at-length, "its description has a wrong checksum")
	}
	m := new(meta)
	if err := json.Unmarshal(b, m); err != nil {
		return nil, corrupt(f, at-length, err.Error())
	}
	if m.listAt = at - length - m.ListLen; m.Size < 0 || m.ListLen < 0 || m.listAt < headerLen || len(m.Files) >= fileNumbers {
		return nil, corrupt(f, at-length, fmt.Sprintf("a list of %d bytes has no room before its description", m.ListLen))
	}
	for _, p := range m.Files {
		if _, ok := parseID(p.ID); !ok {
			return nil, corrupt(f, at-length, fmt.Sprintf("it names a file %q", p.ID))
		}
	}
	return m, nil
}

func checkHeader(f fs.File, size int64) error {
	var b [headerLen]byte
	if _, err := f.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch {
	case size < headerLen || [8]byte(b[:8]) != headerMagic || le.Uint32(b[12:]) != crc32.Checksum(b[:12], castagnoli):
		return corrupt(f, 0, "it does not start like a snapshot")
	case le.Uint32(b[8:]) > formatVersion:
		return proto.ErrNewerVersion.Errorf("%s has snapshot format %d; this version reads up to %d",
			f.Name(), le.Uint32(b[8:]), formatVersion).WithHint("run the version that wrote it, or a later one")
	case le.Uint32(b[8:]) < formatVersion:
		return corrupt(f, 8, "it has a format from before the first release")
	}
	return nil
}

// readList reads and checks the list.
func (m *meta) readList(f fs.File) ([]byte, error) {
	list := make([]byte, m.ListLen)
	if _, err := f.ReadAt(list, m.listAt); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if xxh3.Hash(list) != m.ListHash {
		return nil, corrupt(f, m.listAt, "its list has a wrong hash")
	}
	return list, nil
}

func corrupt(f fs.File, offset int64, what string) error {
	return proto.ErrCorrupt.Errorf("snapshot %s is corrupt at offset %d: %s", f.Name(), offset, what)
}
