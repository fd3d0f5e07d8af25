package main

// edit changes a file of Go's sources.
type edit struct {
	file    string // below src
	changes []change
	more    string // at its end
}

// change replaces a piece of text.
type change struct{ from, to string }

// edits take away what differs between two runs of a bubble: random numbers, the order in which a select looks at its cases and timers of one moment
// fire, and whatever the scheduler does by the wall clock or for goroutines outside.
var edits = []edit{
	{
		file: "runtime/rand.go",
		changes: []change{
			{ // maps that packages make when they are initialised have seeds too, and so has the hash of their keys
				"	globalRand.state.Init(*seed)\n",
				"	*seed = [32]byte{1}\n	globalRand.state.Init(*seed)\n",
			},
			{
				"	mp := getg().m\n	c := &mp.chacha8\n",
				"	if gp := getg(); gp.bubble != nil && gp == gp.m.curg {\n		return gp.bubble.rand()\n	}\n	mp := getg().m\n	c := &mp.chacha8\n",
			},
		},
		more: `
// rand is splitmix64.
//
//go:nosplit
func (b *synctestBubble) rand() uint64 {
	z := uint64(b.state.Add(-0x61c8864680b583eb))
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// bubbleRand is cheaprand outside of bubbles: that is drawn from for other ends too.
func bubbleRand() uint32 {
	if gp := getg(); gp.bubble != nil && gp == gp.m.curg {
		return uint32(gp.bubble.rand())
	}
	return cheaprand()
}
`,
	},
	{
		file: "runtime/select.go",
		changes: []change{{
			"j := cheaprandn(uint32(norder + 1))",
			"j := uint32((uint64(bubbleRand()) * uint64(norder+1)) >> 32)",
		}},
	},
	{
		file:    "runtime/time.go",
		changes: []change{{"t.rand = cheaprand()", "t.rand = bubbleRand()"}},
	},
	{ // a mutex that was waited for too long is handed over: the time is that of the bubble
		file: "runtime/sema.go",
		changes: []change{{
			"func internal_sync_nanotime() int64 {\n",
			"func internal_sync_nanotime() int64 {\n	if b := getg().bubble; b != nil {\n		return b.now\n	}\n",
		}},
	},
	{
		file: "runtime/proc.go",
		changes: []change{
			{"func runqgrab(pp *p, batch *[256]guintptr,", "func runqgrab(pp *p, batch *[1024]guintptr,"},
			{ // each 61st tick looks at the queue of all cores first: goroutines outside must not count
				"	if !inheritTime {\n		mp.p.ptr().schedtick++\n	}\n",
				"	if !inheritTime && (!replaying || gp.bubble != nil) {\n		mp.p.ptr().schedtick++\n	}\n",
			},
			{ // who yields waits behind those of its core, and not until that tick
				"	} else {\n		lock(&sched.lock)\n		globrunqput(gp)\n		unlock(&sched.lock)\n	}\n\n	if mainStarted {\n		wakep()\n	}\n\n	schedule()\n}\n\n// Gosched continuation on g0.\n",
				"	} else if replaying {\n		runqput(pp, gp, false)\n	} else {\n		lock(&sched.lock)\n		globrunqput(gp)\n		unlock(&sched.lock)\n	}\n\n	if mainStarted {\n		wakep()\n	}\n\n	schedule()\n}\n\n// Gosched continuation on g0.\n",
			},
			{ // from the first thread on: how many there are moves what is allocated later, and maps of pointers with it
				"	mainStarted = true\n",
				"	mainStarted = true\n	replaying = gogetenv(\"EBB_COURSE\") != \"\"\n",
			},
			{ // nobody is preempted since 10 ms have passed, and no core is taken from a system call
				"func retake(now int64) uint32 {\n",
				"func retake(now int64) uint32 {\n	if replaying {\n		return 0\n	}\n",
			},
		},
	},
	{ // all goroutines of a bubble find room in their core's queue
		file:    "runtime/runtime2.go",
		changes: []change{{"runq     [256]guintptr", "runq     [1024]guintptr"}},
	},
	{
		file: "runtime/synctest.go",
		changes: []change{
			{"	\"internal/runtime/sys\"\n", "	\"internal/runtime/sys\"\n	\"internal/strconv\"\n"},
			{"	now     int64  // current fake time\n", "	now     int64  // current fake time\n	state   atomic.Int64 // of rand\n"},
			{
				"	bubble.now = synctestBaseTime\n",
				"	bubble.now = synctestBaseTime\n	course, _ := strconv.Atoi(gogetenv(\"EBB_COURSE\"))\n	bubble.state.Store(int64(course))\n" +
					"	getg().m.p.ptr().schedtick = 0\n",
			},
		},
		more: "\n// replaying is set in a process that is there for one bubble.\nvar replaying bool\n",
	},
	{
		file: "crypto/internal/sysrand/rand.go",
		changes: []change{{
			"func Read(b []byte) {\n",
			"func Read(b []byte) {\n	for i := range b {\n		b[i] = byte(runtimeRand() >> 24)\n	}\n	return\n",
		}},
		more: "\n//go:linkname runtimeRand runtime.rand\nfunc runtimeRand() uint64\n",
	},
}
