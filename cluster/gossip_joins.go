package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// joinFault returns a short text why an address could not be joined; "" for nil. It looks for phrases in the error
// text, since memberlist does not keep the cause of its errors.
func joinFault(err error) string {
	if err == nil {
		return ""
	}
	text := strings.TrimSpace(err.Error())
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	last := text[strings.LastIndex(text, ": ")+1:]
	switch {
	case says("state is not encrypted"):
		return "it does not speak encrypted gossip, and this node has --gossip-keys"
	case says("state is encrypted"):
		return "its gossip is encrypted: start this node with the same --gossip-keys"
	case says("No installed keys could decrypt"):
		return "its --gossip-keys are others"
	case says("is of cluster"):
		return "it is of another cluster"
	case says("dial "):
		return "no node answers:" + last
	case says("gossip refused", "msgType", "EOF", "reset", "broken pipe", "decode", "msgpack"):
		return "it does not speak gossip"
	}
	return strings.TrimSpace(last)
}

// triedShown is how many addresses Unjoined names.
const triedShown = 5

// tries records the result of an attempt to join an address.
func (g *Gossip) tries(addr string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		delete(g.tried, addr)
	} else if _, known := g.tried[addr]; known || len(g.tried) < foreignMax {
		g.tried[addr] = joinFault(err)
	}
}

// Unjoined returns why addresses that were to be joined could not be joined at the last attempt; "" if there are none.
func (g *Gossip) Unjoined() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var said []string
	for _, addr := range slices.Sorted(maps.Keys(g.tried)) {
		said = append(said, addr+": "+g.tried[addr])
	}
	if len(said) == 0 {
		return ""
	}
	if n := len(said) - triedShown; n > 0 {
		said = append(said[:triedShown], fmt.Sprintf("and %d others", n))
	}
	return strings.Join(said, "; ") + ". --join names gossip addresses of other nodes: port 7071, unless their --gossip says otherwise"
}
