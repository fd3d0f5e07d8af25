package rpc

import "net/http"

// frontPage is the answer to a person that opens a node's HTTP address: it lists the interfaces. It shows nothing of
// the cluster, so it needs no token.
const frontPage = `{
  "this is": "a node of ebb, over HTTP",
  "GET /openapi.json": "every request, in OpenAPI",
  "GET /v1/status": "nodes, shards and leaders",
  "GET /v1/namespaces": "the namespaces",
  "GET /v1/ns/default/keys": "how many keys a namespace has",
  "GET /v1/ns/default/distribution/KEY?top=10": "what is counted under a key",
  "POST /v1/increment": "count; bodies are JSON, with the header Content-Type: application/json",
  "POST /v1/query": "ask in the query language: {\"text\": \"top 10 KEY\"}",
  "GET /incr, /get, /dist, /nmostprobable, /dbsize": "as forgettable has them",
  "GET /incr, /get, /bin, /dist with key, /ping": "as the Python forgettable has them",
  "GET /add, /addhash, /addmulti, /get, /cardinality, /jaccard, /correlation, /query": "as gocountme has them",
  "gRPC": "another port, 7070 unless ebb serve --grpc says otherwise: the ebb command and the SDK speak to that one",
  "metrics, health": "the admin port, 7081 unless ebb serve --admin says otherwise: /metrics, /livez, /startupz, /readyz"
}`

// serveFront answers with frontPage.
func serveFront(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, []byte(frontPage))
}
