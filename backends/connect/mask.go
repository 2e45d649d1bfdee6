package connect

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Mask returns a URL of a store or broker as it may be shown: the password, and
// the values of secret and unknown parameters, are stars. Of a URL that
// cannot be read nothing is left.
func Mask(text string) string {
	a, err := parse(text)
	all := slices.Concat(Stores(), Brokers())
	i := slices.IndexFunc(all, func(s Scheme) bool { return slices.Contains(s.Names, a.scheme) })
	if err != nil || a.fault() != nil || i < 0 || strings.Contains(a.path, "@") {
		return "(not shown: it cannot be read)"
	}
	shown := map[string]bool{}
	for _, p := range all[i].Params {
		shown[p.Name] = !p.Secret
	}
	var b strings.Builder
	b.WriteString(a.scheme + ":")
	if a.slashes {
		b.WriteString("//")
	}
	if a.named {
		b.WriteString(url.PathEscape(a.user))
		if a.password != "" {
			b.WriteString(":***")
		}
		b.WriteString("@")
	}
	b.WriteString(strings.Join(a.hosts, ",") + (&url.URL{Path: a.path}).EscapedPath())
	mark := "?"
	for _, name := range slices.Sorted(maps.Keys(a.params)) {
		value := "***"
		if shown[name] {
			value = url.QueryEscape(a.params[name])
		}
		fmt.Fprintf(&b, "%s%s=%s", mark, url.QueryEscape(name), value)
		mark = "&"
	}
	return b.String()
}
