package connect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outmill/outmill/internal/settings"
)

// Scheme describes a kind of store or broker.
type Scheme struct {
	Names   []string // the first is the usual one
	Example string   // a URL
	Doc     string
	Params  []Param

	fields []string // the Go fields that parameters set
}

// Param describes a parameter of a URL.
type Param struct {
	Name, Kind, Default, Doc string
	Secret                   bool // its value is shown nowhere
}

type scheme[T any] struct {
	Scheme
	prepare func(address) (opening[T], error)
}

// opening is a URL that has been read into a configuration.
type opening[T any] struct {
	open  func(ctx context.Context) (T, error)
	check func() error // what open would refuse about the configuration

	// Stores only: the statements that make its tables.
	migration func() (string, error)
}

// define makes a scheme of the configuration C. read takes what is no parameter
// from the address; it and the functions of the opening may name Go fields in
// their errors, which are shown by the parameters' names.
func define[C, T any](info Scheme, params []settings.Setting[C], read func(address, *C) error,
	prepared func(C) opening[T],
) scheme[T] {
	infos := settings.Infos(params)
	for _, i := range infos {
		info.Params = append(info.Params, Param{Name: i.Name, Kind: i.Kind, Default: i.Default, Doc: i.Doc, Secret: i.Secret})
	}
	for _, i := range infos {
		info.fields = append(info.fields, i.Field)
	}
	prefix := info.Names[0] + ": "
	prepare := func(a address) (opening[T], error) {
		var c C
		err := settings.Apply("parameter", params, &c, a.params)
		if err := errors.Join(err, read(a, &c)); err != nil {
			return opening[T]{}, err
		}
		o := prepared(c)
		return opening[T]{
			open: func(ctx context.Context) (T, error) {
				opened, err := o.open(ctx)
				return opened, settings.Rename(err, prefix, infos)
			},
			check:     func() error { return settings.Rename(o.check(), prefix, infos) },
			migration: o.migration,
		}, nil
	}
	return scheme[T]{info, prepare}
}

func open[T any](ctx context.Context, kind string, list []scheme[T], url string) (T, error) {
	var none T
	name, o, err := prepare(kind, list, url)
	if err != nil {
		return none, err
	}
	opened, err := o.open(ctx)
	if err != nil {
		return none, told(kind, name, err)
	}
	return opened, nil
}

func check[T any](kind string, list []scheme[T], url string) error {
	name, o, err := prepare(kind, list, url)
	if err != nil {
		return err
	}
	return told(kind, name, o.check())
}

func prepare[T any](kind string, list []scheme[T], url string) (name string, o opening[T], err error) {
	a, err := parse(url)
	if err != nil {
		return "", o, fmt.Errorf("%s: %w: %s", kind, err, there(list))
	}
	i := slices.IndexFunc(list, func(s scheme[T]) bool { return slices.Contains(s.Names, a.scheme) })
	if i < 0 {
		var names []string
		for _, s := range list {
			names = append(names, s.Names...)
		}
		return "", o, fmt.Errorf("%s: %w", kind, settings.Unknown("scheme", a.scheme, names))
	}
	err = a.fault()
	if err == nil {
		o, err = list[i].prepare(a)
	}
	return a.scheme, o, told(kind, a.scheme, err)
}

func there[T any](list []scheme[T]) string {
	examples := make([]string, len(list))
	for i, s := range list {
		examples[i] = s.Example
	}
	return "write one of " + strings.Join(examples, ", ")
}

// told puts kind and scheme in front of each fault.
func told(kind, scheme string, err error) error {
	if err == nil {
		return nil
	}
	var all interface{ Unwrap() []error }
	if errors.As(err, &all) {
		var faults []error
		for line := range strings.Lines(err.Error()) {
			faults = append(faults, fmt.Errorf("%s: %s: %s", kind, scheme, strings.TrimSpace(line)))
		}
		return retold{errors.Join(faults...), err}
	}
	return fmt.Errorf("%s: %s: %w", kind, scheme, err)
}

// retold is an error in other words, with its causes.
type retold struct{ text, cause error }

func (r retold) Error() string { return r.text.Error() }
func (r retold) Unwrap() error { return r.cause }
