package node

import "bytes"

// Reseal returns a node.json that was edited with a checksum that is right again.
func Reseal(raw []byte) []byte {
	body := raw[:bytes.LastIndex(raw, []byte(",\n  \"checksum\""))]
	return append(bytes.Clone(body), sealOf(body)...)
}
