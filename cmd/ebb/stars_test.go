package main

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/csv"
	"maps"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ebbdb/ebb/client"
)

// The users who starred a project are a set. For each of the 159 names the graph has those with the most stargazers in
// common, as an exact count does. These are about the same: they are in more of the same languages than any two
// projects are.
func TestGraphPutsNeighboursTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three real processes")
	}
	stars := pairsOf(t, readStars(t, "stargazer.csv.gz", true))
	languages := pairsOf(t, readStars(t, "language.csv", false))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := startFleet(t)
	c := dialFleet(ctx, t, f)
	mustEbb(ctx, t, f, "namespace", "create", "stars", "--decay", "none", "--kind", "set")
	mustEbb(ctx, t, f, "import", starsDir+"/stargazer.csv.gz", "--no-header", "-n", "stars", "--key", "stars/{2}", "--bin", "1", "--quiet")
	projects := slices.Sorted(maps.Keys(stars))
	g, err := c.Graph(ctx, "stars", client.GraphQuery{Patterns: []string{"stars/*"}})
	if err != nil || len(g.Nodes) != len(projects) {
		t.Fatalf("%d nodes: %v", len(g.Nodes), err)
	}
	var found, any, sameTongue, anyTongue float64
	neighbours, pairs, exact := 0.0, 0.0, 0
	for i, n := range g.Nodes {
		p := projects[i]
		if size := float64(len(stars[p])); math.Abs(n.Size.Value-size) > 5*n.Size.StdErr {
			t.Errorf("%s has %v stargazers, and %g in truth", p, n.Size, size)
		}
		best := 0.0
		for _, other := range projects {
			if other != p {
				j := similarity(stars[p], stars[other])
				best, any, anyTongue, pairs = max(best, j), any+j, anyTongue+similarity(languages[p], languages[other]), pairs+1
			}
		}
		for k, l := range n.Links {
			truth := similarity(stars[p], stars[projects[l.To]])
			if math.Abs(l.Jaccard.Value-truth) > 5*l.Jaccard.StdErr+1e-12 {
				t.Errorf("%s and %s: %+v, in truth %g", p, projects[l.To], l.Jaccard, truth)
			}
			if l.Jaccard.StdErr == 0 {
				exact++
			}
			if k == 0 {
				found, sameTongue, neighbours = found+truth, sameTongue+similarity(languages[p], languages[projects[l.To]]), neighbours+1
				if truth < best-0.05 {
					t.Errorf("%s: %s shares %g, and the best %g", p, projects[l.To], truth, best)
				}
			}
		}
	}
	t.Logf("%g projects have a neighbour, %d links are exact; stargazers in common %.3f (of any two %.3f), languages in common %.3f (of any two %.3f)",
		neighbours, exact, found/neighbours, any/pairs, sameTongue/neighbours, anyTongue/pairs)
	if neighbours < 150 || exact < 250 || found/neighbours < 2*any/pairs || sameTongue/neighbours < 1.1*anyTongue/pairs {
		t.Error("neighbours are not alike")
	}
}

const starsDir = "../../../shared/data/github-stars"

// readStars reads a file of the stream of stars.
func readStars(t *testing.T, name string, compressed bool) [][]string {
	t.Helper()
	f, err := os.Open(starsDir + "/" + name)
	if err != nil {
		t.Skipf("the github-stars stream is not at %s: %v", starsDir, err)
	}
	defer f.Close()
	rows := csv.NewReader(f)
	if compressed {
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		rows = csv.NewReader(z)
	}
	all, err := rows.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// pairsOf collects first columns by second ones.
func pairsOf(t *testing.T, rows [][]string) map[string]map[string]bool {
	t.Helper()
	sets := map[string]map[string]bool{}
	for _, row := range rows {
		if sets[row[1]] == nil {
			sets[row[1]] = map[string]bool{}
		}
		sets[row[1]][row[0]] = true
	}
	return sets
}

func similarity(a, b map[string]bool) float64 {
	both := 0
	for x := range a {
		if b[x] {
			both++
		}
	}
	return float64(both) / float64(cmp.Or(len(a)+len(b)-both, 1))
}
