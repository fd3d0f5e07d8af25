package rpc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// OpenAPI returns the OpenAPI 3 document of the HTTP/JSON interface, made from the routes and the descriptors of their
// messages. The caller must not change it.
func OpenAPI() []byte { return openAPI() }

var openAPI = sync.OnceValue(func() []byte {
	schemas := object{}
	b, err := json.MarshalIndent(object{
		"openapi": "3.0.3",
		"info": object{
			"title":       "ebb",
			"version":     "v1",
			"description": "Distributions that forget. Any node answers for the whole cluster.",
		},
		"paths": openAPIPaths(schemas),
		"components": object{
			"schemas":         schemas,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
		},
		"security": []object{{"token": []string{}}, {}}, // a cluster without tokens needs none
	}, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("openapi: %v", err)) // nothing in it can fail
	}
	return append(b, '\n')
})

// object is a JSON object; encoding/json sorts its members.
type object = map[string]any

func (h *httpServer) serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(OpenAPI()) // the caller went away
}

func openAPIPaths(schemas object) object {
	paths := object{}
	for _, rt := range routes {
		path := strings.ReplaceAll(rt.pattern, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path].(object)[strings.ToLower(rt.method)] = openAPIOperation(rt, schemas)
	}
	return paths
}

func openAPIOperation(rt *route, schemas object) object {
	op := object{
		"operationId": rt.id,
		"summary":     rt.summary,
		"responses": object{
			"200":     jsonContent("The answer.", schemaRef(rt.answer.ProtoReflect().Descriptor(), schemas)),
			"default": jsonContent("What was wrong.", errorAnswer(schemas)),
		},
	}
	if rt.watch != nil {
		schema := schemaRef(rt.answer.ProtoReflect().Descriptor(), schemas)
		op["responses"].(object)["200"] = object{"description": "Events, with this as their data.", "content": object{"text/event-stream": object{"schema": schema}}}
	}
	if params := openAPIParams(rt); len(params) > 0 {
		op["parameters"] = params
	}
	if rt.body != nil {
		body := jsonContent("The request.", schemaRef(rt.body.ProtoReflect().Descriptor(), schemas))
		body["required"] = true
		op["requestBody"] = body
	}
	return op
}

func openAPIParams(rt *route) []object {
	var params []object
	for segment := range strings.SplitSeq(rt.pattern, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			params = append(params, object{
				"name": strings.TrimRight(name, ".}"), "in": "path", "required": true, "schema": object{"type": "string"},
			})
		}
	}
	for _, p := range rt.parameters() {
		schema := object{"type": p.kind}
		if p.repeated {
			schema = object{"type": "array", "items": schema}
		}
		params = append(params, object{"name": p.name, "in": "query", "description": p.summary, "schema": schema})
	}
	return params
}

func jsonContent(description string, schema object) object {
	return object{
		"description": description,
		"content":     object{"application/json": object{"schema": schema}},
	}
}

func errorAnswer(schemas object) object {
	ref := schemaRef((&ebbv1.Error{}).ProtoReflect().Descriptor(), schemas)
	return object{"type": "object", "properties": object{"error": ref}, "required": []string{"error"}}
}

// schemaRef returns a reference to the schema of a message, and makes the schema when it is new.
func schemaRef(md protoreflect.MessageDescriptor, schemas object) object {
	name := string(md.Name())
	if _, ok := schemas[name]; !ok {
		properties := object{}
		schema := object{"type": "object", "properties": properties}
		schemas[name] = schema // before its fields: they may refer to it
		for i := range md.Fields().Len() {
			fd := md.Fields().Get(i)
			properties[string(fd.Name())] = fieldSchema(fd, schemas)
		}
		describeOneofs(md, schema)
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func describeOneofs(md protoreflect.MessageDescriptor, schema object) {
	var lines []string
	for i := range md.Oneofs().Len() {
		if od := md.Oneofs().Get(i); !od.IsSynthetic() {
			lines = append(lines, "At most one of "+oneofNames(od)+".")
		}
	}
	if len(lines) > 0 {
		schema["description"] = strings.Join(lines, " ")
	}
}

func fieldSchema(fd protoreflect.FieldDescriptor, schemas object) object {
	schema := valueSchema(fd, schemas)
	if fd.IsList() {
		return object{"type": "array", "items": schema}
	}
	return schema
}

func valueSchema(fd protoreflect.FieldDescriptor, schemas object) object {
	switch {
	case fd.FullName() == "ebb.v1.Error.code":
		return object{"type": "string", "example": "EBB-2002"}
	case fd.Message() != nil:
		return schemaRef(fd.Message(), schemas)
	case fd.Enum() != nil:
		return object{"type": "string", "enum": append([]string{"unspecified"}, enumNames(fd.Enum())...)}
	case isBits(fd):
		return object{"type": "string", "description": "64 random bits as a decimal number"}
	case ids[fd.FullName()]:
		schemas["Id"] = object{"description": "a number, or beyond 2^53 a string of digits", "oneOf": []object{
			{"type": "integer", "format": "int64", "minimum": 0, "maximum": numberMax},
			{"type": "string", "pattern": "^[0-9]{16,20}$"},
		}}
		return object{"$ref": "#/components/schemas/Id"}
	}
	switch fd.Kind() {
	case protoreflect.BytesKind:
		if fd.IsList() {
			return object{"type": "string", "description": "UTF-8"}
		}
		return object{"type": "string", "description": "UTF-8; bytes that are not are in " + string(fd.Name()) + base64Suffix + " instead, as base64"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.DoubleKind:
		return object{"type": "number", "format": "double"}
	case protoreflect.Uint32Kind:
		return object{"type": "integer", "format": "int64", "minimum": 0}
	}
	return integerSchema(fd)
}

// ids are the fields that have ids of bitmaps. Other integers stay below 2^53.
var ids = map[protoreflect.FullName]bool{
	"ebb.v1.BitChange.ids": true, "ebb.v1.BitRange.first": true, "ebb.v1.BitRange.last": true,
	"ebb.v1.BitmapAnswer.ids": true, "ebb.v1.BitmapAnswer.next": true,
	"ebb.v1.BitmapIds.ids": true, "ebb.v1.BitmapPage.from": true, "ebb.v1.BitmapQuestion.rank": true,
	"ebb.v1.NamesAnswer.ids": true, "ebb.v1.NamesQuestion.ids": true, "ebb.v1.PlanIds.from": true,
}

func integerSchema(fd protoreflect.FieldDescriptor) object {
	schema := object{"type": "integer", "format": "int64"}
	switch {
	case isDuration(fd):
		schema["description"] = `microseconds; in requests also a duration such as "90s", "30d" or "2y"`
	case isTime(fd):
		schema["description"] = "microseconds since 1970; in requests also RFC 3339"
	}
	return schema
}
