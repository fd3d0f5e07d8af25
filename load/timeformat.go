package load

import (
	"fmt"
	"strings"
	"time"
)

// directives are the directives of strftime and strptime, and what they are in a layout of package time. Package time
// reads a fraction behind the seconds whether the layout has one or not. So %f, with the point or comma before it, adds
// nothing. Hours may have one digit instead of two, and any number of blanks may stand where the format has one.
var directives = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'j': "002", 'H': "15", 'k': "15", 'I': "03", 'p': "PM",
	'M': "04", 'S': "05", 'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
	'n': "\n", 't': "\t",
}

// compounds are the directives that stand for several others.
var compounds = strings.NewReplacer("%%", "%%", "%F", "%Y-%m-%d", "%T", "%H:%M:%S", "%R", "%H:%M", "%D", "%m/%d/%y")

// shortened are the layouts that take one digit as well as two, as strptime does. They are used where no digit follows.
var shortened = map[string]string{"01": "1", "02": "2", "03": "3", "04": "4", "05": "5"}

// parseTimeFormat returns the layouts of package time that a format stands for; none if it is empty. A format has
// directives of strftime (%d/%b/%Y:%H:%M:%S %z). Without any '%' it is a layout of Go (02/Jan/2006:15:04:05 -0700).
func parseTimeFormat(format string) ([]string, error) {
	if format == "" {
		return nil, nil
	}
	layouts := []string{format}
	if strings.Contains(format, "%") {
		var err error
		if layouts, err = strptime(format); err != nil {
			return nil, err
		}
	}
	for _, layout := range layouts {
		if strings.Contains(layout, "MST") {
			return nil, formatErrorf(format, "names of zones have several meanings: take %%z, or --time-zone for all times")
		}
	}
	// a layout reads what it writes: a time whose parts all differ shows which parts the layout has
	shown := time.Date(2013, 5, 17, 21, 4, 6, 0, time.UTC)
	again, err := time.Parse(layouts[0], shown.Format(layouts[0]))
	month := time.Date(shown.Year(), shown.Month(), 1, 0, 0, 0, 0, time.UTC)
	year := time.Date(shown.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	dated := again.Year() == shown.Year() && again.YearDay() == shown.YearDay()
	coarse := (again.Equal(month) || again.Equal(year)) && !strings.Contains(layouts[0], "Mon") // no day of the week
	if err != nil || !dated && !coarse {
		return nil, formatErrorf(format, "it needs a year; with a day or a time it needs the month and the day too: "+
			"%%Y-%%m-%%d %%H:%%M:%%S, or as Go writes it 2006-01-02 15:04:05")
	}
	return layouts, nil
}

func formatErrorf(format, why string, args ...any) error {
	return columnErrorf("time format %q: %s", format, fmt.Sprintf(why, args...))
}

// strptime translates the directives of a format into layouts. There are several, because a zone can be written in two
// ways, and a number of two digits also with one.
func strptime(format string) ([]string, error) {
	var parts []string // literal bytes and layouts of directives
	zoned, expanded := false, compounds.Replace(format)
	for i := 0; i < len(expanded); i++ {
		c := expanded[i]
		if c != '%' {
			if c >= '0' && c <= '9' {
				return nil, formatErrorf(format, "digits that stand for themselves cannot be read")
			}
			parts = append(parts, string(c))
			continue
		}
		if i++; i == len(expanded) {
			return nil, formatErrorf(format, "'%%' at its end stands for nothing")
		}
		switch d := expanded[i]; d {
		case '%':
			parts = append(parts, "%")
		case 'z':
			zoned = true
			parts = append(parts, "Z0700")
		case 'Z':
			parts = append(parts, "MST")
		case 's':
			return nil, formatErrorf(format, "seconds since 1970 are --time-unit s")
		case 'f':
			if n := len(parts); n > 0 && (parts[n-1] == "." || parts[n-1] == ",") {
				parts = parts[:n-1]
			}
			if n := len(parts); n == 0 || parts[n-1] != "05" {
				return nil, formatErrorf(format, "%%f is read behind %%S only, as %%S.%%f")
			}
		default:
			layout, known := directives[d]
			if !known {
				return nil, formatErrorf(format, "%%%c is not known: there are %%Y %%m %%d %%H %%M %%S %%z and others of strftime", d)
			}
			parts = append(parts, layout)
		}
	}
	layouts := []string{strings.Join(parts, "")}
	if short := shorten(parts); short != layouts[0] {
		layouts = append(layouts, short)
	}
	if zoned {
		for _, layout := range layouts {
			layouts = append(layouts, strings.ReplaceAll(layout, "Z0700", "Z07:00"))
		}
	}
	return layouts, nil
}

// shorten returns the layout that also takes one digit, where no other digit can follow. After '_' package time would
// read the shortened layout as another one.
func shorten(parts []string) string {
	var b strings.Builder
	for i, part := range parts {
		short, is := shortened[part]
		before, after := i == 0 || parts[i-1] != "_", i+1 == len(parts) || !strings.ContainsAny(parts[i+1][:1], "0123_")
		if is && before && after {
			part = short
		}
		b.WriteString(part)
	}
	return b.String()
}
