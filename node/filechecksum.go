package node

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// The two small files of a data directory end with a CRC-32C of all bytes before it. Older builds, which know no
// checksums, ignore it where it stands. Without it, a lost bit on disk could give a node another name for its replicas,
// or an epoch above all later ones.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errWrongChecksum = errors.New("its checksum is not that of its content")

// The checksum of node.json is its last member, and has checksumLen bytes.
const (
	checksumMember = ",\n  \"checksum\": \"%08x\"\n}\n"
	checksumLen    = len(checksumMember) - len("%08x") + 8
)

func checksumMemberOf(body []byte) []byte {
	return fmt.Appendf(nil, checksumMember, crc32.Checksum(body, castagnoli))
}

// encode writes an identity with its checksum.
func (id *identity) encode() ([]byte, error) {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", identityName, err)
	}
	body := bytes.TrimSuffix(raw, []byte("\n}"))
	return append(body, checksumMemberOf(body)...), nil
}

// decode reads an identity. An identity without a checksum must be from a build that wrote none. It may have no member
// that this build does not know, since that could be a damaged checksum.
func (id *identity) decode(raw []byte) error {
	var read identity
	if n := len(raw) - checksumLen; n > 0 && bytes.Equal(raw[n:], checksumMemberOf(raw[:n])) {
		if err := json.Unmarshal(raw, &read); err != nil {
			return err
		}
		*id = read
		return nil
	}
	if bytes.Contains(raw, []byte(`"checksum"`)) {
		return errWrongChecksum
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&read); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows its end")
	}
	*id = read
	return nil
}

// checksumField is the highest possible field number, which a table will never use.
const checksumField = protowire.MaxValidNumber

// tableChecksumLen is the length of that field: its tag, and the checksum.
var tableChecksumLen = protowire.SizeTag(checksumField) + protowire.SizeFixed32()

func withChecksum(body []byte) []byte {
	b := protowire.AppendTag(body, checksumField, protowire.Fixed32Type)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
}

// encodeTable writes a table with its checksum.
func encodeTable(t *ebbv1.Table) ([]byte, error) {
	raw, err := protobuf.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", tableName, err)
	}
	return withChecksum(raw), nil
}

// decodeTable reads a table. A table without a valid checksum, also from a build that wrote none, is an error: the node
// gets it again from its log, or from the others.
func decodeTable(raw []byte) (*ebbv1.Table, error) {
	n := len(raw) - tableChecksumLen
	if n < 0 || !bytes.Equal(raw[n:], withChecksum(raw[:n:n])[n:]) {
		return nil, errWrongChecksum
	}
	t := new(ebbv1.Table)
	return t, protobuf.Unmarshal(raw[:n], t)
}
