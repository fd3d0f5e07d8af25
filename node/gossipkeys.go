package node

import (
	"bytes"
	"log/slog"

	"github.com/ebbdb/ebb/cluster"
	"github.com/ebbdb/ebb/internal/trust"
	"github.com/ebbdb/ebb/proto"
)

// gossipKeys are the keys of gossip, from a file.
type gossipKeys struct {
	path   string
	logger *slog.Logger
	keys   [][]byte // as read at the start
	read   []byte   // the file as last read
	fault  string   // that was logged last
}

func openGossipKeys(path string, logger *slog.Logger) (*gossipKeys, error) {
	k := &gossipKeys{path: path, logger: logger}
	var warning string
	var err error
	if k.read, warning, err = trust.ReadSecret(path); err == nil {
		k.keys, err = cluster.ParseGossipKeys(k.read)
	}
	if err != nil {
		return nil, k.named(err)
	}
	if warning != "" {
		logger.Warn("check secret file", "warning", warning)
	}
	return k, nil
}

// first returns the keys that gossip starts with; none if k is nil.
func (k *gossipKeys) first() [][]byte {
	if k == nil {
		return nil
	}
	return k.keys
}

func (k *gossipKeys) named(err error) error {
	e := proto.AsError(err)
	return proto.ErrBadRequest.Errorf("keys of gossip in %s: %s", k.path, e.Message).WithHint(e.Hint)
}

// look sets the keys when the file has changed. A file that cannot be used changes nothing, which is logged once.
func (k *gossipKeys) look(set func([][]byte) error) {
	text, _, err := trust.ReadSecret(k.path)
	if err == nil && bytes.Equal(text, k.read) {
		k.fault = ""
		return
	}
	var keys [][]byte
	if err == nil {
		keys, err = cluster.ParseGossipKeys(text)
	}
	if err == nil {
		err = set(keys)
	}
	if err != nil {
		if err = k.named(err); err.Error() != k.fault {
			k.fault = err.Error()
			k.logger.Error("keys of gossip cannot be used: those from before stay in use", "err", err)
		}
		return
	}
	k.read, k.fault = text, ""
	var marks []string
	for _, key := range keys {
		marks = append(marks, cluster.GossipKeyMark(key))
	}
	k.logger.Info("keys of gossip read again", "file", k.path, "seals_with", marks[0], "opens_with", marks)
}
