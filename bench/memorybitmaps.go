package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	pb "google.golang.org/protobuf/proto"

	"github.com/ebbdb/ebb/proto"
	"github.com/ebbdb/ebb/proto/ebbv1"
	"github.com/ebbdb/ebb/shard"
)

// SmallBitmaps measures the total memory of N bitmaps with few ids in one process, in states of shards without log and
// network. Names have 15 characters; ids are random and below 2^32. A bitmap has 15 ids on average: half of the bitmaps
// have 6 or fewer, and one of a thousand has more than 800.
type SmallBitmaps struct {
	N      int
	Shards int
	// InTurn gives each bitmap one id, and then each the next one, as events would come. Otherwise each bitmap gets all
	// its ids at once.
	InTurn bool
}

// SmallBitmapsResult is the result of a run. Bytes are in addition to those of the process before the run.
type SmallBitmapsResult struct {
	Bitmaps       int     `json:"bitmaps"`
	IDs           int     `json:"ids"`
	Resident      int64   `json:"resident_bytes"` // of the process, after a collection and FreeOSMemory
	Allocated     int64   `json:"allocated_bytes"`
	Pages         int64   `json:"page_bytes"` // that the states hold; Memory keeps more pages for reuse
	FillPerSecond float64 `json:"fill_per_second"`
}

const (
	idBytes      = 4
	smallIDsMost = 1000
)

// Overhead returns how many bytes a bitmap takes in addition to 4 for each of its ids.
func (r *SmallBitmapsResult) Overhead(bytes int64) float64 {
	return float64(bytes-idBytes*int64(r.IDs)) / float64(r.Bitmaps)
}

// smallSizes draws how many ids each of n bitmaps gets.
func smallSizes(n int) []uint16 {
	out, rng := make([]uint16, n), rand.New(rand.NewPCG(11, 0x626974))
	for i := range out {
		out[i] = uint16(min(20*0.2/1.2*math.Pow(1-rng.Float64(), -1/1.2)+1, smallIDsMost))
	}
	return out
}

// Run builds the bitmaps, measures their memory, and frees them.
func (m SmallBitmaps) Run(ctx context.Context) (SmallBitmapsResult, error) {
	sizes := smallSizes(m.N)
	before := measure()
	w := &memoryWorld{}
	for i := range m.Shards {
		if err := w.addShard(shard.ID(i+1), &countedMemory{Memory: newMemory()}, false); err != nil {
			return SmallBitmapsResult{}, err
		}
	}
	cpu := readCPU()
	r := SmallBitmapsResult{Bitmaps: m.N}
	if err := w.fillBitmaps(ctx, sizes, m.InTurn); err != nil {
		return r, err
	}
	for _, n := range sizes {
		r.IDs += int(n)
	}
	r.FillPerSecond = float64(r.IDs) / (readCPU().used - cpu.used)
	after := measure()
	r.Resident, r.Allocated = after.resident-before.resident, after.allocated-before.allocated
	for _, s := range w.shards {
		r.Pages += s.mem.(*countedMemory).bytes
	}
	runtime.KeepAlive(w)
	return r, nil
}

// countedMemory counts the bytes that are allocated and not yet freed. One goroutine at a time may use it.
type countedMemory struct {
	shard.Memory
	bytes int64
}

func (m *countedMemory) Page() *shard.Page {
	m.bytes += shard.PageBytes
	return m.Memory.Page()
}

func (m *countedMemory) Free(p *shard.Page) {
	m.bytes -= shard.PageBytes
	m.Memory.Free(p)
}

func (m *countedMemory) FreeAll(pages []*shard.Page) {
	m.bytes -= int64(len(pages)) * shard.PageBytes
	m.Memory.FreeAll(pages)
}

func (m *countedMemory) Run(pages int) []uint64 {
	m.bytes += int64(pages) * shard.PageBytes
	return m.Memory.Run(pages)
}

func (m *countedMemory) FreeRun(run []uint64) {
	m.bytes -= 8 * int64(len(run))
	m.Memory.FreeRun(run)
}

func (w *memoryWorld) fillBitmaps(ctx context.Context, sizes []uint16, inTurn bool) error {
	rng := rand.New(rand.NewPCG(12, 0x696473))
	batches := make([]ebbv1.BitEdits, len(w.shards))
	flush := func(i int) error {
		if len(batches[i].Edits) == 0 {
			return nil
		}
		raw, err := pb.Marshal(&ebbv1.Command{Body: &ebbv1.Command_Bits{Bits: &batches[i]}})
		if err != nil {
			return err
		}
		n := len(batches[i].Edits)
		batches[i].Edits = batches[i].Edits[:0]
		return w.shards[i].apply(raw, n)
	}
	var ids []uint64
	for j, more := 0, true; more; j++ {
		more = false
		for key, size := range sizes {
			if j >= int(size) {
				continue
			}
			more = inTurn
			i := key % len(w.shards)
			n := int(size)
			if inTurn {
				n = 1
			}
			ids = ids[:0]
			for range n {
				ids = append(ids, uint64(rng.Uint32()))
			}
			slices.Sort(ids)
			edit := &ebbv1.BitEdit{Key: memoryKey(nil, key), Op: ebbv1.BitOp_BIT_OP_SET, Ids: proto.AppendBitIDs(nil, ids)}
			if batches[i].Edits = append(batches[i].Edits, edit); len(batches[i].Edits) == memoryBatch {
				if err := flush(i); err != nil {
					return err
				}
			}
			if key%(1<<16) == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	for i, s := range w.shards {
		if err := flush(i); err != nil {
			return err
		}
		s.body, s.entry = nil, nil
	}
	return nil
}
