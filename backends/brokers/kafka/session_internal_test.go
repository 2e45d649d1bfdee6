package kafka

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// After the largest number comes 0, as the protocol has it.
func TestSession_SequenceGoesRound(t *testing.T) {
	at := place{"topic", 1}
	s := &session{sequences: map[place]int32{at: math.MaxInt32 - 1}}
	s.advance(at, 1)
	require.EqualValues(t, math.MaxInt32, s.sequences[at])
	s.advance(at, 1)
	require.EqualValues(t, 0, s.sequences[at])
	s.sequences[at] = math.MaxInt32 - 1
	s.advance(at, 5)
	require.EqualValues(t, 3, s.sequences[at])
}
