package settings_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outmill/outmill/internal/settings"
)

type config struct {
	Text, Secret string
	Number, Size int
	Wait, Keep   time.Duration
	On           bool
	Mode         int
	List         []string
}

var list = []settings.Setting[config]{
	settings.Text("text", "Text", "", "", func(c *config) *string { return &c.Text }),
	settings.Hidden(settings.Choice("secret", "", "", "", func(c *config) *string { return &c.Secret }, settings.Option[string]{Name: "a", Value: "A"})),
	settings.Number("a.number", "Number", "", "", func(c *config) *int { return &c.Number }),
	settings.Size("a.size", "Size", "", "", func(c *config) *int { return &c.Size }),
	settings.Duration("wait", "Wait", "", "", func(c *config) *time.Duration { return &c.Wait }),
	settings.DurationOrZero("keep", "Keep", "", "", func(c *config) *time.Duration { return &c.Keep }),
	settings.Bool("on", "On", "", "", func(c *config) *bool { return &c.On }),
	settings.Choice("mode", "Mode", "", "", func(c *config) *int { return &c.Mode }, settings.Option[int]{Name: "fast", Value: 1}, settings.Option[int]{Name: "slow", Value: 2}),
	settings.List("list", "List", "", "", func(c *config) *[]string { return &c.List }),
}

func TestApply_SetsWhatIsNamed(t *testing.T) {
	var c config
	require.NoError(t, settings.Apply("setting", list, &c, map[string]string{
		"text": " as it is ", "secret": "A", "a.number": "-7", "a.size": "2 KiB", "wait": "1m30s", "keep": "0", "on": "true", "mode": "SLOW", "list": "a, b",
	}))
	require.Equal(t, config{" as it is ", "A", -7, 2048, 90 * time.Second, 0, true, 2, []string{"a", "b"}}, c)
	for text, want := range map[string]int{"1": 1, "3B": 3, "2kB": 2000, "2KB": 2000, "1MB": 1e6, "1MiB": 1 << 20, "2GiB": 2 << 30} {
		require.NoError(t, settings.Apply("setting", list, &c, map[string]string{"a.size": text}))
		require.Equal(t, want, c.Size, text)
	}
}

func TestApply_EveryFaultAtOnce(t *testing.T) {
	var c config
	err := settings.Apply("setting", list, &c, map[string]string{
		"a.number": "7.5", "a.size": "-", "wait": "0s", "keep": "1", "on": "yes", "mode": "fats", "list": "a,,b", "txet": "", "text": "", "secret": "hunter2", "x=y": "",
	})
	const known = "text, secret, a.number, a.size, wait, keep, on, mode, list"
	require.EqualError(t, err, `a.number is "7.5": a whole number is needed
a.size is "-": a size is needed, such as 65536, 64KiB or 16MiB
keep is "1": a duration with its unit is needed, such as 500ms, 15s or 24h
list has an empty entry at place 2: take the comma away, or name it
mode is "fats": did you mean "fast"? allowed is fast, slow
on is "yes": true or false is needed
secret cannot be used (it is a secret, so it is not shown)
text is empty: leave it out for the default
there is no setting "txet": did you mean "text"? there are `+known+`
wait is "0s": leave it out for the default
there is no setting of this name: there are `+known)
}

func TestNearest(t *testing.T) {
	known := []string{"forwarder.batch", "forwarder.batch_bytes", "log.level", "http"}
	for name, want := range map[string]string{
		"forwarder.bacth": "forwarder.batch", "FORWARDER.BATCH-BYTES": "forwarder.batch_bytes", "batch": "forwarder.batch", "level": "log.level",
		"htpp": "http", "https": "http", "colour": "", "x": "", "": "",
	} {
		require.Equal(t, want, settings.Nearest(name, known), name)
	}
	require.Zero(t, settings.Distance("a_b", "A-B"))
	require.Equal(t, 1, settings.Distance("ab", "ba"), "neighbours swapped")
}

// What New says of a Go field is said of the setting that a person wrote.
func TestRename(t *testing.T) {
	infos := settings.Infos(list)
	err := settings.Rename(errorText("x: Number is 0\nx: Sizes is no field, Size (Wait) is\n"), "x: ", infos)
	require.EqualError(t, err, "a.number is 0\nSizes is no field, a.size (wait) is")
	require.ErrorIs(t, err, errorText("x: Number is 0\nx: Sizes is no field, Size (Wait) is\n"))
	require.NoError(t, settings.Rename(nil, "", infos))
}

type errorText string

func (e errorText) Error() string { return string(e) }
