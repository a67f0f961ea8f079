package lower

import "hocket.example/hocket/ir"

// literals is an ir.Env that returns only the mesh sizes that the text gives as numbers. Decisions that use literals
// therefore do not depend on bound dims (S20).
type literals map[string]int64

// literalSizes returns the mesh sizes that the text gives as numbers.
func literalSizes(p *ir.Program) literals {
	sizes := literals{}
	for _, m := range p.Meshes {
		for _, ax := range m.Axes {
			if n, err := ax.Size.Eval(sizes); err == nil {
				sizes[ax.Name] = n
			}
		}
	}
	return sizes
}

// Dim, Var, Rank and Extent return false, because their values are not known. Size returns the size if the text gives
// it as a number.
func (literals) Dim(string) (int64, bool)              { return 0, false }
func (literals) Var(string) (int64, bool)              { return 0, false }
func (literals) Rank(string) (int64, bool)             { return 0, false }
func (literals) Extent(string, int) (int64, bool)      { return 0, false }
func (l literals) Size(axis string) (n int64, ok bool) { n, ok = l[axis]; return n, ok }
