package client

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/ebbdb/ebb/internal/trust"
)

// diagnoseTimeout bounds one connection to find out what listens at an address that does not speak gRPC.
const diagnoseTimeout = time.Second

// endpointHint is the hint for an address that is another port of a node.
const endpointHint = "clients speak to the gRPC address of a node, port " + PortDefault +
	" unless `ebb serve --grpc` says otherwise: --addr names it"

// diagnoseEndpoint finds out what listens, instead of gRPC, at an address that has never answered. It returns an error
// that names it, or err if it cannot find out.
func (c *Client) diagnoseEndpoint(ctx context.Context, addr string, err error) error {
	text := err.Error()
	says := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	fault := func(hint, message string) error {
		return &unreachable{addr: addr, err: &trust.Fault{Message: message, Hint: hint}}
	}
	switch {
	case says("looked like an HTTP/1.1 header", "unexpected HTTP status code", "received unexpected content-type"):
		return fault(endpointHint, "it speaks HTTP, not gRPC")
	case says("tls: no application protocol"):
		return fault(endpointHint, "it speaks TLS and no gRPC in it, as a node's HTTP does")
	case !says("EOF", "connection reset", "broken pipe", "server preface", "does not speak TLS"):
		return err
	case c.speaksGossip(ctx, addr):
		return fault(endpointHint, "it speaks gossip, not gRPC")
	case c.cfg.tls != nil, says("server preface: http2"):
		return err
	case c.speaksTLS(ctx, addr):
		return fault("--tls-ca names the file with the CA of the nodes", "it hangs up on connections that are not encrypted, as nodes with TLS do")
	}
	return fault(endpointHint, "it hangs up on gRPC and on TLS")
}

// dialRaw opens a connection that lasts at most diagnoseTimeout.
func (c *Client) dialRaw(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	conn, err := c.cfg.dialer(ctx, addr)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(diagnoseTimeout))
}

// gossipPing is a memberlist ping to any node: {"SeqNo": 1, "Node": ""}. gossipAnswers are the first bytes that an
// answer may have: an acknowledgement, compressed, encrypted (then it is an error), or an error.
const (
	gossipPing    = "\x00\x82\xa5SeqNo\x01\xa4Node\xa0"
	gossipAnswers = "\x02\x09\x0a\x0d"
)

// speaksGossip reports whether an address answers a ping of gossip.
func (c *Client) speaksGossip(ctx context.Context, addr string) bool {
	conn, err := c.dialRaw(ctx, addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, gossipPing); err != nil {
		return false
	}
	first := make([]byte, 1)
	_, err = io.ReadFull(conn, first)
	return err == nil && strings.IndexByte(gossipAnswers, first[0]) >= 0
}

// speaksTLS reports whether an address speaks TLS, whether or not it accepts this client.
func (c *Client) speaksTLS(ctx context.Context, addr string) bool {
	conn, err := c.dialRaw(ctx, addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(ctx)
	alert := tls.AlertError(0)
	return err == nil || errors.As(err, &alert) || trust.IsAlert(err)
}
