package load

import (
	"fmt"
	"strings"
	"time"
)

// directives are what strftime and strptime write for the parts of a time, in terms of package time. A fraction of a
// second is read behind the seconds whether the layout has one or not, so %f, with the point or comma before it, adds
// nothing.
var directives = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'j': "002", 'H': "15", 'k': "_15", 'I': "03", 'p': "PM",
	'M': "04", 'S': "05", 'b': "Jan", 'h': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday",
	'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'n': "\n", 't': "\t",
}

// parseTimeFormat returns the layouts of package time that a format stands for; none if it is empty. A format has the
// directives of strftime (%d/%b/%Y:%H:%M:%S %z) or, without any '%', is a layout of Go (02/Jan/2006:15:04:05 -0700).
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
	// what a layout writes, it reads: a moment of which every part differs shows which parts it has
	shown := time.Date(2013, 5, 17, 21, 4, 6, 0, time.UTC)
	again, err := time.Parse(layouts[0], shown.Format(layouts[0]))
	if err != nil || again.Year() != shown.Year() || again.YearDay() != shown.YearDay() {
		return nil, formatErrorf(format, "it needs a year, a month and a day: %%Y-%%m-%%d %%H:%%M:%%S, or as Go writes it 2006-01-02 15:04:05")
	}
	return layouts, nil
}

func formatErrorf(format, why string, args ...any) error {
	return columnErrorf("time format %q: %s", format, fmt.Sprintf(why, args...))
}

// strptime translates directives. A zone may be written in two ways, and each is a layout.
func strptime(format string) ([]string, error) {
	var b strings.Builder
	zoned := false
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' {
			if c >= '0' && c <= '9' {
				return nil, formatErrorf(format, "digits that stand for themselves cannot be read")
			}
			b.WriteByte(c)
			continue
		}
		if i++; i == len(format) {
			return nil, formatErrorf(format, "'%%' at its end stands for nothing")
		}
		switch d := format[i]; d {
		case '%':
			b.WriteByte('%')
		case 'z':
			zoned = true
			b.WriteString("Z0700")
		case 'Z':
			b.WriteString("MST")
		case 's':
			return nil, formatErrorf(format, "seconds since 1970 are --time-unit s")
		case 'f':
			text := strings.TrimSuffix(strings.TrimSuffix(b.String(), "."), ",")
			if !strings.HasSuffix(text, "05") {
				return nil, formatErrorf(format, "%%f is read behind %%S only, as %%S.%%f")
			}
			b.Reset()
			b.WriteString(text)
		default:
			layout, known := directives[d]
			if !known {
				return nil, formatErrorf(format, "%%%c is not known: there are %%Y %%m %%d %%H %%M %%S %%z and others of strftime", d)
			}
			b.WriteString(layout)
		}
	}
	if !zoned {
		return []string{b.String()}, nil
	}
	return []string{b.String(), strings.ReplaceAll(b.String(), "Z0700", "Z07:00")}, nil
}
