package node

import (
	"context"
	"sync"
	"testing"
	"time"
)

// separate cuts a member off from all others, or joins it to them again.
func (p *parliament) separate(a int, cut bool) {
	for i, w := range p.wires {
		w.mu.Lock()
		for j := range p.wires {
			if i == a || j == a {
				w.cut[serverID(uint64(j+1))] = cut
			}
		}
		w.mu.Unlock()
	}
}

// awaitLeader waits until all follow one leader in its term.
func (p *parliament) awaitLeader() (leader int) {
	p.t.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
		leader = p.leader()
		all := true
		for _, m := range p.members {
			all = all && m.leader() == p.members[leader].node && m.now.Load().raft.CurrentTerm() == p.members[leader].now.Load().raft.CurrentTerm()
		}
		if all {
			return leader
		}
	}
	p.t.Fatal("no leader that all follow")
	return -1
}

// withDetectors runs f while every member has a leaderFailureDetector.
func (p *parliament) withDetectors(f func(silence func(node string))) {
	var mu sync.Mutex // guards what follows
	var silent string
	var since time.Time
	ctx, cancel := context.WithCancel(p.t.Context())
	var wg sync.WaitGroup
	for _, m := range p.members {
		d := &leaderFailureDetector{timeout: p.timeout, members: func() []*member { return []*member{m} }, silent: func(atLeast time.Duration) []string {
			mu.Lock()
			defer mu.Unlock()
			if silent == "" || silent == m.node || time.Since(since) < atLeast {
				return nil
			}
			return []string{silent}
		}}
		wg.Go(func() { watch(ctx, d.every(), d.look) })
	}
	f(func(node string) {
		mu.Lock()
		defer mu.Unlock()
		silent, since = node, time.Now()
	})
	cancel()
	wg.Wait()
}

// The leader falls silent, and another is elected within one and a half election timeouts: followers neither check at
// random times nor split the vote.
func TestElectionFollowsSilence(t *testing.T) {
	for _, c := range []struct {
		name string
		lags bool // the follower that asks first lacks entries, so that the other has to be elected
	}{
		{"both may be elected", false},
		{"the first to ask lacks entries", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			convene(t, 3, func(p *parliament) {
				p.withDetectors(func(silence func(node string)) {
					var longest time.Duration
					for range 60 {
						a := p.awaitLeader()
						first := 0
						if a == 0 {
							first = 1
						}
						if c.lags {
							p.wires[a].mu.Lock()
							p.wires[a].deaf = serverID(uint64(first + 1))
							p.wires[a].mu.Unlock()
							if err := p.propose(a); err != nil {
								t.Fatal(err)
							}
						}
						p.separate(a, true)
						silence(p.members[a].node)
						began := time.Now()
						for p.leads(a) < 0 && time.Since(began) < time.Minute {
							time.Sleep(time.Millisecond)
						}
						longest = max(longest, time.Since(began))
						silence("")
						p.wires[a].mu.Lock()
						p.wires[a].deaf = ""
						p.wires[a].mu.Unlock()
						p.separate(a, false)
					}
					t.Logf("the longest of 60 elections took %v", longest)
					if limit := p.timeout * 3 / 2; longest > limit {
						t.Errorf("it is to take %v at most", limit)
					}
				})
			})
		})
	}
}

// leads returns a member that leads, other than the given one; -1 if there is none.
func (p *parliament) leads(but int) int {
	for i, m := range p.members {
		if _, leads := m.leading(); leads && i != but {
			return i
		}
	}
	return -1
}

// A detector that was late itself has not listened: the silence is its own process's.
func TestLateDetectorReportsNoFailure(t *testing.T) {
	convene(t, 3, func(p *parliament) {
		a := p.awaitLeader()
		p.separate(a, true)
		time.Sleep(p.timeout + p.timeout/20)
		asked := 0
		d := &leaderFailureDetector{timeout: p.timeout, members: func() []*member { return nil }, silent: func(time.Duration) []string { asked++; return nil }}
		d.look()
		time.Sleep(d.every())
		d.look()
		time.Sleep(4 * d.every())
		d.look()
		for range 19 { // for an election timeout
			time.Sleep(d.every())
			d.look()
		}
		if asked != 2 {
			t.Errorf("it asked who is silent %d times, want 2: those before the late one", asked)
		}
		time.Sleep(d.every())
		d.look()
		if asked != 3 {
			t.Errorf("it asked who is silent %d times, want 3: it goes on an election timeout after it was late", asked)
		}
	})
}
