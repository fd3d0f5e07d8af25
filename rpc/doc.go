// Package rpc is the edges of a node: gRPC both ways, HTTP/JSON, and the doors
// for programs that already speak to something else.
//
// Whatever the door, a request takes one way: its limits are checked here, then
// it goes to the router (writes) or the coordinator (questions). An error is a
// *proto.Error until the last moment, where each door dresses it as its callers
// expect:
//
//	           ┌ grpc.go         status with ebbv1.Error as detail
//	proto.Error┼ http.go         {"error":{"code":"EBB-2002","message":..,"hint":..}}
//	           ├ forgettable.go  HTTP 500, {"status_code":500,"status_txt":CODE,"data":null}
//	           ├ pyforget.go     {"status_code":400,"data":[],"error_message":..}
//	           └ gocountme.go    HTTP 500, {"status_code":500,"status_txt":"","data":..}
package rpc
