package swarm

import (
	"math/rand/v2"
	"time"
)

// processFamilies end processes and machines, or make them do what they rarely do. Mending starts dead nodes.
var processFamilies = []Family{
	{
		Name: "kill", What: "a process is killed",
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.c.Kill(i)
			return w.named(i)
		},
		mend: restarted,
	},
	{
		Name: "kill-all", What: "all processes are killed",
		inject: func(w *world, _ Dose) string {
			for _, i := range w.living() {
				w.c.Kill(i)
			}
			return "all"
		},
		mend: restarted,
	},
	killAt,
	{
		Name: "power-one", What: "a machine loses power, and of what was not synced whatever the seed says",
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.cutPower(i)
			return w.named(i)
		},
		mend: restarted,
	},
	{
		Name: "power-quorum", What: "a majority of machines loses power",
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			order = order[:len(order)/2+1]
			for _, i := range order {
				w.cutPower(i)
			}
			return w.named(order...)
		},
		mend: restarted,
	},
	{
		Name: "power-all", What: "all machines lose power",
		inject: func(w *world, _ Dose) string {
			for _, i := range w.living() {
				w.cutPower(i)
			}
			return "all"
		},
		mend: restarted,
	},
	{
		Name: "stall", What: "nothing that a node sends, is sent or writes gets on, as if it had stopped for a while",
		inject: func(w *world, d Dose) string {
			i := w.victim(d)
			w.excuse(i, diskError)
			w.c.Isolate(i)
			for k := range clientHosts {
				w.c.Net.Cut(w.c.IP(i), clientIP(k))
			}
			release := make(chan struct{})
			w.releases = append(w.releases, release)
			w.c.Disk(i).HangSync(release)
			return w.named(i)
		},
		mend: func(w *world) {
			healed(w)
			goodDisks(w)
		},
	},
	{
		Name: "rolling-restart", What: "each node ends in order and starts again, one after the other", Dose: "50 to 500 ms between two",
		draw: func(rng *rand.Rand, d *Dose) { d.Time = millis(rng, 50, 500) },
		inject: func(w *world, d Dose) string {
			order := w.order(d)
			for _, i := range order {
				if err := w.c.Shut(i); err != nil {
					w.hold("restarts", false, "%v", err)
				}
				w.start(i)
				time.Sleep(d.Time)
			}
			return w.named(order...)
		},
		mend: restarted,
	},
	{
		Name: "campaign", What: "another node asks for votes, again and again, as if the leader had told it to", Dose: "3 to 8 times",
		draw: func(rng *rand.Rand, d *Dose) { d.Part = float64(3 + rng.IntN(6)) },
		inject: func(w *world, d Dose) string {
			for k := range int(d.Part) {
				members := w.living()
				if n := w.c.Node(members[(int(d.Node)+k)%len(members)]); n != nil {
					n.Campaign(d.Shard)
				}
				time.Sleep(100 * time.Millisecond)
			}
			return ""
		},
		mend: func(*world) {},
	},
	{
		Name: "snapshots", What: "every node takes snapshots of all shards and keeps nothing of the log behind them",
		inject: func(w *world, _ Dose) string {
			w.compact(w.living()...)
			return "all"
		},
		mend: func(*world) {},
	},
	{
		Name: "install", What: "a node is dead while the others write and drop their logs, and is sent snapshots", Dose: "dead for 0.3 to 2 s",
		draw: func(rng *rand.Rand, d *Dose) { d.Time = millis(rng, 300, 2000) },
		inject: func(w *world, d Dose) string {
			i := w.some(d)
			w.c.Kill(i)
			time.Sleep(d.Time)
			w.compact(w.living()...)
			w.start(i)
			return w.named(i)
		},
		mend: restarted,
	},
}

// restarted is empty: mending starts every dead node anyway, whatever killed it.
func restarted(*world) {}

// compact makes nodes take snapshots of all shards. It only notes an error: a node whose disk fails reports that in
// another way.
func (w *world) compact(nodes ...int) {
	for _, i := range nodes {
		n := w.c.Node(i)
		if n == nil {
			continue
		}
		for shard := range w.plan.Shards {
			done := make(chan error, 1)
			go func() { done <- n.Compact(shard + 1) }()
			select {
			case err := <-done:
				if err != nil {
					w.tell("%s takes no snapshot of shard %d: %v", w.named(i), shard+1, err)
				}
			case <-time.After(time.Second): // a disk hangs; the call ends with the node
			}
		}
	}
}
