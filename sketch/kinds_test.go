package sketch

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What the tests of all kinds have in common: encodings, errors against theory, and decayed sums.

// coded is a kind in bytes.
type coded[T any] interface {
	*T
	AppendBinary([]byte) []byte
	Decode([]byte) ([]byte, error)
}

// checkCodec: decoding is the inverse of encoding; each prefix of good bytes is refused; each flipped bit is refused or
// is another state's encoding; and what is refused leaves the receiver as it was.
func checkCodec[T any, P coded[T]](t *testing.T, samples []P, use func(P)) {
	t.Helper()
	for i, s := range samples {
		good := s.AppendBinary(nil)
		d := P(new(T))
		rest, err := d.Decode(append(slices.Clone(good), "tail"...))
		if err != nil || string(rest) != "tail" {
			t.Fatalf("sample %d: decode %.40x: %v, rest %q", i, good, err, rest)
		}
		if again := d.AppendBinary(nil); string(again) != string(good) {
			t.Fatalf("sample %d: %x\nbecame\n%x", i, good, again)
		}
		step := 1 + len(good)/150
		for n := 0; n < len(good); n += step {
			checkRefused(t, d, good[:n], true, nil)
		}
		flipped := slices.Clone(good)
		for bit := 0; bit < 8*len(good); bit += step {
			flipped[bit/8] ^= 1 << (bit % 8)
			checkRefused(t, d, flipped, false, use)
			flipped[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// seedCorpus adds a sample, and with -update writes it to testdata.
func seedCorpus(f *testing.F, i int, b []byte) {
	f.Helper()
	f.Add(b)
	if !*update || len(b) >= 400 {
		return
	}
	file := filepath.Join("testdata", "fuzz", f.Name(), fmt.Sprintf("sample%d", i))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, "go test fuzz v1\n[]byte(%q)\n", b), 0o644); err != nil {
		f.Fatal(err)
	}
}

func checkRefused[T any, P coded[T]](t *testing.T, d P, b []byte, must bool, use func(P)) {
	t.Helper()
	before := d.AppendBinary(nil)
	fresh := P(new(T))
	if _, err := fresh.Decode(before); err != nil {
		t.Fatal(err)
	}
	rest, err := fresh.Decode(b)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) || rest != nil {
			t.Fatalf("%.60x gives %v", b, err)
		}
		if string(fresh.AppendBinary(nil)) != string(before) {
			t.Fatalf("%.60x is refused and changed the receiver", b)
		}
		return
	}
	if must {
		t.Fatalf("%.60x is taken, with %d bytes left", b, len(rest))
	}
	if again := fresh.AppendBinary(nil); string(again) != string(b[:len(b)-len(rest)]) {
		t.Fatalf("%x is taken and encodes to %x", b, again)
	}
	if use != nil {
		use(fresh)
	}
}

// fuzzCodec starts from samples and from the corpus in testdata, which -update writes.
func fuzzCodec[T any, P coded[T]](f *testing.F, samples []P, use func(P)) {
	for i, s := range samples {
		seedCorpus(f, i, s.AppendBinary(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkRefused(t, samples[len(samples)-1], b, false, use) })
}

// errorsOf are the errors of many estimates, each in units of its standard error in theory.
type errorsOf struct{ n, sum, square float64 }

func (e *errorsOf) add(estimate, truth, sd float64) {
	x := (estimate - truth) / sd
	e.n++
	e.sum += x
	e.square += x * x
}

// check fails when the root mean square is above 1.05 of theory, or the bias is above 4.5 of its own standard errors.
// The rmse of n trials is itself only known to 1/sqrt(2n); three times that is allowed on top.
func (e *errorsOf) check(t *testing.T, what string) {
	t.Helper()
	rmse, bias := math.Sqrt(e.square/e.n), e.sum/math.Sqrt(e.n)
	t.Logf("%s: %.0f trials, rmse %.3f of theory, bias %.2f standard errors", what, e.n, rmse, bias)
	if limit := 1.05 * (1 + 3/math.Sqrt(2*e.n)); rmse > limit {
		t.Errorf("%s: rmse is %.3f of theory, more than %.3f", what, rmse, limit)
	}
	if math.Abs(bias) > 4.5 {
		t.Errorf("%s: bias of %.2f standard errors", what, bias)
	}
}

// decayed is a sum that decays, kept as of its latest event: the exact oracle of the kinds that forget.
type decayed struct {
	h    Tick // 0: never
	v    float64
	asOf Tick
}

func (d *decayed) read(at Tick) float64 {
	if d.h == 0 {
		return d.v
	}
	return d.v * math.Exp2(-float64(at-d.asOf)/float64(d.h))
}

func (d *decayed) add(t Tick, n float64) {
	if t <= d.asOf && d.asOf != 0 {
		late := decayed{h: d.h, v: n, asOf: t}
		d.v += late.read(d.asOf)
		return
	}
	d.v, d.asOf = d.read(t)+n, t
}

// bursts calls f with events over a thousand half-lives of an hour: bursts, trickles, late events and long silences.
// now is where each burst ends.
func bursts(seed int, f func(now, t Tick, item int, n float64), pause func(now Tick)) {
	r := rng(seed)
	now := epoch
	for range 60 {
		items := 10 + r.below(3000)
		for range 50 + r.below(400) {
			now += Tick(r.below(int(hour / 200)))
			t := now
			switch r.below(20) {
			case 0:
				t -= Tick(r.below(int(300 * hour)))
			case 1, 2:
				t -= Tick(r.below(int(3 * hour)))
			}
			n := 1.0
			if r.below(4) == 0 {
				n = r.float() * 50
			}
			f(now, t, r.below(1+r.below(items)), n)
		}
		pause(now)
		switch r.below(4) {
		case 0:
			now += Tick(r.below(int(70 * hour)))
		case 1:
			now += Tick(r.below(int(5 * hour)))
		}
		pause(now)
	}
	pause(now + 1000*hour)
}

// hashOf is the hash of an item in the tests.
func hashOf(seed, item int) uint64 { return remix(uint64(seed)*0xd6e8feb86659fd93, item) }

// wantParams checks the refusal of parameters: the error is ErrParams and names the thing.
func wantParams(t *testing.T, err error, names string) {
	t.Helper()
	if names == "" {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), names) {
		t.Errorf("got %v, want an error that names %q", err, names)
	}
}
