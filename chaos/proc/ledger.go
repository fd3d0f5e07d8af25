package proc

import (
	"fmt"
	"slices"
	"sync"
)

// Ledger records for each key what was acknowledged, and what else may have been counted.
//
//	acknowledged <= counted <= acknowledged + unknown + open
//
// holds for a count that is requested after the left side was read, and answered before the right side is read. The
// zero value is ready.
type Ledger struct {
	mu   sync.Mutex // guards rows
	rows map[string]*row
}

// row counts the increments of a key, each by 1. An increment is open from Begin until it has an outcome.
type row struct {
	acked, unknown, refused, open int64
	read                          float64 // the highest count that a read has returned
}

// Outcome is the result of an increment, as its client sees it.
type Outcome int

// The outcomes.
const (
	Acknowledged Outcome = iota
	Unknown              // it may be counted
	Refused              // it is not counted
)

// Begin notes that an increment is sent for each of these keys.
func (l *Ledger) Begin(keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rows == nil {
		l.rows = make(map[string]*row)
	}
	for _, key := range keys {
		if l.rows[key] == nil {
			l.rows[key] = new(row)
		}
		l.rows[key].open++
	}
}

// End notes what became of an increment of each of these keys, which were begun together.
func (l *Ledger) End(keys []string, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		r := l.rows[key]
		r.open--
		switch o {
		case Acknowledged:
			r.acked++
		case Unknown:
			r.unknown++
		case Refused:
			r.refused++
		}
	}
}

// Floors returns a lower bound of each key's count, for reads that begin now.
func (l *Ledger) Floors() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	floors := make(map[string]int64, len(l.rows))
	for key, r := range l.rows {
		floors[key] = r.acked
	}
	return floors
}

// Known is what is known of a key before a read. A linearizable read that begins later returns no less.
type Known struct {
	acked int64
	read  float64
}

// Known returns the least that a read of a key that begins now must return.
func (l *Ledger) Known(key string) Known {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rows[key]; r != nil {
		return Known{r.acked, r.read}
	}
	return Known{}
}

// Judge compares the answer of a read with what was known before the read was sent, and with what is known now. It
// returns a sentence for each invariant that does not hold, by the name of the invariant.
func (l *Ledger) Judge(key string, known Known, got float64) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var now row // zero for a key that was not written yet
	if r := l.rows[key]; r != nil {
		r.read = max(r.read, got)
		now = *r
	}
	wrong := make(map[string]string)
	if got < float64(known.acked) {
		wrong["read-fresh"] = fmt.Sprintf("%s: %v is read, %d was acknowledged before", key, got, known.acked)
	}
	if got < known.read {
		wrong["read-monotone"] = fmt.Sprintf("%s: %v is read, %v was read before", key, got, known.read)
	}
	if most := now.acked + now.unknown + now.open; got > float64(most) {
		wrong["read-possible"] = fmt.Sprintf("%s: %v is read, and %d was acknowledged, %d unknown, %d under way", key, got, now.acked, now.unknown, now.open)
	}
	return wrong
}

// Audit compares counts with the ledger as it is now. The counts must have been requested after floors was read. It
// returns a sentence for each difference. lost has the keys that count less than was acknowledged, twice those that
// count more than can have been counted.
func (l *Ledger) Audit(floors map[string]int64, counts map[string]float64) (lost, twice []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, floor := range floors {
		got, r := counts[key], l.rows[key]
		if got < float64(floor) {
			lost = append(lost, fmt.Sprintf("%s: %v is counted, %d was acknowledged", key, got, floor))
		}
		if most := r.acked + r.unknown + r.open; got > float64(most) {
			twice = append(twice, fmt.Sprintf("%s: %v is counted, and %d was acknowledged, %d unknown, %d under way", key, got, r.acked, r.unknown, r.open))
		}
	}
	slices.Sort(lost)
	slices.Sort(twice)
	return lost, twice
}

// Totals are the sums over all keys.
type Totals struct {
	Acknowledged int64 `json:"acknowledged"`
	Unknown      int64 `json:"unknown"`
	Refused      int64 `json:"refused"`
	Open         int64 `json:"open,omitempty"`
}

// Totals adds all keys up.
func (l *Ledger) Totals() (t Totals) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.rows {
		t.Acknowledged += r.acked
		t.Unknown += r.unknown
		t.Refused += r.refused
		t.Open += r.open
	}
	return t
}
