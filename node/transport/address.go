package transport

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
)

// Address makes the ServerAddress of a replica: "<node>/<replica id>". It never
// holds an IP address, so that a node that comes back elsewhere strands nothing.
func Address(node string, replica uint64) raft.ServerAddress {
	return raft.ServerAddress(node + "/" + strconv.FormatUint(replica, 10))
}

// ParseAddress takes a ServerAddress apart.
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
