package postgres

import "strings"

// parseSnapshot takes the text of a pg_snapshot, xmin:xmax:xip,xip,…, apart.
func parseSnapshot(snap string) (xmax string, xip []string) {
	parts := strings.SplitN(snap, ":", 3)
	if len(parts) != 3 {
		return "", nil
	}
	if parts[2] != "" {
		xip = strings.Split(parts[2], ",")
	}
	return parts[1], xip
}
