package verify

import (
	"fmt"
	"strings"

	"hocket.example/hocket/internal/plan"
	"hocket.example/hocket/ir"
)

// around is the number of commands that the picture shows before and after each act.
const around = 2

// pictureWidth is the width of each stream's column.
const pictureWidth = 44

// picture draws the streams of two acts in adjacent columns, with time from top to bottom. It shows the acts, the
// commands around them, and the commands that order streams between them.
func picture(ix *index, a, b Act) string {
	sa, sb := ix.cmd(a).Stream, ix.cmd(b).Stream
	if sa == sb {
		return ""
	}
	var out strings.Builder
	row := func(left, right string) {
		out.WriteString(strings.TrimRight(fmt.Sprintf("  %-*s| %s", pictureWidth, clip(left), clip(right)), " ") + "\n")
	}
	row(streamName(ix.p, sa), streamName(ix.p, sb))
	shown := window(ix, a, b)
	gap := [2]bool{}
	for run := range runs {
		for i := range ix.p.Cmds {
			st := ix.p.Cmds[i].Stream
			side := 0
			if st == sb {
				side = 1
			} else if st != sa {
				continue
			}
			act := Act{Cmd: int32(i), Run: run}
			if !shown[act] {
				gap[side] = true
				continue
			}
			cells := [2]string{}
			if gap[side] {
				cells[side] = "…"
				row(cells[0], cells[1])
				gap[side] = false
			}
			cells[side] = label(ix, act, sameAct(act, a) || sameAct(act, b))
			row(cells[0], cells[1])
		}
	}
	return out.String()
}

func sameAct(a, b Act) bool { return a.Cmd == b.Cmd && a.Run == b.Run }

// window selects the commands that the picture shows.
func window(ix *index, acts ...Act) map[Act]bool {
	shown := map[Act]bool{}
	for _, a := range acts {
		st := ix.cmd(a).Stream
		n := int32(len(ix.streams[st]))
		at := int32(a.Run)*n + ix.pos[a.Cmd]
		for pos := max(at-around, 1); pos <= min(at+around, runs*n); pos++ {
			x := ix.act(epoch{st, pos})
			shown[x] = true
		}
	}
	return shown
}

// label returns the line that shows a command in the picture, with a mark if the command is one of the two acts.
func label(ix *index, a Act, marked bool) string {
	c := ix.cmd(a)
	site := ix.p.Sites[c.Site]
	text := site.Text
	switch c.Kind {
	case plan.Input, plan.Output:
		text = subject(ix, a)
	case plan.Record:
		if site.Op != ir.OpRecord {
			text = "(recorded for: " + text + ")"
		}
	}
	s := fmt.Sprintf("%4d  %s", site.Pos.Line, text)
	if a.Run > 0 {
		s = fmt.Sprintf("%4d' %s", site.Pos.Line, text)
	}
	if marked {
		r := []rune(s)
		if len(r) > pictureWidth-5 {
			s = string(r[:pictureWidth-6]) + "…"
		}
		s += " <=="
	}
	return s
}

func clip(s string) string {
	if r := []rune(s); len(r) > pictureWidth-1 {
		return string(r[:pictureWidth-2]) + "…"
	}
	return s
}
