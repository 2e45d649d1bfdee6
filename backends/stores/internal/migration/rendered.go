package migration

import (
	"io/fs"
	"strings"
)

// renderedFS shows files with their placeholders replaced.
type renderedFS struct {
	fs.FS
	replace *strings.Replacer
}

// Open implements fs.FS. Folders are passed through.
func (r renderedFS) Open(name string) (fs.File, error) {
	f, err := r.FS.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return f, err
	}
	text, err := fs.ReadFile(r.FS, name)
	if err != nil {
		_ = f.Close() // the read's error is the one to report
		return nil, err
	}
	return &renderedFile{File: f, text: strings.NewReader(r.replace.Replace(string(text)))}, nil
}

type renderedFile struct {
	fs.File
	text *strings.Reader
}

func (f *renderedFile) Read(b []byte) (int, error) { return f.text.Read(b) }

// Stat is the original's but for the size.
func (f *renderedFile) Stat() (fs.FileInfo, error) {
	info, err := f.File.Stat()
	return renderedInfo{info, f.text.Size()}, err
}

type renderedInfo struct {
	fs.FileInfo
	size int64
}

func (i renderedInfo) Size() int64 { return i.size }
