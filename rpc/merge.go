package rpc

import (
	"bytes"
	"fmt"
	"sync"
	"time"
)

const (
	// actLinesMax is how many acts on data have a line of their own in a second.
	actLinesMax = 200
	// mergedMax is how many lines merged acts make in a second: one for each act, namespace and caller.
	mergedMax = 256
	// mergedWait is for how long acts are merged before their line is written.
	mergedWait = time.Second
)

// actMerger keeps the audit log within bounds where acts on data are many: above actLinesMax a second those of one caller, act and
// namespace have one line together, with the number of requests and keys. So a flood of writes neither fills the disk nor pushes the
// acts of others out of the log.
type actMerger struct {
	limit limiter
	write func(id mergeID, from, on, outcome string, requests int)

	mu     sync.Mutex // guards what follows
	merged map[mergeID]*mergedActs
	order  []mergeID
	timer  *time.Timer // runs flush; nil: nothing is merged
}

// mergeID is what merged acts have in common.
type mergeID struct{ who, knownBy, host, what, namespace string }

// mergedActs are acts that have one line.
type mergedActs struct {
	from     string // of the first
	record   auditRecord
	requests int
	failed   int
	failure  string // of the first that was not done
}

func newActMerger(now func() time.Time, write func(id mergeID, from, on, outcome string, requests int)) *actMerger {
	return &actMerger{limit: limiter{now: now, max: actLinesMax}, write: write}
}

// due reports whether an act has a line of its own.
func (m *actMerger) due() bool {
	_, due := m.limit.due()
	return due
}

// merge adds an act to the others of its caller, kind and namespace.
func (m *actMerger) merge(c *caller, from string, r *auditRecord, outcome string) {
	id := mergeID{c.name(), c.knownBy(), hostOf(from), r.what, r.namespace}
	m.mu.Lock()
	defer m.mu.Unlock()
	acts := m.of(id, from)
	acts.requests++
	for i, key := range r.keys.first { // copies: the request may be gone when the line is written
		r.keys.first[i] = bytes.Clone(key[:min(len(key), keyShownMax+1)])
	}
	acts.record.keys.noun = r.keys.noun
	acts.record.keys.join(r.keys)
	if outcome != "done" {
		if acts.failed++; acts.failed == 1 {
			acts.failure = outcome
		}
	}
}

// of returns the acts of an id. Where there are too many ids, those of one kind are merged whoever did them and wherever.
func (m *actMerger) of(id mergeID, from string) *mergedActs {
	if m.merged[id] == nil && len(m.order) >= mergedMax {
		id, from = mergeID{who: "several callers", knownBy: "several ways", what: id.what, namespace: "several namespaces"}, ""
	}
	if acts := m.merged[id]; acts != nil {
		return acts
	}
	if m.merged == nil {
		m.merged = make(map[mergeID]*mergedActs)
	}
	if m.timer == nil {
		m.timer = time.AfterFunc(mergedWait, m.flush)
	}
	acts := &mergedActs{from: from, record: auditRecord{what: id.what, namespace: id.namespace, data: true}}
	m.merged[id] = acts
	m.order = append(m.order, id)
	return acts
}

// flush writes the lines of what was merged.
func (m *actMerger) flush() {
	m.mu.Lock()
	order, merged := m.order, m.merged
	m.order, m.merged = nil, nil
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	m.mu.Unlock()
	for _, id := range order {
		acts := merged[id]
		outcome := "done"
		if acts.failed > 0 {
			outcome = fmt.Sprintf("%d of %d requests not done wholly, the first: %s", acts.failed, acts.requests, acts.failure)
		}
		m.write(id, acts.from, acts.record.subject(), outcome, acts.requests)
	}
}
