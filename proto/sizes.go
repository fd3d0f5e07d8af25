package proto

import (
	"math"
	"strings"

	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// CountMinCellsMax is the most cells that a namespace may set for a countmin. A cell takes 8 bytes once a quarter of
// all cells is used.
const CountMinCellsMax = 1 << 20

// SetMembersMax is the most members of a set that a namespace may set. SetMembersEbbing is the limit for sets that
// fade, and for all sets before VersionAdds.
const (
	SetMembersMax    = 65536
	SetMembersEbbing = 4096
)

// DefaultSizes are the sizes of new keys when a namespace does not set them. The bytes in the comments are for a full
// key: a new key takes some hundreds of bytes, and more as it fills.
func DefaultSizes() *ebbv1.Sizes {
	return &ebbv1.Sizes{
		CountminEpsilon: 0.01, CountminDelta: 0.01, // 272 counters in 5 rows
		// of 1,000 entries: the error is at most a thousandth of the sum
		TopkItems:         100,
		DistinctPrecision: 11,                           // up to 8 KB
		SetMembers:        1024,                         // up to 9 KB
		LinearCapacity:    1_000_000, LinearError: 0.01, // 19 KB beyond 250 members
		MorrisBits:    16,
		BloomCapacity: 10_000, BloomFalseRate: 0.01, // 15 KB, or 26 KB for those of a half-life
		QuantileError: 0.01, QuantileBuckets: 4096,
	}
}

// size is the range of a field of ebbv1.Sizes. Every value within the range is possible.
type size struct{ least, most float64 }

// sizes has the ranges of all fields. Their combined limits are checked separately.
var sizes = map[protoreflect.Name]size{
	"countmin_epsilon":   {1e-5, 0.5},
	"countmin_delta":     {1e-9, 0.5},
	"topk_items":         {1, 6553},
	"distinct_precision": {6, 16},
	"set_members":        {16, SetMembersMax},
	"linear_capacity":    {1, 20_000_000},
	"linear_error":       {0.001, 0.1},
	"morris_bits":        {8, 16},
	"morris_base":        {0, 1},
	"bloom_capacity":     {1, 4_000_000},
	"bloom_false_rate":   {1e-6, 0.5},
	"quantile_error":     {1e-4, 0.5},
	"quantile_buckets":   {64, 65536},
}

// CheckSizes refuses sizes out of range; all must be given.
func CheckSizes(s *ebbv1.Sizes) *Error { return checkSizesAt(s, StorageVersion) }

// checkSizesAt is CheckSizes while a storage version is in force.
func checkSizesAt(s *ebbv1.Sizes, version uint32) *Error {
	var err *Error
	eachSize(s, func(fd protoreflect.FieldDescriptor, v float64) {
		r := sizes[fd.Name()]
		if fd.Name() == "set_members" && version < VersionAdds {
			r.most = SetMembersEbbing
		}
		if err == nil && !(v >= r.least && v <= r.most) {
			err = ErrBadNamespace.Errorf("size %s of %g: it must be from %g to %g", SizeName(fd), v, r.least, r.most)
		}
	})
	if err != nil {
		return err
	}
	switch {
	case s.GetMorrisBits() != 8 && s.GetMorrisBits() != 16:
		return ErrBadNamespace.Errorf("size morris.bits of %d: it must be 8 or 16", s.GetMorrisBits())
	case s.GetMorrisBase() != 0 && s.GetMorrisBase() < 1e-4:
		return ErrBadNamespace.Errorf("size morris.base of %g: it must be from 0.0001 to 1", s.GetMorrisBase())
	}
	width, depth := math.Ceil(math.E/s.GetCountminEpsilon()), math.Ceil(-math.Log(s.GetCountminDelta()))
	if width*depth > CountMinCellsMax {
		return ErrBadNamespace.Errorf("sizes countmin.epsilon of %g and countmin.delta of %g take %.0f cells: the "+
			"limit is %d",
			s.GetCountminEpsilon(), s.GetCountminDelta(), width*depth,
			CountMinCellsMax).WithHint("a larger epsilon takes fewer")
	}
	return nil
}

// checkTemplate checks the settings that a namespace has for new keys, while a storage version is in force.
func checkTemplate(ns *ebbv1.Namespace, version uint32) *Error {
	switch kind := ns.GetKind(); {
	case kind < ebbv1.Kind_KIND_DISTRIBUTION || kind > KindMax:
		return ErrBadNamespace.Errorf("kind %d is unknown: %s", kind, KindNames())
	case kind != ebbv1.Kind_KIND_DISTRIBUTION && ns.GetDecay() == ebbv1.Decay_DECAY_LINEAR:
		return ErrBadNamespace.Errorf("kind %s: a namespace under linear decay holds distributions only",
			KindName(kind))
	}
	if err := checkSizesAt(ns.GetSizes(), version); err != nil {
		return err
	}
	if n := ns.GetSizes().GetSetMembers(); n > SetMembersEbbing && ns.GetDecay() != ebbv1.Decay_DECAY_NONE {
		return ErrBadNamespace.Errorf("size set.members of %d: sets that fade keep %d members at most", n,
			SetMembersEbbing).
			WithHint("larger sets need --decay none, and no others the size: --size set.members=4096")
	}
	return nil
}

// fillSizes returns s with every field that is 0 taken from base.
func fillSizes(s, base *ebbv1.Sizes) *ebbv1.Sizes {
	out := pb.Clone(base).(*ebbv1.Sizes)
	if out == nil {
		out = new(ebbv1.Sizes)
	}
	pb.Merge(out, s)
	out.ProtoReflect().SetUnknown(nil)
	return out
}

// SizeName is the name of a field of ebbv1.Sizes as users write it: countmin.epsilon.
func SizeName(fd protoreflect.FieldDescriptor) string {
	return strings.Replace(string(fd.Name()), "_", ".", 1)
}

// SizeNames lists the names of all sizes, by kind.
func SizeNames() []string {
	var names []string
	eachSize(nil, func(fd protoreflect.FieldDescriptor, _ float64) { names = append(names, SizeName(fd)) })
	return names
}

// eachSize visits all fields in the order of the definition.
func eachSize(s *ebbv1.Sizes, visit func(fd protoreflect.FieldDescriptor, v float64)) {
	m := s.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		visit(fd, numberOf(fd, m.Get(fd)))
	}
}

func numberOf(fd protoreflect.FieldDescriptor, v protoreflect.Value) float64 {
	if fd.Kind() == protoreflect.DoubleKind {
		return v.Float()
	}
	return float64(v.Uint())
}

// SetSize sets a size by its name, as users write it: "countmin.epsilon" or "countmin_epsilon". It returns
// ErrBadNamespace for an unknown name and for a number out of range.
func SetSize(s *ebbv1.Sizes, name string, v float64) *Error {
	fd := s.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(strings.Replace(name, ".", "_", 1)))
	if fd == nil {
		return ErrBadNamespace.Errorf("there is no size %s: %s", name, strings.Join(SizeNames(), ", "))
	}
	r := sizes[fd.Name()]
	if !(v >= r.least && v <= r.most && v > 0) {
		return ErrBadNamespace.Errorf("size %s of %g: it must be from %g to %g", SizeName(fd), v, r.least, r.most)
	}
	value := protoreflect.ValueOfFloat64(v)
	if fd.Kind() != protoreflect.DoubleKind {
		if v != math.Trunc(v) {
			return ErrBadNamespace.Errorf("size %s of %g: it must be a whole number", SizeName(fd), v)
		}
		value = protoreflect.ValueOfUint64(uint64(v))
		if fd.Kind() == protoreflect.Uint32Kind {
			value = protoreflect.ValueOfUint32(uint32(v))
		}
	}
	s.ProtoReflect().Set(fd, value)
	return nil
}

// SizeOf is one size and its value.
type SizeOf struct {
	Name  string
	Value float64
}

// ListSizes lists sizes by name, in the order of the definition.
func ListSizes(s *ebbv1.Sizes) []SizeOf {
	var all []SizeOf
	eachSize(s, func(fd protoreflect.FieldDescriptor, v float64) { all = append(all, SizeOf{SizeName(fd), v}) })
	return all
}
