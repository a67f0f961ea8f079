package names

import "strings"

// Nearest returns the name that is most similar to word, or "" if no name is similar enough.
func Nearest(word string, list []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, name := range list {
		d := distance(strings.ToLower(word), name)
		if len(word) >= 3 && strings.HasPrefix(name, word) {
			d = 1
		}
		if d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the edit distance between a and b: the number of wrong, missing, superfluous or swapped letters.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			d[i][j] = min(change, d[i-1][j]+1, d[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
