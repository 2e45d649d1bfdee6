package postgres

import (
	"strconv"
	"strings"
)

// parseSnapshot takes the text of a pg_snapshot, xmin:xmax:xip,xip,…, apart.
func parseSnapshot(snap string) (xmax string, xip []string) {
	parts := strings.SplitN(snap, ":", 3)
	if len(parts) != 3 {
		return firstXmax, []string{}
	}
	if parts[2] == "" {
		return parts[1], []string{}
	}
	return parts[1], strings.Split(parts[2], ",")
}

// older reports whether a snapshot's xmax is below another's. Within one
// incarnation of a server it never is: the database was restored elsewhere.
func older(xmax, than string) bool {
	if than == firstXmax {
		return false
	}
	a, errA := strconv.ParseUint(xmax, 10, 64)
	b, errB := strconv.ParseUint(than, 10, 64)
	return errA == nil && errB == nil && a < b
}
