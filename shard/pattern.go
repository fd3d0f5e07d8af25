package shard

import (
	"bytes"

	"github.com/ebbdb/ebb/proto"
)

// pattern is what the names of keys are matched with, byte by byte:
//
//	c    the byte c
//	\c   the byte c, whatever it is
//	*    any bytes but '/', also none
//	**   any bytes, also none
//
// So link/* is every key of the directory link, link/** whatever lies below it at any depth, and ** every key.
type pattern struct {
	head []byte // what comes before the first star
	rest []token
}

// token is a byte, or a star.
type token struct {
	c    byte
	star uint8 // 0: a byte; 1 for *, 2 for **
}

func compilePattern(text []byte) pattern {
	var p pattern
	for i := 0; i < len(text); i++ {
		t := token{c: text[i]}
		switch {
		case t.c == '*' && i+1 < len(text) && text[i+1] == '*':
			t.star = 2
			i++
		case t.c == '*':
			t.star = 1
		case t.c == '\\' && i+1 < len(text):
			i++
			t.c = text[i]
		}
		if len(p.rest) == 0 && t.star == 0 {
			p.head = append(p.head, t.c)
			continue
		}
		p.rest = append(p.rest, t)
	}
	return p
}

// stepsMax bounds the steps that one question may take to match names in one shard, beyond one for each byte of a name.
// So many steps take well below a second. Only patterns of many stars over names that nearly match come near it.
const stepsMax = 1 << 27

// match says whether a name matches. It subtracts from steps the steps that it had to repeat, and returns false once
// none are left.
func (p *pattern) match(name []byte, steps *int) bool {
	name, ok := bytes.CutPrefix(name, p.head)
	if !ok {
		return false
	}
	// Where to continue if the rest does not match: with one byte more for the last star of each sort. An earlier star
	// of a sort need not be tried again, since the last one can take whatever it would have taken.
	i, j := 0, 0
	one, oneAt, two, twoAt := -1, 0, -1, 0 // tokens after the last * and **, and what of the name they take
	for i < len(name) || j < len(p.rest) {
		if j < len(p.rest) {
			switch t := p.rest[j]; {
			case t.star == 2:
				j++
				two, twoAt, one = j, i, -1
				continue
			case t.star == 1:
				j++
				one, oneAt = j, i
				continue
			case i < len(name) && name[i] == t.c:
				i++
				j++
				if one >= 0 || two >= 0 {
					*steps-- // the next star may have it matched again
				}
				continue
			}
		}
		if *steps--; *steps < 0 {
			return false
		}
		switch {
		case one >= 0 && oneAt < len(name) && name[oneAt] != '/':
			oneAt++
			i, j = oneAt, one
		case two >= 0 && twoAt < len(name):
			twoAt++
			i, j, one = twoAt, two, -1
		default:
			return false
		}
	}
	return true
}

// patterns are the patterns of one question, and the steps that are left to match them.
type patterns struct {
	list  []pattern
	steps int
}

func compilePatterns(texts [][]byte) *patterns {
	p := &patterns{steps: stepsMax}
	for _, text := range texts {
		p.list = append(p.list, compilePattern(text))
	}
	return p
}

func (p *patterns) match(name []byte) bool {
	for i := range p.list {
		if p.list[i].match(name, &p.steps) {
			return true
		}
	}
	return false
}

// exhausted refuses a question whose patterns took too long.
func (p *patterns) exhausted() *proto.Error {
	if p.steps >= 0 {
		return nil
	}
	return proto.ErrResponseTooLarge.Errorf("the patterns take more than %d steps to match", stepsMax).WithHint("use fewer stars")
}
