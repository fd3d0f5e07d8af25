package node

import (
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/proto/ebbv1"
)

// spans are so many seconds whose slowest syncs are the given milliseconds, again and again.
type spans struct {
	seconds int
	ms      []int
}

// A disk is slow after five of six seconds with slow syncs, and in order again when most of twenty have none: what
// happens once or twice moves nothing.
func TestDiskPace(t *testing.T) {
	for name, c := range map[string]struct {
		course  []spans
		changes []int // the seconds at whose ends it became slow, in order, slow, ...
	}{
		"in order":                          {course: []spans{{300, []int{1, 4, 30, 0}}}},
		"slower than fine, and not slow":    {course: []spans{{300, []int{99, 60}}}},
		"slow from the first sync on":       {course: []spans{{10, []int{300}}}, changes: []int{5}},
		"slow":                              {course: []spans{{30, []int{2}}, {10, []int{300}}}, changes: []int{35}},
		"just slow":                         {course: []spans{{30, []int{2}}, {10, []int{100}}}, changes: []int{35}},
		"slow but for one second of six":    {course: []spans{{30, []int{2}}, {12, []int{300, 300, 300, 2, 300, 300}}}, changes: []int{36}},
		"one sync of nearly two seconds":    {course: []spans{{30, []int{2}}, {1, []int{1900}}, {60, []int{2}}}},
		"four of them":                      {course: []spans{{30, []int{2}}, {4, []int{1900}}, {60, []int{2}}}},
		"each other second":                 {course: []spans{{300, []int{300, 2}}}},
		"two of three":                      {course: []spans{{300, []int{300, 300, 2}}}},
		"slow, with little to do":           {course: []spans{{60, []int{300, 0, 0}}}, changes: []int{13}},
		"too little to say":                 {course: []spans{{300, []int{300, 0, 0, 0, 0, 0}}}},
		"ends":                              {course: []spans{{10, []int{300}}, {60, []int{2}}}, changes: []int{5, 25}},
		"ends late":                         {course: []spans{{60, []int{300}}, {60, []int{2}}}, changes: []int{5, 75}},
		"ends although one of four is slow": {course: []spans{{60, []int{300}}, {60, []int{2, 2, 2, 300}}}, changes: []int{5, 79}},
		"better, and not fine":              {course: []spans{{10, []int{300}}, {300, []int{60}}}, changes: []int{5}},
		"each other second, when slow":      {course: []spans{{10, []int{300}}, {300, []int{2, 300}}}, changes: []int{5}},
		"idle since":                        {course: []spans{{10, []int{300}}, {60, []int{0}}}, changes: []int{5, 30}},
		"little to do since":                {course: []spans{{10, []int{300}}, {300, []int{300, 0, 0, 0, 0, 0}}}, changes: []int{5}},
		"fast and slow, ten seconds each":   {course: []spans{{10, []int{300}}, {10, []int{2}}, {10, []int{300}}, {10, []int{2}}}, changes: []int{5}},
		"again":                             {course: []spans{{10, []int{300}}, {30, []int{2}}, {10, []int{300}}, {30, []int{2}}}, changes: []int{5, 25, 45, 65}},
	} {
		var p diskPace
		var changes []int
		second := 0
		for _, s := range c.course {
			for i := range s.seconds {
				was := p.slow
				p = p.after(time.Duration(s.ms[i%len(s.ms)]) * time.Millisecond)
				second++
				if p.slow != was {
					changes = append(changes, second)
				}
			}
		}
		if !slices.Equal(changes, c.changes) {
			t.Errorf("%s: it changed after %v seconds, want %v", name, changes, c.changes)
		}
	}
}

// Leaders go to disks of half the syncs, and to none that is slow itself; a slow disk that has had little to do lately
// does not ask for more than a fine one.
func TestWelcoming(t *testing.T) {
	paced := func(ms int, spans int) (p diskPace) {
		for range spans {
			p = p.after(time.Duration(ms) * time.Millisecond)
		}
		return p
	}
	idle := paced(400, 6)
	for range 16 {
		idle = idle.after(0)
	}
	for name, c := range map[string]struct {
		own   diskPace
		other *ebbv1.NodeStatus
		want  bool
	}{
		"a fast one":                       {paced(400, 6), &ebbv1.NodeStatus{SyncUs: 2_000}, true},
		"one of which nothing is known":    {paced(400, 6), &ebbv1.NodeStatus{}, true},
		"half":                             {paced(400, 6), &ebbv1.NodeStatus{SyncUs: 200_000}, true},
		"more than half":                   {paced(400, 6), &ebbv1.NodeStatus{SyncUs: 200_001}, false},
		"a slow one":                       {paced(400, 6), &ebbv1.NodeStatus{SyncUs: 2_000, DiskSlow: true}, false},
		"just slow, and more than fine":    {paced(100, 6), &ebbv1.NodeStatus{SyncUs: 50_001}, false},
		"idle, beside one in order":        {idle, &ebbv1.NodeStatus{SyncUs: 30_000}, true},
		"idle, beside one of half as much": {idle, &ebbv1.NodeStatus{SyncUs: 200_000}, false},
	} {
		if !c.own.slow {
			t.Errorf("%s: the own disk is not slow", name)
		}
		if got := welcoming(c.other, c.own); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What a node said of itself is kept for a moment, and no longer than it is of the cluster.
func TestStatusesOfNodesThatWentAreForgotten(t *testing.T) {
	c := newStatusCache(func(node string) *ebbv1.NodeStatus { return &ebbv1.NodeStatus{DiskSlow: node == "a"} })
	if !c.slow("a") || c.slow("b") {
		t.Error("a says that its disk is slow, b does not")
	}
	c.forget(func(node string) bool { return node == "a" })
	if _, known := c.kept["a"]; !known || len(c.kept) != 1 {
		t.Errorf("%d statuses are kept", len(c.kept))
	}
}
