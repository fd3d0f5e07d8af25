package rpc

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/proto/ebbv1grpc"
)

var update = flag.Bool("update", false, "write docs/openapi.json")

const openAPIFile = "../docs/openapi.json"

func TestOpenAPIIsCommitted(t *testing.T) {
	if *update {
		if err := os.WriteFile(openAPIFile, OpenAPI(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(openAPIFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, OpenAPI()) {
		t.Error("docs/openapi.json is out of date: go test ./rpc -run OpenAPI -update")
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	w := httptest.NewRecorder()
	NewHTTP(fixture().services()).ServeHTTP(w, httptest.NewRequest("GET", "/openapi.json", nil))
	if w.Code != 200 || !bytes.Equal(w.Body.Bytes(), OpenAPI()) {
		t.Errorf("status %d, %d bytes", w.Code, w.Body.Len())
	}
}

// Every method of service Ebb has a path, and every reference a schema.
func TestOpenAPIIsComplete(t *testing.T) {
	ids := map[string]bool{}
	for _, rt := range routes {
		ids[strings.ToLower(rt.id)] = true
	}
	for _, m := range ebbv1grpc.Ebb_ServiceDesc.Methods {
		if !ids[strings.ToLower(m.MethodName)] {
			t.Errorf("%s has no path", m.MethodName)
		}
	}
	var doc struct {
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, part := range strings.Split(string(OpenAPI()), `"$ref": "#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if doc.Components.Schemas[name] == nil {
			t.Errorf("no schema %s", name)
		}
	}
}

// The codec leaves out what no message of ours has: if one gets it, this fails
// before a caller does.
func TestMessagesFitTheCodec(t *testing.T) {
	files := []protoreflect.FileDescriptor{ebbv1.File_ebb_v1_ebb_proto, ebbv1.File_ebb_v1_errors_proto}
	for _, file := range files {
		for i := range file.Messages().Len() {
			md := file.Messages().Get(i)
			if md.Fields().Len() > 64 {
				t.Errorf("%s has %d fields", md.FullName(), md.Fields().Len())
			}
			for j := range md.Fields().Len() {
				checkFits(t, md.Fields().Get(j))
			}
		}
	}
}

// Integers that may come as strings are said to.
func TestIdsOfTheSchema(t *testing.T) {
	schemas := object{}
	for name := range ids {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		message := d.Parent().(protoreflect.MessageDescriptor)
		schemaRef(message, schemas)
		schema := schemas[string(message.Name())].(object)["properties"].(object)[string(d.Name())].(object)
		if items, is := schema["items"].(object); is {
			schema = items
		}
		if schema["$ref"] != "#/components/schemas/Id" {
			t.Errorf("%s: %v", name, schema)
		}
	}
	if count := schemas["BitmapAnswer"].(object)["properties"].(object)["count"].(object); count["type"] != "integer" {
		t.Errorf("BitmapAnswer.count: %v", count)
	}
}

func checkFits(t *testing.T, fd protoreflect.FieldDescriptor) {
	t.Helper()
	switch fd.Kind() {
	case protoreflect.MessageKind, protoreflect.EnumKind, protoreflect.BytesKind, protoreflect.StringKind,
		protoreflect.BoolKind, protoreflect.DoubleKind, protoreflect.Uint32Kind, protoreflect.Uint64Kind,
		protoreflect.Int64Kind, protoreflect.Fixed64Kind:
	case protoreflect.Sfixed64Kind: // ebb.v1.Entry, which has no door
		if fd.ContainingMessage().Name() != "Entry" {
			t.Errorf("%s is of kind %s", fd.FullName(), fd.Kind())
		}
	default:
		t.Errorf("%s is of kind %s", fd.FullName(), fd.Kind())
	}
	if fd.IsMap() {
		t.Errorf("%s is a map", fd.FullName())
	}
}
