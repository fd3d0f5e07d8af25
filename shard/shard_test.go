package shard

import (
	"bytes"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// What is written, restored and written again is the same.
func TestRestoreRoundTrip(t *testing.T) {
	s := New(1, &wiping{})
	entry := encode(t, 1_000_000_000,
		&ebbv1.Command{Body: &ebbv1.Command_DefineNamespace{DefineNamespace: &ebbv1.Namespace{Name: "default", Version: 1}}},
		&ebbv1.Command{Body: &ebbv1.Command_OpenSession{OpenSession: &ebbv1.OpenSession{}}},
		increments("k", "a", "b", "a"),
	)
	results := s.Apply(1, entry, nil)
	if len(results) != 3 || results[2].Applied != 3 {
		t.Fatalf("results: %v", results)
	}
	view := s.Freeze()
	var first, second bytes.Buffer
	if _, err := view.WriteTo(&first); err != nil {
		t.Fatal(err)
	}
	back, err := Restore(1, &wiping{}, bytes.NewReader(first.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := back.WriteTo(&second); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Fatal("a restored state has another snapshot")
	}
}

func increments(key string, bins ...string) *ebbv1.Command {
	batch := &ebbv1.Increments{}
	for _, bin := range bins {
		batch.Increments = append(batch.Increments, &ebbv1.Increment{Key: []byte(key), Bin: []byte(bin)})
	}
	return &ebbv1.Command{Body: &ebbv1.Command_Increments{Increments: batch}}
}

func deletionOf(keys ...string) *ebbv1.Command {
	return &ebbv1.Command{Body: &ebbv1.Command_Delete{Delete: &ebbv1.DeleteKeys{Keys: named(keys...)}}}
}

func encode(t testing.TB, stamp int64, commands ...*ebbv1.Command) []byte {
	t.Helper()
	e := &ebbv1.Entry{StampUs: stamp}
	for _, c := range commands {
		raw, err := pb.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		e.Commands = append(e.Commands, raw)
	}
	raw, err := pb.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
