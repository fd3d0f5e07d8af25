package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ebbdb/ebb/proto"
)

const (
	gossipKeyBytes = 32 // AES-256
	gossipKeysMax  = 8
	// warnEvery is the shortest time between two log entries about gossip with other keys.
	warnEvery = time.Minute
)

// ParseGossipKeys reads gossip keys, one per line in base64. A node encrypts with the first key and decrypts with any
// of them. Empty lines and lines that begin with # are ignored. Errors name the number of the line, and show nothing of
// its text.
func ParseGossipKeys(text []byte) ([][]byte, error) {
	var keys [][]byte
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		switch {
		case err != nil:
			return nil, proto.ErrBadRequest.Errorf("line %d is not base64", number).WithHint(gossipKeyHint)
		case len(key) != gossipKeyBytes:
			return nil, proto.ErrBadRequest.Errorf("line %d is a key of %d bytes: it must have %d", number, len(key), gossipKeyBytes).WithHint(gossipKeyHint)
		case slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }):
			return nil, proto.ErrBadRequest.Errorf("line %d is a key that is there already", number)
		case len(keys) == gossipKeysMax:
			return nil, proto.ErrBadRequest.Errorf("more than %d keys: that is the limit", gossipKeysMax).WithHint("take out those that no node uses any more")
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, proto.ErrBadRequest.Errorf("there is no key").WithHint(gossipKeyHint)
	}
	return keys, nil
}

const gossipKeyHint = "`ebb cert gossip-key` makes a key"

// GossipKeyMark returns a public name for a key: the beginning of its SHA-256.
func GossipKeyMark(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:4])
}

// keyring returns memberlist's keyring of these keys; nil if there are none.
func keyring(keys [][]byte) (*memberlist.Keyring, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	return memberlist.NewKeyring(keys, keys[0])
}

// SetKeys replaces the keys. It returns an error if Gossip was opened without keys, or if keys is empty.
func (g *Gossip) SetKeys(keys [][]byte) error {
	if g.keys == nil || len(keys) == 0 {
		return proto.ErrBadRequest.Errorf("gossip without keys stays without, and with keys it needs at least one")
	}
	for _, k := range keys {
		if err := g.keys.AddKey(k); err != nil {
			return err
		}
	}
	if err := g.keys.UseKey(keys[0]); err != nil {
		return err
	}
	return trim(g.keys, keys)
}

// trim removes keys that are not wanted. It removes from the end, and appends the wanted ones again: memberlist shifts
// the keys behind a removed one while other goroutines read them.
func trim(ring *memberlist.Keyring, wanted [][]byte) error {
	has := func(key []byte) bool {
		return slices.ContainsFunc(wanted, func(k []byte) bool { return bytes.Equal(k, key) })
	}
	have := slices.Clone(ring.GetKeys())
	first := slices.IndexFunc(have, func(k []byte) bool { return !has(k) })
	if first < 0 {
		return nil
	}
	for i := len(have) - 1; i >= first; i-- {
		if err := ring.RemoveKey(have[i]); err != nil {
			return err
		}
	}
	for _, k := range wanted {
		if err := ring.AddKey(k); err != nil {
			return err
		}
	}
	return nil
}

// lineWriter receives memberlist's log lines. Most of what memberlist calls an error is usual in a network, so lines
// are logged as debug. The exception is gossip of a node with other keys.
type lineWriter struct {
	log *slog.Logger

	mu   sync.Mutex // guards what follows
	said time.Time
}

// keyless are memberlist's phrases about messages that it could not decrypt, or that were not encrypted.
var keyless = [][]byte{
	[]byte("No installed keys could decrypt"), []byte("Decrypt packet failed"), []byte("encryption is configured but"), []byte("remote state is encrypted"),
}

func (w *lineWriter) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	if slices.ContainsFunc(keyless, func(words []byte) bool { return bytes.Contains(line, words) }) && w.due(time.Now()) {
		w.log.Warn("dropping gossip: encrypted with an unknown key, or not encrypted", "memberlist", text)
	} else {
		w.log.Debug(text)
	}
	return len(line), nil
}

func (w *lineWriter) due(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.said.IsZero() && now.Sub(w.said) < warnEvery {
		return false
	}
	w.said = now
	return true
}
