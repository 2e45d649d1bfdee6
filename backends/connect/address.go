package connect

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// address is a URL taken apart. The standard library's parser allows one host
// only, and its errors repeat what they could not read.
type address struct {
	scheme         string
	slashes        bool // "//" follows the scheme, so there are hosts
	named          bool // there is a user
	user, password string
	hosts          []string
	path           string // with its slash, or what follows "scheme:"
	params         map[string]string

	faults []error
}

var schemeForm = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,19}$`)

// parse finds the scheme, and the rest as far as it can be read.
func parse(text string) (address, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), ":")
	switch {
	case text == "":
		return address{}, errors.New("the URL is empty")
	case !ok, !schemeForm.MatchString(strings.ToLower(scheme)):
		return address{}, errors.New("this is no URL with a scheme (it is not shown, for it may hold a secret)")
	}
	a := address{scheme: strings.ToLower(scheme), params: map[string]string{}}
	rest, a.slashes = strings.CutPrefix(rest, "//")
	if rest, fragment, ok := strings.Cut(rest, "#"); ok || fragment != "" {
		_ = rest
		a.wrong("the URL holds a #: write it as %%23")
		return a, nil
	}
	front, query, _ := strings.Cut(rest, "?")
	if a.slashes {
		var authority string
		authority, a.path = front, ""
		if i := strings.IndexByte(front, '/'); i >= 0 {
			authority, a.path = front[:i], front[i:]
		}
		if strings.Contains(a.path, "@") || strings.Contains(query, "@") {
			a.wrong("the URL holds an @ behind a / or a ?: in user, password and parameters write / as %%2F, ? as %%3F and @ as %%40")
			return a, nil // what seems to be a host or a name may be a part of a secret
		}
		a.authority(authority)
	} else {
		a.path = front
	}
	a.path = a.unescape("path", a.path)
	a.query(query)
	return a, nil
}

func (a *address) wrong(format string, args ...any) {
	a.faults = append(a.faults, fmt.Errorf(format, args...))
}

func (a *address) fault() error { return errors.Join(a.faults...) }

func (a *address) unescape(what, text string) string {
	out, err := url.PathUnescape(text)
	switch {
	case err != nil:
		a.wrong("the %s holds a %% that begins no escape: write %% as %%25", what)
	case strings.ContainsFunc(out, func(r rune) bool { return r < ' ' || r == 0x7f }):
		a.wrong("the %s holds a control character: take it away", what)
	}
	return out
}

func (a *address) authority(text string) {
	if strings.Count(text, "@") > 1 {
		a.wrong("the URL holds two @: in user and password write @ as %%40")
		return
	}
	if i := strings.IndexByte(text, '@'); i >= 0 {
		user, password, _ := strings.Cut(text[:i], ":")
		a.named, text = true, text[i+1:]
		a.user, a.password = a.unescape("user", user), a.unescape("password", password)
		if a.user == "" {
			a.wrong("the user's name is empty: write user:password@host")
		}
	}
	if text == "" {
		return
	}
	for i, host := range strings.Split(text, ",") {
		if err := hostFault(host); err != "" {
			a.wrong("host %d %s", i+1, err)
			continue
		}
		a.hosts = append(a.hosts, host)
	}
}

// hostFault does not repeat the host: where a URL is misread it may be a secret.
func hostFault(host string) string {
	name, port := host, ""
	if strings.Contains(strings.TrimSuffix(host, "]"), ":") && !strings.HasSuffix(host, "]") {
		var err error
		if name, port, err = net.SplitHostPort(host); err != nil {
			return "is no host:port: write an IPv6 address in brackets, as in [::1]:9092"
		}
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "has a port that is no number from 1 to 65535"
		}
	}
	switch {
	case name == "":
		return "is empty"
	case strings.ContainsAny(name, " \t\"'<>\\%"):
		return "holds a character that no host has"
	}
	return ""
}

func (a *address) query(text string) {
	if text == "" {
		return
	}
	for pair := range strings.SplitSeq(text, "&") {
		name, value, ok := strings.Cut(pair, "=")
		if name = a.unescape("name of a parameter", name); !ok || name == "" {
			a.wrong("a parameter is written as name=value, and an & in a value as %%26")
			continue
		}
		if _, twice := a.params[name]; twice {
			a.wrong("a parameter is given twice: keep one (%s)", printable(name))
			continue
		}
		a.params[name] = a.unescape("value of "+printable(name), value)
	}
}

var nameForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,39}$`)

func printable(name string) string {
	if nameForm.MatchString(name) {
		return name
	}
	return "its name is not shown"
}

// onlyHosts refuses what a scheme without a path does not have.
func (a *address) onlyHosts(defaultPort string) ([]string, error) {
	var faults []error
	if !a.slashes || len(a.hosts) == 0 {
		faults = append(faults, fmt.Errorf("no host is named: write %s://host:%s", a.scheme, defaultPort))
	}
	if a.path != "" && a.path != "/" {
		faults = append(faults, errors.New("a path follows the hosts, and there is nothing that it could name: take it away"))
	}
	out := make([]string, len(a.hosts))
	for i, h := range a.hosts {
		if out[i] = h; !strings.Contains(strings.TrimSuffix(h, "]"), ":") || strings.HasSuffix(h, "]") {
			out[i] = net.JoinHostPort(strings.Trim(h, "[]"), defaultPort)
		}
	}
	return out, errors.Join(faults...)
}

// nothing refuses all but parameters.
func (a *address) nothing() error {
	if a.named || len(a.hosts) > 0 || strings.Trim(a.path, "/") != "" {
		return fmt.Errorf("nothing but parameters may follow %s: take the rest away", a.scheme)
	}
	return nil
}
