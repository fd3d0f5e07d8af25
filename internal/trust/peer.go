package trust

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// peers dials other nodes. The authority of a connection is a node's name.
type peers struct {
	store *Store
	names func(node string) []string
}

// Peers returns what connections to other nodes are secured with. The target of a connection is the node's name; its
// certificate must hold for that name, for one of those that names returns, or for the IP that was dialled.
func (s *Store) Peers(names func(node string) []string) credentials.TransportCredentials {
	return &peers{s, names}
}

func (p *peers) ClientHandshake(ctx context.Context, node string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	names := append(p.names(node), node)
	if host, _, err := net.SplitHostPort(conn.RemoteAddr().String()); err == nil {
		names = append(names, host)
	}
	secured, info, err := credentials.NewTLS(p.store.Peer(names...)).ClientHandshake(ctx, node, conn)
	if err != nil {
		err = Plainly(err, p.store.now())
	}
	return secured, info, err
}

func (p *peers) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	panic("trust: these credentials only dial")
}

func (p *peers) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (p *peers) Clone() credentials.TransportCredentials { return p }

func (p *peers) OverrideServerName(string) error { return nil } // never called since gRPC deprecated it
