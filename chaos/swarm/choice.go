package swarm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Choice says which parts of a plan are kept; all other parts are dropped. It is the value of --acts.
type Choice struct {
	Outage, Home bool
	Faults       []int // their numbers in the plan as it was drawn
}

// The words that a choice may have in addition to the numbers of faults.
const (
	wordOutage = "outage"
	wordHome   = "home"
	wordNone   = "none"
)

// ParseChoice parses the output of String, such as outage,2,3. It returns an error if a field is not valid.
func ParseChoice(text string) (c Choice, err error) {
	if text == wordNone {
		return c, nil
	}
	for field := range strings.SplitSeq(text, ",") {
		switch field = strings.TrimSpace(field); field {
		case wordOutage:
			c.Outage = true
		case wordHome:
			c.Home = true
		default:
			n, err := strconv.Atoi(field)
			if err != nil || n < 1 {
				return c, fmt.Errorf("%q: numbers of faults such as 2,3, with them outage and home where the plan has these, or none", text)
			}
			c.Faults = append(c.Faults, n)
		}
	}
	return c, nil
}

// String is the choice in the words of --acts.
func (c Choice) String() string {
	var words []string
	if c.Outage {
		words = append(words, wordOutage)
	}
	for _, n := range c.Faults {
		words = append(words, strconv.Itoa(n))
	}
	if c.Home {
		words = append(words, wordHome)
	}
	if len(words) == 0 {
		return wordNone
	}
	return strings.Join(words, ",")
}

// Lacks returns the first chosen part that the plan does not have; empty if the plan has all.
func (c Choice) Lacks(p Plan) string {
	switch {
	case c.Outage && !p.Outage:
		return wordOutage
	case c.Home && !p.Home:
		return wordHome
	}
	for _, n := range c.Faults {
		if !slices.ContainsFunc(p.Faults, func(a Fault) bool { return a.Number == n }) {
			return strconv.Itoa(n)
		}
	}
	return ""
}

// Choice returns all parts of a plan.
func (p Plan) Choice() Choice {
	c := Choice{Outage: p.Outage, Home: p.Home}
	for _, a := range p.Faults {
		c.Faults = append(c.Faults, a.Number)
	}
	return c
}

// Only returns the plan with only the chosen parts.
func (p Plan) Only(c Choice) Plan {
	faults := p.Faults
	p.Faults = nil
	for _, a := range faults {
		if slices.Contains(c.Faults, a.Number) {
			p.Faults = append(p.Faults, a)
		}
	}
	p.Outage, p.Home = p.Outage && c.Outage, p.Home && c.Home
	return p
}
