package settings

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Unknown says that there is no such thing, what may have been meant, and what
// there is. A name that does not look like one is not repeated: it may be a part
// of a secret.
func Unknown(kind, name string, known []string) error {
	there := "there are none"
	if len(known) > 0 {
		there = "there are " + strings.Join(known, ", ")
	}
	if !plausible.MatchString(name) {
		return fmt.Errorf("there is no %s of this name: %s", kind, there)
	}
	return fmt.Errorf("there is no %s %q: %s%s", kind, name, suggestion(name, known), there)
}

var plausible = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.+-]{0,39}$`)

func suggestion(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return fmt.Sprintf("did you mean %q? ", near)
	}
	return ""
}

// Nearest returns the known name that a misspelt one was most likely meant to
// be, or an empty string where none is near.
func Nearest(name string, known []string) string {
	best, least := "", max(1, len(name)/3)+1
	for _, k := range known {
		if d := Distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	// Not misspelt but put under another heading.
	i := slices.IndexFunc(known, func(k string) bool { return strings.HasSuffix(flat(k), "."+flat(name)) })
	if i < 0 {
		return ""
	}
	return known[i]
}

// flat is a name without what people mix up.
func flat(s string) string { return strings.ReplaceAll(strings.ToLower(s), "-", "_") }

// Distance counts the letters to change, add, take away or swap with a neighbour
// that two names are apart. Upper and lower case are the same, and so are - and _.
func Distance(a, b string) int {
	a, b = flat(a), flat(b)
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// Rename puts the settings' names in place of the Go fields that an error's text
// names, and takes a prefix off each of its lines.
func Rename(err error, prefix string, infos []Info) error {
	if err == nil {
		return nil
	}
	var pairs []string
	for _, i := range infos {
		if i.Field != "" {
			pairs = append(pairs, i.Field, i.Name)
		}
	}
	var faults []error
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimPrefix(strings.TrimSpace(line), prefix)
		for i := 0; i < len(pairs); i += 2 {
			line = regexp.MustCompile(`(^|[ (])`+regexp.QuoteMeta(pairs[i])+`($|[^A-Za-z])`).ReplaceAllString(line, "${1}"+pairs[i+1]+"${2}")
		}
		faults = append(faults, errors.New(line))
	}
	return renamed{errors.Join(faults...), err}
}

type renamed struct{ text, err error }

func (r renamed) Error() string { return r.text.Error() }
func (r renamed) Unwrap() error { return r.err }
