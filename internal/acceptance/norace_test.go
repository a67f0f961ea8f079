//go:build !race

package acceptance_test

const detectsRaces = false
