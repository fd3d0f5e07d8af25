// Command mutation tests the tests: it makes many small changes of a package, mutants, and runs the package's tests
// with one of them at a time. A mutant that no test notices has survived. All mutants are compiled into one test binary
// by `go test -overlay`, and an environment variable chooses one, so that nothing is written to the source.
//
//	go run ./mutation [flags] PACKAGE...     in tools; packages are named from the root, as ./node/wal
//
// Each outcome is added at once to a record, a file of JSON lines. So a run that was stopped continues where it was.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	var o options
	flag.StringVar(&o.root, "root", "..", "`directory` of the module")
	flag.StringVar(&o.records, "records", "../.mutation", "`directory` of the records")
	flag.IntVar(&o.sample, "sample", 300, "how many mutants of a package are tried, spread over its files; 0: all")
	flag.StringVar(&o.seed, "seed", "1", "what the sample is drawn by")
	files := flag.String("files", ".", "only files whose paths match this regular `expression`")
	flag.DurationVar(&o.budget, "for", 0, "begin no mutant after this time; 0: no limit")
	flag.BoolVar(&o.long, "long", false, "run the tests without -short")
	flag.StringVar(&o.seeds, "swarm", "", "try with these `seeds` of the swarm, such as 1-20, and no tests")
	again := flag.String("retry", "^$",
		"try again what has such a verdict, as `survived|unreached` after tests were added; an expression")
	flag.BoolVar(&o.report, "report", false, "try nothing, print the table of what is recorded")
	tests := flag.String("tests", ".",
		"only tests whose names match this `expression`, such as new ones; tries only what -retry says")
	equal := flag.String("equal", "mutation/equal.txt", "`file` of mutants that no test can notice")
	flag.Parse()
	var err error
	if o.files, err = regexp.Compile(*files); err != nil {
		log.Fatal(err)
	}
	if o.tests, err = regexp.Compile(*tests); err != nil {
		log.Fatal(err)
	}
	if o.again, err = regexp.Compile(*again); err != nil {
		log.Fatal(err)
	}
	if o.equal, err = readEqual(*equal); err != nil {
		log.Fatal(err)
	}
	if flag.NArg() == 0 {
		log.Fatal("usage: mutation [flags] PACKAGE...")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.budget > 0 {
		o.until = time.Now().Add(o.budget)
	}
	var all []row
	for _, pkg := range flag.Args() {
		rows, err := o.try(ctx, pkg)
		if err != nil {
			log.Fatalf("%s: %v", pkg, err)
		}
		all = append(all, rows...)
	}
	fmt.Print(table(all))
}

// options select what is tried.
type options struct {
	root, records string
	sample        int
	seed          string
	files         *regexp.Regexp
	budget        time.Duration
	until         time.Time // zero: no limit
	long          bool
	seeds         string         // of the swarm; empty: the tests
	again         *regexp.Regexp // verdicts that are tried again; nil: none
	tests         *regexp.Regexp // the tests to run; nil: all
	report        bool
	equal         map[string]string // why no test can notice a mutant, by its id
}

func (o *options) over(ctx context.Context) bool {
	return ctx.Err() != nil || !o.until.IsZero() && time.Now().After(o.until)
}

// try tries the sampled mutants of a package, and returns what is recorded of them.
func (o *options) try(ctx context.Context, name string) ([]row, error) {
	p, err := load(o.root, name)
	if err != nil {
		return nil, err
	}
	p.find()
	chosen := sample(p.mutants, o.sample, o.seed, o.files)
	name = strings.ReplaceAll(p.dir, "/", "-")
	if o.seeds != "" {
		name += "-swarm-" + o.seeds
	}
	rec, err := openRecord(filepath.Join(o.records, name+".jsonl"))
	if err != nil {
		return nil, err
	}
	defer rec.close()
	if !o.report && !o.over(ctx) {
		if err := o.run(ctx, p, chosen, rec); err != nil {
			return nil, err
		}
	}
	return rows(p.mutants, chosen, rec, o.equal), nil
}

func (o *options) run(ctx context.Context, p *pkg, chosen []*mutant, rec *record) error {
	var left []*mutant
	some := o.tests != nil && o.tests.String() != "."
	for _, m := range chosen {
		known := rec.of[m.ID]
		again := o.again != nil && o.again.MatchString(known.Verdict) && o.equal[m.ID] == ""
		if known.Verdict == "" && !some || again {
			left = append(left, m)
		}
	}
	if len(left) == 0 {
		return nil
	}
	r, err := newRunner(p, !o.long, o.seeds)
	if err != nil {
		return err
	}
	r.only = o.tests
	defer r.close()
	log.Printf("%s: %d mutants, %d of %d sampled are left; build", p.dir, len(p.mutants), len(left), len(chosen))
	if err := r.build(ctx); err != nil {
		return err
	}
	from := time.Now()
	if err := r.sound(ctx); err != nil {
		return err
	}
	log.Printf("%s: they take %v without a mutant", p.dir, time.Since(from).Round(time.Millisecond))
	for i, m := range left {
		if o.over(ctx) {
			log.Printf("%s: stopped with %d left", p.dir, len(left)-i)
			return nil
		}
		out := outcome{mutant: *m, Commit: p.commit}
		began := time.Now()
		out.Verdict, out.By = r.mutant(ctx, m)
		out.Took = time.Since(began).Milliseconds()
		if ctx.Err() != nil {
			return nil // the run was interrupted: there is no verdict
		}
		if some && out.Verdict != killed && out.Verdict != timeout {
			continue // other tests may notice it
		}
		if err := rec.add(out); err != nil {
			return err
		}
		log.Printf("%d/%d %s %s:%d %s %s %s", i+1, len(left), m.ID, m.File, m.Line, m.Op, out.Verdict,
			cmp.Or(out.By, m.Text))
	}
	return nil
}
