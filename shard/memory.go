package shard

// PageBytes is the size of a page: the unit of allocation and of copy-on-write
// of names and indexes.
const PageBytes = 4096

// Page is one page. It holds no pointers.
type Page [PageBytes]byte

// Memory is where pages come from.
type Memory interface {
	// Page returns a page of zeros.
	Page() *Page
	// Free takes back a page that neither the state nor any view can see.
	// A page that a view has seen is never freed: it is left to the collector.
	Free(*Page)
}

// Heap is memory from the Go heap.
type Heap struct{}

// Page implements Memory.
func (Heap) Page() *Page { return new(Page) }

// Free implements Memory; the collector does the work.
func (Heap) Free(*Page) {}

// pages is an array of pages with copy-on-write. A page is private when it was
// made or copied in the present epoch; a freeze begins a new one, and so every
// page is shared with the view until it is next written.
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
		p.pages[i], p.epochs[i] = private, epoch
	}
	return p.pages[i]
}

func (p *pages) add(epoch uint32) uint32 {
	p.pages = append(p.pages, p.mem.Page())
	p.epochs = append(p.epochs, epoch)
	return uint32(len(p.pages) - 1)
}

// free gives back all pages that no view can see.
func (p *pages) free(epoch uint32) {
	for i, page := range p.pages {
		if p.epochs[i] == epoch {
			p.mem.Free(page)
		}
	}
	p.pages, p.epochs = nil, nil
}

// frozen returns what a view keeps.
func (p *pages) frozen() pages {
	return pages{pages: append([]*Page(nil), p.pages...)}
}
