package query

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// Namespace is the namespace of a question: the one of a key that names one, otherwise that of the clause in; "" if
// neither is given.
func Namespace(plan *ebbv1.Plan) string {
	if ns := termNamespace(plan.ProtoReflect()); ns != "" {
		return ns
	}
	return plan.GetNamespace()
}

// termNamespace is the first namespace that a term of a message names.
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
