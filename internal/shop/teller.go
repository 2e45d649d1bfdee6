package shop

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// Teller writes the story, in colour on a terminal.
type Teller struct {
	out    io.Writer
	colour bool
}

// NewTeller writes to out.
func NewTeller(out io.Writer) *Teller {
	f, ok := out.(*os.File)
	if !ok {
		return &Teller{out: out}
	}
	info, err := f.Stat()
	return &Teller{out: out, colour: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""}
}

// Line writes a line.
func (t *Teller) Line(format string, args ...any) { _, _ = fmt.Fprintf(t.out, format+"\n", args...) }

func (t *Teller) figure(name string, n int, note string) {
	text := fmt.Sprintf("  %-13s %6d", name, n)
	if note != "" {
		text += "   " + note
	}
	t.Line("%s", text)
}

func (t *Teller) verdict(name string, n int) {
	mark, code := "ok", "32"
	if n > 0 {
		mark, code = "WRONG", "31"
	}
	if t.colour {
		mark = "\x1b[" + code + "m" + mark + "\x1b[0m"
	}
	t.Line("  %-13s %6d   %s", name, n, strings.TrimSpace(mark))
}
