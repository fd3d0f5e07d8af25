// Package rpc has the network interfaces of a node: gRPC both ways, HTTP/JSON, and the HTTP interfaces of other
// programs, which their clients already use.
//
// All interfaces handle a request in the same way. Its limits are checked here, then it is passed to the router
// (writes) or the coordinator (questions). An error stays a *proto.Error until the last moment, when the interface
// encodes it in the form that its callers expect:
//
//	           ┌ grpc.go         status with ebbv1.Error as detail
//	proto.Error┼ http.go         {"error":{"code":"EBB-2002","message":..,"hint":..}}
//	           ├ forgettable.go  HTTP 500, {"status_code":500,"status_txt":CODE,"data":null}
//	           ├ pyforget.go     {"status_code":400,"data":[],"error_message":..}
//	           └ gocountme.go    HTTP 500, {"status_code":500,"status_txt":"","data":..}
package rpc
