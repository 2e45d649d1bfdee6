package migration

import (
	"io/fs"
	"strings"
)

// Rendered shows files with their placeholders replaced.
func Rendered(files fs.FS, names map[string]string) fs.FS {
	pairs := []string{}
	for k, v := range names {
		pairs = append(pairs, k, v)
	}
	return renderedFS{FS: files, replace: strings.NewReplacer(pairs...)}
}
