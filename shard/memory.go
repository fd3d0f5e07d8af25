package shard

// PageBytes is the size of a page: the unit of allocation and of copy-on-write
// of names, indexes, and summaries.
const PageBytes = 4096

// PageWords is a page in words.
const PageWords = PageBytes / 8

// Page is one page. It holds no pointers.
type Page [PageBytes]byte

// Memory is where pages come from. One state has one, and its views share it.
type Memory interface {
	// Page returns a page of zeros.
	Page() *Page
	// Free takes back a page. Only views that have it now may still read it.
	Free(*Page)
	// FreeAll takes back any number of pages, as Free does, without making the caller wait for that work: a part of a
	// dictionary has up to 7 GiB of them.
	FreeAll([]*Page)
	// Run returns consecutive pages, as words of zeros.
	Run(pages int) []uint64
	// FreeRun takes back a result of Run, as Free does.
	FreeRun([]uint64)
	// Hold keeps memory that is taken back from now on unchanged, until release is called: a view of the present state
	// reads it. release may be called by another goroutine, once.
	Hold() (release func())
	// Another returns empty memory of the same sort, for a state that replaces the state of this memory.
	Another() Memory
}

// Heap is memory from the Go heap.
type Heap struct{}

// Page implements Memory.
func (Heap) Page() *Page { return new(Page) }

// Free implements Memory; the garbage collector frees the page.
func (Heap) Free(*Page) {}

// FreeAll implements Memory.
func (Heap) FreeAll([]*Page) {}

// Run implements Memory.
func (Heap) Run(pages int) []uint64 { return make([]uint64, pages*PageWords) }

// FreeRun implements Memory.
func (Heap) FreeRun([]uint64) {}

// Hold implements Memory: the garbage collector keeps what a view refers to.
func (Heap) Hold() (release func()) { return func() {} }

// pages is an array of pages with copy-on-write. A page is private if it was made or copied in the present epoch. A
// freeze begins a new epoch, so every page is shared with the view until it is next written.
type pages struct {
	mem    Memory
	pages  []*Page
	epochs []uint32 // the epoch in which a page became private; absent in a view
}

func (p *pages) len() uint32 { return uint32(len(p.pages)) }

func (p *pages) at(i uint32) *Page { return p.pages[i] }

// edit returns page i for writing.
func (p *pages) edit(i, epoch uint32) *Page {
	if p.epochs[i] != epoch {
		private := p.mem.Page()
		*private = *p.pages[i]
		p.mem.Free(p.pages[i])
		p.pages[i], p.epochs[i] = private, epoch
	}
	return p.pages[i]
}

func (p *pages) add(epoch uint32) uint32 {
	p.pages = append(p.pages, p.mem.Page())
	p.epochs = append(p.epochs, epoch)
	return uint32(len(p.pages) - 1)
}

// free gives back all pages.
func (p *pages) free() {
	p.mem.FreeAll(p.pages)
	p.pages, p.epochs = nil, nil
}

// frozen returns the pages for a view.
func (p *pages) frozen() pages {
	return pages{pages: append([]*Page(nil), p.pages...)}
}

// private returns a copy of a run, and frees the run.
func private(mem Memory, run []uint64) []uint64 {
	own := mem.Run(len(run) / PageWords)
	copy(own, run)
	mem.FreeRun(run)
	return own
}

// Another implements Memory.
func (Heap) Another() Memory { return Heap{} }
