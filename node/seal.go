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

// The two small files of a data directory end with a CRC-32C of all that is before it, where older builds, which know no checksums, pass over it: a disk that
// loses a bit would otherwise give a node another name for its replicas, or an epoch that beats every table to come.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errUnsealed = errors.New("its checksum is not that of its content")

// The seal of node.json is its last member, and has sealLen bytes.
const (
	sealMember = ",\n  \"checksum\": \"%08x\"\n}\n"
	sealLen    = len(sealMember) - len("%08x") + 8
)

func sealOf(body []byte) []byte {
	return fmt.Appendf(nil, sealMember, crc32.Checksum(body, castagnoli))
}

// encode writes an identity with its seal.
func (id *identity) encode() ([]byte, error) {
	raw, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", identityName, err)
	}
	body := bytes.TrimSuffix(raw, []byte("\n}"))
	return append(body, sealOf(body)...), nil
}

// decode reads an identity. One without a seal is of a build that wrote none, and has nothing that this build does not know: else it is the seal that is damaged.
func (id *identity) decode(raw []byte) error {
	var read identity
	if n := len(raw) - sealLen; n > 0 && bytes.Equal(raw[n:], sealOf(raw[:n])) {
		if err := json.Unmarshal(raw, &read); err != nil {
			return err
		}
		*id = read
		return nil
	}
	if bytes.Contains(raw, []byte(`"checksum"`)) {
		return errUnsealed
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

// sealField is a field that a table does not have, and never will: the last one there can be.
const sealField = protowire.MaxValidNumber

// tableSealLen is the length of that field: its tag, and the checksum.
var tableSealLen = protowire.SizeTag(sealField) + protowire.SizeFixed32()

func sealTable(body []byte) []byte {
	b := protowire.AppendTag(body, sealField, protowire.Fixed32Type)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(body, castagnoli))
}

// encodeTable writes a table with its seal.
func encodeTable(t *ebbv1.Table) ([]byte, error) {
	raw, err := protobuf.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", tableName, err)
	}
	return sealTable(raw), nil
}

// decodeTable reads a table. One without a seal, also of a build that wrote none, is as good as none: a node has it again from its log, or from the others.
func decodeTable(raw []byte) (*ebbv1.Table, error) {
	n := len(raw) - tableSealLen
	if n < 0 || !bytes.Equal(raw[n:], sealTable(raw[:n:n])[n:]) {
		return nil, errUnsealed
	}
	t := new(ebbv1.Table)
	return t, protobuf.Unmarshal(raw[:n], t)
}
