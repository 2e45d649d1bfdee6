package connect

import "slices"

// Fields are the Go fields that parameters of a scheme set.
func Fields(scheme string) []string {
	for _, s := range slices.Concat(Stores(), Brokers()) {
		if slices.Contains(s.Names, scheme) {
			return s.fields
		}
	}
	return nil
}
