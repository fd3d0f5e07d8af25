package main

import (
	"github.com/spf13/pflag"

	"github.com/ebbdb/ebb/load"
)

// columnFlags say how the columns of a file are read: whether it has a header, and in which form its times are.
type columnFlags struct {
	header, noHeader           bool
	timeUnit, timeFormat, zone string
}

// addHeader adds the flags about the first line.
func (c *columnFlags) addHeader(f *pflag.FlagSet) {
	f.BoolVar(&c.header, "header", false, "the first line holds the names of columns, also where all are given by number")
	f.BoolVar(&c.noHeader, "no-header", false, "the first line is a row")
}

// addTimes adds the flags about times.
func (c *columnFlags) addTimes(f *pflag.FlagSet) {
	f.StringVar(&c.timeUnit, "time-unit", "auto", "of numbers in the time column: s, ms, us or auto")
	f.StringVar(&c.timeFormat, "time-format", "", "`format` of the times, "+
		"as of strftime (%d/%b/%Y:%H:%M:%S %z) or Go (02/Jan/2006:15:04:05 -0700)")
	f.StringVar(&c.zone, "time-zone", "", "`zone` of times that name none, "+
		"such as Europe/Berlin or +02:00, and of {t:day} (default UTC)")
}

// settle sets the options of a reader from the flags.
func (c *columnFlags) settle(o *load.Options) (err error) {
	if c.header && c.noHeader {
		return usagef("--header and --no-header: one of them")
	}
	o.Header, o.NoHeader, o.TimeFormat = c.header, c.noHeader, c.timeFormat
	if o.TimeUnit, err = load.ParseTimeUnit(c.timeUnit); err != nil {
		return noneOf("--time-unit", c.timeUnit, timeUnits)
	}
	if c.timeFormat != "" && o.TimeUnit != load.Autodetect {
		return usagef("--time-format describes dates, and --time-unit %s numbers: one of them", c.timeUnit)
	}
	if c.zone == "" {
		return nil
	}
	if o.Zone, err = load.ParseZone(c.zone); err != nil {
		return usagef("--time-zone: %v", err)
	}
	return nil
}
