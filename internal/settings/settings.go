// Package settings reads named text values, as they stand in a URL, a file or
// the environment, into a configuration struct. Whatever is wrong is said in
// words that name the setting, the value and the remedy; of a secret the value
// is never said.
package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Info describes a setting to people.
type Info struct {
	Name    string // as it is written in a URL or file
	Field   string // the Go field it sets; empty: none
	Kind    string // text, number, size, duration, true/false, list, or the choices
	Default string // what holds where it is left out
	Doc     string // a sentence
	Secret  bool   // its value is shown nowhere
}

// Setting is a named value of the configuration C.
type Setting[C any] struct {
	Info
	Set func(c *C, value string) error // its error ends the sentence "NAME "
}

// Apply sets what values name. It returns every fault at once, joined; kind is
// what one setting is called, such as "parameter".
func Apply[C any](kind string, list []Setting[C], into *C, values map[string]string) error {
	byName := make(map[string]Setting[C], len(list))
	names := make([]string, 0, len(list))
	for _, s := range list {
		byName[s.Name] = s
		names = append(names, s.Name)
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		s, ok := byName[name]
		switch value := values[name]; {
		case !ok:
			faults = append(faults, Unknown(kind, name, names))
		case value == "":
			faults = append(faults, fmt.Errorf("%s is empty: leave it out for the default", name))
		default:
			if err := s.Set(into, value); err != nil {
				faults = append(faults, fmt.Errorf("%s %w", name, err))
			}
		}
	}
	return errors.Join(faults...)
}

// Infos are the descriptions of a list of settings.
func Infos[C any](list []Setting[C]) []Info {
	out := make([]Info, len(list))
	for i, s := range list {
		out[i] = s.Info
	}
	return out
}

// Text is a setting that is taken as it is.
func Text[C any](name, field, def, doc string, at func(*C) *string) Setting[C] {
	return Setting[C]{Info{Name: name, Field: field, Kind: "text", Default: def, Doc: doc}, func(c *C, v string) error {
		*at(c) = v
		return nil
	}}
}

// Number is a whole number other than 0, which the configurations take as not set.
func Number[C any](name, field, def, doc string, at func(*C) *int) Setting[C] {
	return Setting[C]{Info{Name: name, Field: field, Kind: "number", Default: def, Doc: doc}, func(c *C, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("is %q: a whole number is needed", v)
		}
		*at(c) = n
		return notZero(n)
	}}
}

// Size is a number of bytes, plain or with a unit.
func Size[C any](name, field, def, doc string, at func(*C) *int) Setting[C] {
	return Setting[C]{Info{Name: name, Field: field, Kind: "size", Default: def, Doc: doc}, func(c *C, v string) error {
		n, err := parseSize(v)
		if err != nil {
			return err
		}
		*at(c) = n
		return notZero(n)
	}}
}

func notZero(n int) error {
	if n == 0 {
		return errors.New("is 0: leave it out for the default")
	}
	return nil
}

var units = []struct {
	suffix string
	factor int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}

func parseSize(v string) (int, error) {
	number, factor := v, 1
	for _, u := range units {
		if n, ok := strings.CutSuffix(v, u.suffix); ok {
			number, factor = strings.TrimSpace(n), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("is %q: a size is needed, such as 65536, 64KiB or 16MiB", v)
	}
	return int(n) * factor, nil
}

// Duration is a time other than 0, with its unit.
func Duration[C any](name, field, def, doc string, at func(*C) *time.Duration) Setting[C] {
	return duration(name, field, def, doc, at, false)
}

// DurationOrZero is a time with its unit, or 0.
func DurationOrZero[C any](name, field, def, doc string, at func(*C) *time.Duration) Setting[C] {
	return duration(name, field, def, doc, at, true)
}

func duration[C any](name, field, def, doc string, at func(*C) *time.Duration, zero bool) Setting[C] {
	return Setting[C]{Info{Name: name, Field: field, Kind: "duration", Default: def, Doc: doc}, func(c *C, v string) error {
		d, err := time.ParseDuration(v)
		switch {
		case err != nil:
			return fmt.Errorf("is %q: a duration with its unit is needed, such as 500ms, 15s or 24h", v)
		case d == 0 && !zero:
			return fmt.Errorf("is %q: leave it out for the default", v)
		}
		*at(c) = d
		return nil
	}}
}

// Bool is true or false.
func Bool[C any](name, field, def, doc string, at func(*C) *bool) Setting[C] {
	return Setting[C]{Info{Name: name, Field: field, Kind: "true/false", Default: def, Doc: doc}, func(c *C, v string) error {
		if v != "true" && v != "false" {
			return fmt.Errorf("is %q: true or false is needed", v)
		}
		*at(c) = v == "true"
		return nil
	}}
}

// Option is one of the values that a Choice allows.
type Option[T any] struct {
	Name  string
	Value T
}

// Choice is one of a few values. Upper and lower case are the same.
func Choice[C, T any](name, field, def, doc string, at func(*C) *T, options ...Option[T]) Setting[C] {
	names := make([]string, len(options))
	for i, o := range options {
		names[i] = o.Name
	}
	return Setting[C]{Info{Name: name, Field: field, Kind: strings.Join(names, ", "), Default: def, Doc: doc}, func(c *C, v string) error {
		for _, o := range options {
			if strings.EqualFold(o.Name, v) {
				*at(c) = o.Value
				return nil
			}
		}
		return fmt.Errorf("is %q: %sallowed is %s", v, suggestion(v, names), strings.Join(names, ", "))
	}}
}

// List is several texts with commas between them.
func List[C any](name, field, def, doc string, at func(*C) *[]string) Setting[C] {
	return Setting[C]{Info{Name: name, Field: field, Kind: "list", Default: def, Doc: doc}, func(c *C, v string) error {
		parts := strings.Split(v, ",")
		for i, p := range parts {
			if parts[i] = strings.TrimSpace(p); parts[i] == "" {
				return fmt.Errorf("has an empty entry at place %d: take the comma away, or name it", i+1)
			}
		}
		*at(c) = parts
		return nil
	}}
}

// Hidden makes a setting a secret: its faults do not say the value.
func Hidden[C any](s Setting[C]) Setting[C] {
	set := s.Set
	s.Secret = true
	s.Set = func(c *C, v string) error {
		if set(c, v) != nil {
			return errors.New("cannot be used (it is a secret, so it is not shown)")
		}
		return nil
	}
	return s
}
