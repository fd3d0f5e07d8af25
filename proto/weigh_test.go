package proto

import (
	"math"
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// messages are all types of messages of the contract.
func messages(t *testing.T) (all []protoreflect.MessageType) {
	t.Helper()
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if mt.Descriptor().ParentFile().Package() == "ebb.v1" {
			all = append(all, mt)
		}
		return true
	})
	if len(all) < 100 {
		t.Fatalf("%d messages: there are more", len(all))
	}
	return all
}

func TestElementLimitsAreOfFields(t *testing.T) {
	for name := range elementLimits {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if fd, ok := d.(protoreflect.FieldDescriptor); !ok || !fd.IsList() {
			t.Errorf("%s does not repeat", name)
		}
	}
	for _, mt := range messages(t) {
		if w := layoutOf(mt.Descriptor()); w.lists > listsMost {
			t.Errorf("%s has %d lists: Weigh counts %d at most", mt.Descriptor().FullName(), w.lists, listsMost)
		}
	}
}

// withElements returns a message with n elements of two bytes in one of its repeated fields.
func withElements(fd protoreflect.FieldDescriptor, n int) []byte {
	if fd.Message() == nil && fd.Kind() != protoreflect.BytesKind && fd.Kind() != protoreflect.StringKind {
		width := max(1, wideOf(fd.Kind()))
		return protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), make([]byte, n*width))
	}
	one := protowire.AppendBytes(protowire.AppendTag(nil, fd.Number(), protowire.BytesType), nil)
	raw := make([]byte, 0, n*len(one))
	for range n {
		raw = append(raw, one...)
	}
	return raw
}

// liveBytes are those of Go's heap that make keeps.
func liveBytes(t *testing.T, keep func() any) int64 {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	v := keep()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(v)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// Every repeated field of every message, with as many empty elements as Weigh lets pass, takes no more memory than
// Weigh says, and Weigh lets nothing pass that takes more than the limit.
func TestWeightsBoundWhatIsDecoded(t *testing.T) {
	const elements = 20_000
	worst := 0.0
	for _, mt := range messages(t) {
		fields := mt.Descriptor().Fields()
		for i := range fields.Len() {
			fd := fields.Get(i)
			if !fd.IsList() {
				continue
			}
			n := min(elements, slotOf(fd).most)
			if weight, err := Weigh(withElements(fd, n+1), mt.Descriptor()); n < elements && err == nil {
				t.Errorf("%s: %d elements weigh %d: they are one more than the limit", fd.FullName(), n+1, weight)
			}
			raw := withElements(fd, n)
			weight, err := Weigh(raw, mt.Descriptor())
			if err != nil {
				t.Errorf("%s: %d elements: %v", fd.FullName(), n, err)
				continue
			}
			took := liveBytes(t, func() any {
				m := mt.New().Interface()
				if err := pb.Unmarshal(raw, m); err != nil {
					t.Fatal(err)
				}
				return m
			})
			const noise = 64 << 10 // of the runtime
			worst = math.Max(worst, float64(took-noise)/float64(weight))
			if took > weight+noise {
				t.Errorf("%s: %d elements took %d bytes and weigh %d", fd.FullName(), n, took, weight)
			}
		}
	}
	t.Logf("the most that was taken: %.2f of what was weighed", worst)
}

// What is sent in practice weighs at most twice what it takes, so that the budget of requests is not spent on nothing.
func TestWeightsOfWhatIsSent(t *testing.T) {
	req := &ebbv1.IncrementRequest{Namespace: "clicks"}
	amount := 2.5
	for i := range 5_000 {
		req.Increments = append(req.Increments, &ebbv1.Increment{
			Key: []byte("page/views/of/a/site"), Bin: protowire.AppendVarint([]byte("country"), uint64(i)),
			Amount: &amount, TimeUs: 1_700_000_000_000_000,
		})
	}
	raw, err := pb.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	weight, refused := Weigh(raw, req.ProtoReflect().Descriptor())
	if refused != nil {
		t.Fatal(refused)
	}
	took := liveBytes(t, func() any {
		m := new(ebbv1.IncrementRequest)
		if err := pb.Unmarshal(raw, m); err != nil {
			t.Fatal(err)
		}
		return m
	})
	t.Logf("%d bytes on the wire take %d in memory, and weigh %d", len(raw), took, weight)
	if weight < took || weight > 2*took {
		t.Errorf("it weighs %d and takes %d", weight, took)
	}
}

// A batch of nothing, 3.9 MB of it, is refused before anything is made of it.
func TestManyElementsAreRefusedBeforeTheyAreDecoded(t *testing.T) {
	fd := (&ebbv1.IncrementRequest{}).ProtoReflect().Descriptor().Fields().ByName("increments")
	raw := withElements(fd, 1_950_000)
	var err *Error
	allocs := testing.AllocsPerRun(10, func() { err = Decode(raw, new(ebbv1.IncrementRequest)) })
	if err == nil || !err.Is(ErrBatchTooLarge) {
		t.Fatalf("got %v", err)
	}
	if allocs > 16 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestWeighKnowsNoBottomlessMessages(t *testing.T) {
	expr := (&ebbv1.BitmapExpr{}).ProtoReflect().Descriptor()
	not := expr.Fields().ByName("not")
	of := not.Message().Fields().ByName("of")
	var raw []byte
	for range NestedMax/2 + 1 { // a not of a not of a not
		raw = protowire.AppendBytes(protowire.AppendTag(nil, of.Number(), protowire.BytesType), raw)
		raw = protowire.AppendBytes(protowire.AppendTag(nil, not.Number(), protowire.BytesType), raw)
	}
	if _, err := Weigh(raw, expr); err == nil || !err.Is(ErrBadRequest) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkWeigh(b *testing.B) {
	req := &ebbv1.IncrementRequest{Namespace: "clicks"}
	for range 1_000 {
		req.Increments = append(req.Increments, &ebbv1.Increment{Key: []byte("page/views"), Bin: []byte("country")})
	}
	raw, err := pb.Marshal(req)
	if err != nil {
		b.Fatal(err)
	}
	md := req.ProtoReflect().Descriptor()
	b.Run("weigh", func(b *testing.B) {
		for b.Loop() {
			if _, err := Weigh(raw, md); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unmarshal", func(b *testing.B) {
		for b.Loop() {
			if err := pb.Unmarshal(raw, new(ebbv1.IncrementRequest)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
