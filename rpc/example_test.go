package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

func ExampleNewHTTP() {
	h := NewHTTP(fixture().services())
	for _, target := range []string{"/v1/ns/default/keys", "/v1/ns/nowhere/keys", "/get?distribution=colors&field=red"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 {"coverage":{"shards_total":64,"shards_answered":64,"shards_failed":[],"shards_stale":[],"as_of_min_us":1700000000500000,"as_of_max_us":1700000000500000,"missing_keys":[],"missing_total":0},"count_keys":{"keys":3}}
	//
	// 404 {"error":{"code":"EBB-2013","message":"namespace nowhere does not exist"}}
	//
	// 200 {"status_code":200,"status_txt":"","data":{"distribution":"colors","Z":12,"T":1700000000,"data":[{"bin":"red","count":7,"p":0.5713128038897892}],"rate":0.0001925408834888737,"prune":true,"last_sync_time":1699996400}}
}

func ExampleNewGRPC() {
	l := bufconn.Listen(1 << 16)
	srv := NewGRPC(fixture().services())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///ebb-0",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = ebbv1grpc.NewEbbClient(conn).Ask(context.Background(), &ebbv1.AskRequest{})
	err = ebbv1grpc.FromStatus(err)
	fmt.Println(err, errors.Is(err, proto.ErrBadCount))
	conn.Close()
	srv.Stop()
	<-done
	// Output: 0 questions: a request has 1 to 1000 (EBB-2007) true
}

func ExampleNewPeers() {
	peers := NewPeers(PeersConfig{
		Address: func(node string) (string, error) { return "", errors.New("no such node") },
		Dial:    func(ctx context.Context, address string) (net.Conn, error) { return nil, errors.New("refused") },
	})
	defer peers.Close()
	_, err := peers.Backend("ebb-7")
	fmt.Println(err)
	// Output: node ebb-7 has no known address: no such node (EBB-1001)
}
