package trust

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// peers secures connections to other nodes. The authority of a connection is the name of a node.
type peers struct {
	store *Store
	names func(node string) []string
}

// Peers returns the credentials of connections to other nodes. The target of a connection is the node's name. The
// node's certificate must be valid for that name, for one of the names that names returns, or for the IP that was
// dialled.
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
