package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Without TLS, a proof shows who calls, but not who answers. So a node that asks another one sends a challenge. The
// other answers with a MAC of the challenge and of its answer, by a key that the asking node accepts. An attacker that
// passes the question on to a real node can only return the answer of that node.
//
//	ebb-challenge  32 hexadecimal digits, drawn for each question
//	ebb-vouch      in the header of the answer: HMAC-SHA-256 of the challenge and the answer, 64 hexadecimal digits;
//	               one by a root token and one by a cluster secret, where there are such
const (
	challengeKey = "ebb-challenge"
	vouchKey     = "ebb-vouch"
	challengeLen = 32
)

// voucher is the MAC of an answer.
func voucher(key, challenge, said string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "ebb answer\n%s\n%s", challenge, said) // a proof begins with other words
	return mac.Sum(nil)
}

// vouch proves what this node answers, if another node asks for a proof.
func (a *Access) vouch(ctx context.Context, said func() string) {
	md, _ := metadata.FromIncomingContext(ctx)
	challenge := first(md, challengeKey)
	if a == nil || len(challenge) != challengeLen || !callerOf(ctx).node {
		return
	}
	answer, proofs := said(), metadata.MD{}
	for _, keys := range [][]string{a.keys.root, a.keys.secrets} {
		if len(keys) > 0 {
			proofs.Append(vouchKey, hex.EncodeToString(voucher(keys[0], challenge, answer)))
		}
	}
	_ = grpc.SetHeader(ctx, proofs) // without it the caller does not believe the answer
}

// vouched reports whether the header of an answer proves it.
func (a *Access) vouched(header metadata.MD, challenge, said string) bool {
	for _, text := range header.Get(vouchKey) {
		shown, err := hex.DecodeString(text)
		if err != nil {
			return false
		}
		for _, key := range slices.Concat(a.keys.root, a.keys.secrets) {
			if hmac.Equal(shown, voucher(key, challenge, said)) {
				return true
			}
		}
	}
	return false
}

// VouchedStatus asks the peer for its status, and reports whether it proved its answer by a key of this node. The proof
// covers what statusSaid has.
func (p *Peer) VouchedStatus(ctx context.Context, a *Access) (*ebbv1.StatusResponse, bool, error) {
	type answer = *ebbv1.StatusResponse
	return vouchedCall(ctx, a, statusSaid, func(ctx context.Context, header grpc.CallOption) (answer, error) {
		resp, err := p.shards.NodeStatus(ctx, &ebbv1.StatusRequest{}, grpc.MaxCallRecvMsgSize(peerRecvBytesMax), header)
		return resp, p.named(err)
	})
}

// VouchedTable asks the peer for the table, and reports whether it proved its answer by a key of this node. The proof
// covers what tableSaid has.
func (p *Peer) VouchedTable(ctx context.Context, a *Access) (*ebbv1.TableResponse, bool, error) {
	return vouchedCall(ctx, a, tableSaid, func(ctx context.Context, header grpc.CallOption) (*ebbv1.TableResponse, error) {
		resp, err := p.ebb.Table(ctx, &ebbv1.TableRequest{}, grpc.MaxCallRecvMsgSize(peerRecvBytesMax), header)
		return resp, p.named(err)
	})
}

func vouchedCall[R any](ctx context.Context, a *Access, said func(R) string,
	call func(context.Context, grpc.CallOption) (R, error),
) (R, bool, error) {
	var b [challengeLen / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	challenge := hex.EncodeToString(b[:])
	var header metadata.MD
	resp, err := call(metadata.AppendToOutgoingContext(ctx, challengeKey, challenge), grpc.Header(&header))
	return resp, err == nil && a.vouched(header, challenge, said(resp)), err
}

// statusSaid is the part of a node's status on which decisions are based. Builds that differ in other fields write the
// same.
func statusSaid(resp *ebbv1.StatusResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "status %q %d\n", resp.GetClusterId(), resp.GetVersion())
	for _, n := range resp.GetNodes() {
		r := n.GetNode()
		fmt.Fprintf(&b, "%q %q %q %q\n", r.GetName(), r.GetGrpcAddress(), r.GetHttpAddress(), r.GetGossipAddress())
		fmt.Fprintf(&b, "%q %q %q %t\n", r.GetVersion(), r.GetZone(), r.GetDisk(), r.GetEnrolled())
		fmt.Fprintf(&b, "%q %d %d %d\n", n.GetPhase(), n.GetStartedUs(), n.GetStorageOldest(), n.GetStorageNewest())
		fmt.Fprintf(&b, "%q %q\n", n.GetHears(), n.GetMet())
		for _, m := range n.GetReplicas() {
			fmt.Fprintf(&b, "%d %q %d\n", m.GetShard(), m.GetRole(), m.GetTerm())
		}
	}
	return b.String()
}

// tableSaid is the part of another node's table on which decisions are based.
func tableSaid(resp *ebbv1.TableResponse) string {
	t := resp.GetTable()
	var b strings.Builder
	fmt.Fprintf(&b, "table %q %q %d\n", resp.GetNode(), t.GetClusterId(), t.GetEpoch())
	fmt.Fprintf(&b, "%d %d %q\n", t.GetShards(), t.GetReplication(), t.GetRemoved())
	for _, r := range t.GetNodes() {
		fmt.Fprintf(&b, "%q %q %t\n", r.GetName(), r.GetDisk(), r.GetEnrolled())
	}
	return b.String()
}
