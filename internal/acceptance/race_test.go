//go:build race

package acceptance_test

// detectsRaces: memory of the race detector grows with what it has seen.
const detectsRaces = true
