//go:build race

package acceptance_test

// detectsRaces says whether the race detector is on. Its memory grows with the number of accesses
// that it has seen.
const detectsRaces = true
