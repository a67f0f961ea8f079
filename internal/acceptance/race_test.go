//go:build race

package acceptance_test

// detectsRaces says whether the race detector is on. The race detector's memory grows with the number of accesses that
// it has recorded.
const detectsRaces = true
