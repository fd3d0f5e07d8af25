package transport

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
)

// Address makes the ServerAddress of a replica: "<node>/<replica id>". It holds no IP address, so it stays valid when a
// node restarts at another address.
func Address(node string, replica uint64) raft.ServerAddress {
	return raft.ServerAddress(node + "/" + strconv.FormatUint(replica, 10))
}

// ParseAddress splits a ServerAddress into the node's name and the replica id.
func ParseAddress(a raft.ServerAddress) (node string, replica uint64, err error) {
	node, id, ok := strings.Cut(string(a), "/")
	if ok && node != "" {
		replica, err = strconv.ParseUint(id, 10, 64)
	}
	if !ok || node == "" || err != nil {
		return "", 0, fmt.Errorf("server address %q is not <node>/<replica id>", a)
	}
	return node, replica, nil
}
