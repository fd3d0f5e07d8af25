package rpc

import (
	"bytes"
	"fmt"
	"sync"
	"time"
)

const (
	// recordLinesMax is how many actions on data have a line of their own in a second.
	recordLinesMax = 200
	// mergedMax is how many lines merged actions make in a second: one for each action, namespace and caller.
	mergedMax = 256
	// mergedWait is for how long actions are merged before their line is written.
	mergedWait = time.Second
)

// recordMerger bounds the audit log where actions on data are many. Above recordLinesMax a second, the actions of one
// caller, kind and namespace share one line, with the number of requests and keys. So a flood of writes neither fills
// the disk nor pushes the actions of others out of the log.
type recordMerger struct {
	limit limiter
	write func(id mergeID, from, on, outcome string, requests int)

	mu     sync.Mutex // guards what follows
	merged map[mergeID]*mergedRecords
	order  []mergeID
	timer  *time.Timer // runs flush; nil: nothing is merged
}

// mergeID is what merged actions have in common.
type mergeID struct{ who, knownBy, host, what, namespace string }

// mergedRecords are actions that share one line.
type mergedRecords struct {
	from     string // of the first
	record   auditRecord
	requests int
	failed   int
	failure  string // of the first that was not done
}

func newRecordMerger(
	now func() time.Time, write func(id mergeID, from, on, outcome string, requests int),
) *recordMerger {
	return &recordMerger{limit: limiter{now: now, max: recordLinesMax}, write: write}
}

// due reports whether an action has a line of its own.
func (m *recordMerger) due() bool {
	_, due := m.limit.due()
	return due
}

// merge adds an action to the others of its caller, kind and namespace.
func (m *recordMerger) merge(c *caller, from string, r *auditRecord, outcome string) {
	id := mergeID{c.name(), c.knownBy(), hostOf(from), r.action, r.namespace}
	m.mu.Lock()
	defer m.mu.Unlock()
	group := m.of(id, from)
	group.requests++
	for i, key := range r.keys.first { // copies: the request may be gone when the line is written
		r.keys.first[i] = bytes.Clone(key[:min(len(key), keyShownMax+1)])
	}
	group.record.keys.noun = r.keys.noun
	group.record.keys.join(r.keys)
	if outcome != "done" {
		if group.failed++; group.failed == 1 {
			group.failure = outcome
		}
	}
}

// of returns the merged records of an id. Above mergedMax ids, it merges actions of one kind of all callers and
// namespaces.
func (m *recordMerger) of(id mergeID, from string) *mergedRecords {
	if m.merged[id] == nil && len(m.order) >= mergedMax {
		id, from = mergeID{who: "several callers", knownBy: "several ways", what: id.what, namespace: "several namespaces"}, ""
	}
	if group := m.merged[id]; group != nil {
		return group
	}
	if m.merged == nil {
		m.merged = make(map[mergeID]*mergedRecords)
	}
	if m.timer == nil {
		m.timer = time.AfterFunc(mergedWait, m.flush)
	}
	group := &mergedRecords{from: from, record: auditRecord{action: id.what, namespace: id.namespace, data: true}}
	m.merged[id] = group
	m.order = append(m.order, id)
	return group
}

// flush writes the lines of what was merged.
func (m *recordMerger) flush() {
	m.mu.Lock()
	order, merged := m.order, m.merged
	m.order, m.merged = nil, nil
	if m.timer != nil {
		m.timer.Stop()
		m.timer = nil
	}
	m.mu.Unlock()
	for _, id := range order {
		group := merged[id]
		outcome := "done"
		if group.failed > 0 {
			outcome = fmt.Sprintf("%d of %d requests not done wholly, the first: %s",
				group.failed, group.requests, group.failure)
		}
		m.write(id, group.from, group.record.subject(), outcome, group.requests)
	}
}
