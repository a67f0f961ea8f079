package plan

import (
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

// Where describes the statement of a command, for example "put %x into … (file:12:5, iteration 1, run 3)". The
// argument id is the index of the command plus the number of commands times the number of the run.
func (p *Plan) Where(id int64) string {
	if id < 0 || len(p.Cmds) == 0 {
		return "outside of any command"
	}
	n := int64(len(p.Cmds))
	c := &p.Cmds[id%n]
	site := &p.Sites[c.Site]
	text := site.Text
	if text == "" {
		text = site.Op.String()
	}
	return fmt.Sprintf("%s (%s)", text, p.place(c, site, id/n))
}

// Called returns the name of the operation of a compute command: its op, or the kernel that it launches.
func (p *Plan) Called(c *Cmd) string {
	if c.Op == ir.OpLaunch {
		return p.Kernels[p.Launches[c.Launch-1].Kernel].Name
	}
	return c.Op.String()
}

func (p *Plan) place(c *Cmd, site *Site, run int64) string {
	var parts []string
	if site.Pos.Valid() {
		parts = append(parts, fmt.Sprintf("%s:%d:%d", p.Program, site.Pos.Line, site.Pos.Col))
	} else {
		parts = append(parts, c.Kind.String())
	}
	if len(c.Iter) > 0 {
		parts = append(parts, "iteration "+strings.Trim(strings.Join(strings.Fields(fmt.Sprint(c.Iter)), ", "), "[]"))
	}
	if run > 0 {
		parts = append(parts, fmt.Sprintf("run %d", run))
	}
	return strings.Join(slices.Compact(parts), ", ")
}
