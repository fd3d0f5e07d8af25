package query

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Namespace is the one that a question is about: that of a key that names one, or else of its clause in; "" when it
// says nothing.
func Namespace(plan *ebbv1.Plan) string {
	if ns := termNamespace(plan.ProtoReflect()); ns != "" {
		return ns
	}
	return plan.GetNamespace()
}

// termNamespace is the first that a term of a message names.
func termNamespace(m protoreflect.Message) (ns string) {
	if t, ok := m.Interface().(*ebbv1.PlanTerm); ok {
		return t.GetNamespace()
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil:
		case fd.IsList():
			for i := 0; i < v.List().Len() && ns == ""; i++ {
				ns = termNamespace(v.List().Get(i).Message())
			}
		default:
			ns = termNamespace(v.Message())
		}
		return ns == ""
	})
	return ns
}
