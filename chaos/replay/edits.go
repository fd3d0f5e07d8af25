package main

// edit changes a file of Go's sources.
type edit struct {
	file    string // below src
	changes []change
	more    string // added at the end of the file
}

// change replaces a piece of text.
type change struct{ from, to string }

// edits remove what differs between two runs of a bubble: random numbers, the order in which a select looks at its
// cases, and the order in which timers of one moment fire. They also remove what the scheduler does by the wall clock,
// or for goroutines outside the bubble.
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
				"	if c := courseOf(getg()); c != nil {\n		return c.rand()\n	}\n	mp := getg().m\n	c := &mp.chacha8\n",
			},
		},
	},
	{
		file: "runtime/select.go",
		changes: []change{{
			"j := cheaprandn(uint32(norder + 1))",
			"j := uint32((uint64(courseRand()) * uint64(norder+1)) >> 32)",
		}},
	},
	{
		file:    "runtime/time.go",
		changes: []change{{"t.rand = cheaprand()", "t.rand = courseRand()"}},
	},
	{ // a mutex is handed over after too long a wait, which is measured in the time of the bubble
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
			{ // at each 61st tick the scheduler looks at the global queue first: goroutines outside must not count
				"	if !inheritTime {\n		mp.p.ptr().schedtick++\n	}\n",
				"	if !inheritTime && (!replaying || gp.bubble != nil) {\n		mp.p.ptr().schedtick++\n	}\n",
			},
			{ // a goroutine that yields waits behind those of its core, and not until that tick
				"	} else {\n		lock(&sched.lock)\n		globrunqput(gp)\n		unlock(&sched.lock)\n	}\n\n	if mainStarted {\n		wakep()\n	}\n\n	schedule()\n}\n\n// Gosched continuation on g0.\n",
				"	} else if replaying {\n		runqput(pp, gp, false)\n	} else {\n		lock(&sched.lock)\n		globrunqput(gp)\n		unlock(&sched.lock)\n	}\n\n	if mainStarted {\n		wakep()\n	}\n\n	schedule()\n}\n\n// Gosched continuation on g0.\n",
			},
			{
				"	mainStarted = true\n",
				"	mainStarted = true\n	if gogetenv(\"EBB_COURSE\") != \"\" {\n		spares.make()\n		replaying = true\n	}\n",
			},
			{
				"func allocm(pp *p, fn func(), id int64) *m {\n",
				"func allocm(pp *p, fn func(), id int64) *m {\n	if replaying {\n		mp := spares.take()\n		mp.mstartfn = fn\n		return mp\n	}\n",
			},
			{ // no goroutine is preempted because 10 ms have passed, and no core is taken from a system call
				"func retake(now int64) uint32 {\n",
				"func retake(now int64) uint32 {\n	if replaying {\n		return 0\n	}\n",
			},
		},
		more: `
// spareThreads are what threads take of the heap, made before all else: when one is started depends on the machine, and addresses of what is
// allocated later, in whose order maps of pointers are walked, must not.
type spareThreads struct {
	all  [32]*m
	used atomic.Uint32
}

var spares spareThreads

func (s *spareThreads) make() {
	for i := range s.all {
		s.all[i] = allocm(nil, nil, -1)
	}
}

func (s *spareThreads) take() *m {
	i := s.used.Add(1) - 1
	if i >= uint32(len(s.all)) {
		throw("replay: more threads than spares were made")
	}
	return s.all[i]
}
`,
	},
	{ // one in 1024 assertions makes a cache, on the heap
		file: "runtime/iface.go",
		changes: []change{
			{"	if cheaprand()&1023 != 0 {\n		// Only bother updating the cache ~1 in 1000 times.\n		return tab\n", "	if courseRand()&1023 != 0 {\n		return tab\n"},
			{"	if cheaprand()&uint32(oldC.Mask) != 0 {\n		// As cache gets larger, choose to update it less often\n		// so we can amortize the cost of building a new cache.\n", "	if courseRand()&uint32(oldC.Mask) != 0 {\n"},
			{"	if cheaprand()&1023 != 0 {\n		// Only bother updating the cache ~1 in 1000 times.\n		// This ensures", "	if courseRand()&1023 != 0 {\n		// This ensures"},
			{"	if cheaprand()&uint32(oldC.Mask) != 0 {\n		// As cache gets larger, choose to update it less often\n		// so we can amortize the cost of building a new cache\n", "	if courseRand()&uint32(oldC.Mask) != 0 {\n"},
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
			{"	now     int64  // current fake time\n", "	now     int64  // current fake time\n	course  course\n"},
			{
				"	bubble.now = synctestBaseTime\n",
				"	bubble.now = synctestBaseTime\n	course, _ := strconv.Atoi(gogetenv(\"EBB_COURSE\"))\n	bubble.course.state.Store(int64(course))\n" +
					"	getg().m.p.ptr().schedtick = 0\n",
			},
		},
		more: `
// replaying is set in a process that is there for one bubble.
var replaying bool

// course is where random numbers come from: of a bubble, and of all goroutines outside. What a thread has would tell which of them one ran on.
type course struct{ state atomic.Int64 }

var outside course

// courseOf is nil for a thread's own stack, which draws for other ends too, by the wall clock.
//
//go:nosplit
func courseOf(gp *g) *course {
	switch {
	case gp != gp.m.curg:
		return nil
	case gp.bubble != nil:
		return &gp.bubble.course
	case replaying:
		return &outside
	}
	return nil
}

// rand is splitmix64.
//
//go:nosplit
func (c *course) rand() uint64 {
	z := uint64(c.state.Add(-0x61c8864680b583eb))
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// courseRand stands for cheaprand.
//
//go:nosplit
func courseRand() uint32 {
	if c := courseOf(getg()); c != nil {
		return uint32(c.rand())
	}
	return cheaprand()
}
`,
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
