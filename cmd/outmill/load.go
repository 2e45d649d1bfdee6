package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"

	"github.com/outmill/outmill/internal/settings"
)

// maxConfig bounds a file that was named by mistake.
const maxConfig = 1 << 20

// sources is where a configuration comes from. Later ones win: file,
// environment, flags.
type sources struct {
	file    string   // empty: none
	environ []string // as os.Environ
	flags   *pflag.FlagSet
}

// loaded is a configuration with what was said of it, by key.
type loaded struct {
	config
	said map[string]string
	from map[string]string // file, environment or flag
}

// load reads all sources. It reports every fault at once, and each names the
// place where it is to be mended.
func load(s sources) (loaded, error) {
	l := loaded{config: defaults(), said: map[string]string{}, from: map[string]string{}}
	if s.file == "" {
		s.file = variable(s.environ, configVariable)
	}
	file, err := fileValues(s.file)
	if err != nil {
		return l, err
	}
	environment, err := environmentValues(s.environ)
	faults := []error{err}
	flags := flagValues(s.flags)

	all := all()
	for _, source := range []struct {
		name   string
		values map[string]any
	}{{"file", file}, {"environment", environment}, {"flag", flags}} {
		k := koanf.New(".")
		if err := k.Load(confmap.Provider(source.values, "."), nil); err != nil {
			return l, err
		}
		texts, err := texts(k.All())
		faults = append(faults, at(source.name, s.file, err))
		var scratch config
		faults = append(faults, at(source.name, s.file, settings.Apply("setting", all, &scratch, texts)))
		for key, value := range texts {
			l.said[key], l.from[key] = value, source.name
		}
	}
	if err := errors.Join(faults...); err != nil {
		return l, usage(err)
	}
	if err := settings.Apply("setting", all, &l.config, l.said); err != nil {
		return l, usage(err)
	}
	if err := l.readFiles(); err != nil {
		return l, usage(err)
	}
	return l, nil
}

// at says where each of the faults is.
func at(source, file string, err error) error {
	if err == nil {
		return nil
	}
	where := map[string]string{"file": file, "environment": "environment", "flag": "flags"}[source]
	var out []error
	for line := range strings.Lines(err.Error()) {
		out = append(out, fmt.Errorf("%s: %s", where, strings.TrimSpace(line)))
	}
	return errors.Join(out...)
}

func fileValues(path string) (map[string]any, error) {
	if path == "" {
		return nil, nil
	}
	text, err := readSmall(path)
	if err != nil {
		return nil, usage(fmt.Errorf("%s: the configuration %w", path, err))
	}
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(text), yaml.Parser()); err != nil {
		return nil, usage(fmt.Errorf("%s: %s", path, yamlFault(err)))
	}
	return k.Raw(), nil
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	case len(text) > maxConfig:
		return nil, errors.New("has more than 1 MiB: this is no configuration")
	}
	return text, nil
}

var (
	yamlLine  = regexp.MustCompile(`line (\d+)`)
	yamlTwice = regexp.MustCompile(`mapping key "([A-Za-z_]+)" already defined`)
)

// yamlFault is the parser's word without what it quotes of the file.
func yamlFault(err error) string {
	text := err.Error()
	line := "it"
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line = "line " + m[1]
	}
	switch m := yamlTwice.FindStringSubmatch(text); {
	case m != nil:
		return fmt.Sprintf("%s: %s is there twice: keep one", line, m[1])
	case strings.Contains(text, "tab"), strings.Contains(text, "cannot start any token"):
		return line + " is not YAML: indent with spaces, and put values that begin with a special character into quotes"
	case strings.Contains(text, "cannot unmarshal"):
		return "the file must hold lines of the form key: value"
	}
	return line + " is not YAML: a colon needs a space behind it, and a value that holds \": \" or \" #\" needs quotes"
}

// environmentValues are the variables of our settings. Others with our prefix may be
// a cluster's (OUTMILL_SERVICE_HOST): only what is nearly one of ours is a fault.
func environmentValues(environ []string) (map[string]any, error) {
	keys, names := map[string]string{}, []string{}
	for _, s := range all() {
		keys[variableOf(s.Name)] = s.Name
		names = append(names, variableOf(s.Name))
	}
	out := map[string]any{}
	var faults []error
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		key, ours := keys[name]
		switch {
		case ours && value != "":
			out[key] = value
		case ours, name == configVariable, !strings.HasPrefix(name, prefix):
		case near(strings.TrimPrefix(name, prefix), names) != "":
			faults = append(faults, fmt.Errorf("environment: there is no variable %s: did you mean %s?", name, near(strings.TrimPrefix(name, prefix), names)))
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return out, errors.Join(faults...)
}

// near wants more likeness than settings.Nearest, which is for names that cannot
// be anybody else's.
func near(name string, variables []string) string {
	if len(name) < 5 {
		return ""
	}
	short := make([]string, len(variables))
	for i, v := range variables {
		short[i] = strings.TrimPrefix(v, prefix)
	}
	if n := settings.Nearest(name, short); n != "" && settings.Distance(n, name) <= 2 {
		return prefix + n
	}
	return ""
}

func variable(environ []string, name string) string {
	for _, pair := range slices.Backward(environ) {
		if n, v, _ := strings.Cut(pair, "="); n == name {
			return v
		}
	}
	return ""
}

// flagValues are the flags that were given.
func flagValues(flags *pflag.FlagSet) map[string]any {
	out := map[string]any{}
	if flags == nil {
		return out
	}
	for _, s := range all() {
		if f := flags.Lookup(flagOf(s.Name)); f != nil && f.Changed {
			out[s.Name] = f.Value.String()
		}
	}
	return out
}

// texts are a source's values as text. A heading without anything under it counts
// for nothing.
func texts(values map[string]any) (map[string]string, error) {
	out := map[string]string{}
	var faults []error
	headings := map[string]bool{}
	lists := map[string]bool{}
	for _, s := range all() {
		if heading, _, ok := strings.Cut(s.Name, "."); ok {
			headings[heading] = true
		}
		lists[s.Name] = s.Kind == "list"
	}
	for key, value := range values {
		switch v := value.(type) {
		case nil:
			if !headings[key] {
				out[key] = ""
			}
		case []any:
			text, err := joined(v)
			if !lists[key] {
				err = errors.New("is a list: one value is needed")
			}
			if err != nil {
				faults = append(faults, fmt.Errorf("%s %w", key, err))
				continue
			}
			out[key] = text
		case map[string]any: // empty: others have been taken apart
			if !headings[key] {
				faults = append(faults, fmt.Errorf("%s holds keys and values: one value is needed", key))
			}
		default:
			if headings[key] {
				faults = append(faults, fmt.Errorf("%s is a heading: put its settings under it, indented", key))
				continue
			}
			out[key] = fmt.Sprint(v)
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return out, errors.Join(faults...)
}

func joined(list []any) (string, error) {
	out := make([]string, len(list))
	for i, v := range list {
		text := fmt.Sprint(v)
		switch v.(type) {
		case nil, []any, map[string]any:
			return "", fmt.Errorf("has an entry at place %d that is no single value", i+1)
		}
		if strings.Contains(text, ",") {
			return "", fmt.Errorf("has an entry at place %d with a comma in it: write an entry for each", i+1)
		}
		out[i] = text
	}
	return strings.Join(out, ","), nil
}

// readFiles takes the URLs from the files that are named for them.
func (l *loaded) readFiles() error {
	var faults []error
	for _, f := range []struct {
		key, path string
		url       *string
	}{{"store", l.StoreFile, &l.Store}, {"broker", l.BrokerFile, &l.Broker}} {
		switch {
		case f.path == "":
			continue
		case *f.url != "":
			faults = append(faults, fmt.Errorf("%[1]s and %[1]s_file are both set: keep one", f.key))
			continue
		}
		text, err := readSmall(f.path)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s_file names a file that %w", f.key, err))
			continue
		}
		*f.url = strings.TrimSpace(string(text))
		if *f.url == "" {
			faults = append(faults, fmt.Errorf("%s_file names a file that is empty", f.key))
		}
	}
	return errors.Join(faults...)
}
