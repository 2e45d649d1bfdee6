package records

import "fmt"

// MaxPrefixBytes keeps every name made with a prefix, those of indexes and
// constraints included, within the 63 bytes that Postgres keeps of a name.
const MaxPrefixBytes = 24

// CheckIdentifier refuses names that would mean different things on different
// engines. Allowed are lower-case letters, digits and underscores, not
// beginning with a digit; an empty name is allowed.
func CheckIdentifier(field, name string, maxBytes int) error {
	if len(name) > maxBytes {
		return fmt.Errorf("%s: %q has %d bytes, at most %d are allowed", field, name, len(name), maxBytes)
	}
	for i, r := range name {
		if r >= 'a' && r <= 'z' || r == '_' || i > 0 && r >= '0' && r <= '9' {
			continue
		}
		return fmt.Errorf("%s: %q: only lower-case letters, digits and underscores are allowed, and no digit first", field, name)
	}
	return nil
}
