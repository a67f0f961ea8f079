package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"hocket.example/hocket/ir"
)

// String returns the plan as text: sizes, streams, a map of memory, channels, and then one command in each line, in
// the order of Cmds. Equal plans have equal texts.
func (p *Plan) String() string {
	pr := &printer{p: p}
	pr.head()
	pr.streams()
	pr.memory()
	pr.channels()
	pr.commands()
	return pr.b.String()
}

type printer struct {
	p *Plan
	b strings.Builder
}

func (pr *printer) linef(format string, args ...any) { fmt.Fprintf(&pr.b, format+"\n", args...) }

func (pr *printer) head() {
	p := pr.p
	words := []string{plural(p.Ranks, "rank")}
	for _, d := range p.Dims {
		words = append(words, fmt.Sprintf("%s=%d", d.Name, d.Value))
	}
	pr.linef("plan %s: %s", p.Func, strings.Join(words, " "))
	pr.linef("arena %d bytes: parameters %d, live at once %d", p.ArenaBytes, p.Memory.Inputs, p.Memory.Bound)
	if p.HostBytes > 0 {
		pr.linef("host %d bytes", p.HostBytes)
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

func (pr *printer) streams() {
	pr.linef("streams")
	for r := range pr.p.Ranks {
		var names []string
		for _, s := range pr.p.Streams {
			if int(s.Rank) == r {
				names = append(names, s.Name+priority(s))
			}
		}
		pr.linef("  r%d %s", r, strings.Join(names, " "))
	}
}

func priority(s Stream) string {
	switch {
	case s.High:
		return " (high)"
	case s.Low:
		return " (low)"
	}
	return ""
}

// memory prints the buffers with their offsets, and with the indices of the commands that use them first and last.
func (pr *printer) memory() {
	pr.linef("memory")
	for i := range pr.p.Buffers {
		b := &pr.p.Buffers[i]
		words := []string{b.Role.String()}
		if b.Symmetric {
			words = append(words, "symmetric")
		}
		if b.Space == Host {
			words = append(words, "host")
		}
		life := "unused"
		if b.First >= 0 {
			life = fmt.Sprintf("%d..%d", b.First, b.Last)
		}
		pr.linef("  %s at %d bytes %d used %s: %s", b.Name, b.Offset, b.Bytes, life, strings.Join(words, " "))
	}
}

// String returns the name of the role.
func (r Role) String() string { return [...]string{"input", "alloc", "value", "output"}[r] }

func (pr *printer) channels() {
	for i, c := range pr.p.Channels {
		if i == 0 {
			pr.linef("channels")
		}
		var members []string
		for m, r := range c.Team {
			members = append(members, fmt.Sprintf("r%d:%s", r, pr.p.Streams[c.Streams[m]].Name))
		}
		pr.linef("  %d %s", i, strings.Join(members, " "))
	}
}

func (pr *printer) commands() {
	pr.linef("commands")
	for i := range pr.p.Cmds {
		c := &pr.p.Cmds[i]
		where := ""
		if s := pr.p.Sites[c.Site].Pos; s.Valid() {
			where = fmt.Sprintf(" // %d:%d", s.Line, s.Col)
		}
		if len(c.Iter) > 0 {
			where += fmt.Sprint(" ", c.Iter)
		}
		pr.linef("  %d r%d %s %s%s", i, c.Rank, pr.p.Streams[c.Stream].Name, pr.command(c), where)
	}
}

// command returns the text of command c: its operation and operands, without its source position.
func (pr *printer) command(c *Cmd) string {
	switch c.Kind {
	case Compute:
		return c.Op.String() + pr.launch(c) + attrText(c.Op, &c.Attr) + pr.refs(c.Rank, c.Ins) + " ->" + pr.refs(c.Rank, c.Outs)
	case Copy:
		return "copy" + engine(c) + pr.refs(c.Rank, c.Ins) + " ->" + pr.refs(c.Rank, c.Outs)
	case Collective:
		return pr.collective(c)
	case Group:
		return pr.group(c)
	case Record:
		return fmt.Sprintf("record e%d", c.Event)
	case WaitEvent:
		return fmt.Sprintf("wait e%d", c.Event)
	case Signal:
		return fmt.Sprintf("signal %s[%d] at r%d", pr.p.Counters[c.Counter].Name, c.Elem, c.Peer)
	case WaitCounter:
		late := ""
		if c.Late {
			late = " late"
		}
		return fmt.Sprintf("wait %s[%d] >= %d%s", pr.p.Counters[c.Counter].Name, c.Elem, c.Value, late)
	case Input:
		return "input" + pr.ref(c.Rank, pr.p.Inputs[c.IO].Parts[c.Rank].Ref)
	}
	return "output " + pr.p.Outputs[c.IO].Name + pr.ref(c.Rank, pr.p.Outputs[c.IO].Parts[c.Rank].Ref)
}

// launch prints the kernel that a command launches and its numeric arguments.
func (pr *printer) launch(c *Cmd) string {
	if c.Op != ir.OpLaunch {
		return ""
	}
	l := &pr.p.Launches[c.Launch-1]
	k := &pr.p.Kernels[l.Kernel]
	var words []string
	for _, p := range l.Params {
		switch {
		case p.Out >= 0 && p.In >= 0:
			words = append(words, "inout")
		case p.Out >= 0:
			words = append(words, "into")
		case p.In >= 0:
			words = append(words, "_")
		case p.DType.IsInt():
			words = append(words, fmt.Sprint(p.DType, " ", int64(p.Bits)))
		default:
			words = append(words, fmt.Sprint(p.DType, " ", math.Float64frombits(p.Bits)))
		}
	}
	return fmt.Sprintf(" %s:%s(%s) grid=%v block=%v shared=%d", k.File, k.Name, strings.Join(words, ", "), l.Grid, l.Block, l.Shared)
}

// engine returns a text that names the engine of a copy, if the program requests a particular one.
func engine(c *Cmd) string {
	switch {
	case !c.SM:
		return ""
	case c.CTAs == 0:
		return " engine=sm"
	}
	return fmt.Sprintf(" engine=sm ctas=%d", c.CTAs)
}

func (pr *printer) collective(c *Cmd) string {
	coll := &pr.p.Colls[c.Coll]
	part := &coll.Parts[c.Part]
	var b strings.Builder
	fmt.Fprintf(&b, "%s channel %d.%d", coll.Op, coll.Channel, coll.Seq)
	if coll.Red != ir.NoRed {
		b.WriteString(" " + coll.Red.String())
	}
	switch coll.Op {
	case ir.OpAllToAll:
		fmt.Fprintf(&b, " split=%d concat=%d", coll.Split, coll.Axis)
	case ir.OpAllGather, ir.OpReduceScatter, ir.OpAllGatherV, ir.OpReduceScatterV, ir.OpAllToAllV:
		fmt.Fprintf(&b, " axis=%d", coll.Axis)
	case ir.OpBroadcast, ir.OpReduce:
		fmt.Fprintf(&b, " root=%d", coll.Root)
	case ir.OpGather, ir.OpScatter:
		fmt.Fprintf(&b, " root=%d axis=%d", coll.Root, coll.Axis)
	case ir.OpPermute:
		fmt.Fprintf(&b, " to=%d from=%d", part.To, part.From)
	}
	if part.Rows != nil {
		fmt.Fprintf(&b, " counts=%v", part.Rows)
	}
	if coll.AnyOrd {
		b.WriteString(" order=any")
	}
	if coll.Algo != "" {
		b.WriteString(" algorithm=" + coll.Algo)
	}
	if coll.CTAs > 0 {
		fmt.Fprintf(&b, " ctas=%d", coll.CTAs)
	}
	if part.In.Present() {
		b.WriteString(pr.refs(c.Rank, part.Reads()))
	}
	if part.Out.Present() {
		b.WriteString(" ->" + pr.ref(c.Rank, part.Out))
	}
	return b.String()
}

func (pr *printer) group(c *Cmd) string {
	var b strings.Builder
	b.WriteString("group")
	for i, e := range c.Group {
		if i > 0 {
			b.WriteString(",")
		}
		pair := &pr.p.Pairs[e.Pair]
		if e.Send {
			fmt.Fprintf(&b, " send #%d%s to r%d", e.Pair, pr.ref(c.Rank, pair.Src), pair.Dst.Rank)
		} else {
			fmt.Fprintf(&b, " recv #%d%s from r%d", e.Pair, pr.ref(c.Rank, pair.Dst), pair.Src.Rank)
		}
	}
	return b.String()
}

func (pr *printer) refs(rank int32, refs []Ref) string {
	words := make([]string, len(refs))
	for i, r := range refs {
		words[i] = pr.ref(rank, r)
	}
	return strings.Join(words, ",")
}

// ref returns the text of a tensor, for example " %x+64 bf16[3 5]". The text contains the buffer, the offset in
// bytes from the buffer's start, the strides if the tensor has gaps, and the rank if it is not the command's rank.
func (pr *printer) ref(rank int32, r Ref) string {
	var b strings.Builder
	b.WriteByte(' ')
	if r.Rank != rank {
		fmt.Fprintf(&b, "r%d:", r.Rank)
	}
	b.WriteString(pr.p.Buffers[r.Buf].Name)
	if r.Off != 0 {
		fmt.Fprintf(&b, "+%d", r.Off)
	}
	fmt.Fprintf(&b, " %s%v", r.DType, r.Shape)
	if !r.Dense() {
		fmt.Fprintf(&b, " strides %v", r.Strides)
	}
	return b.String()
}

// attrText returns the attributes of op that differ from their defaults. A number that the language requires is written
// without its name.
func attrText(op ir.Op, a *ir.Attrs) string {
	var b strings.Builder
	if len(a.Axes) > 0 {
		fmt.Fprintf(&b, " axes=%v", a.Axes)
	}
	for i, spec := range op.Info().Numbers() {
		n := a.Number(i)
		switch value := n.String(); {
		case spec.Required:
			b.WriteString(" " + value)
		case n.Float != spec.Default:
			b.WriteString(" " + spec.Name + "=" + value)
		}
	}
	if a.TA {
		b.WriteString(" ta")
	}
	if a.TB {
		b.WriteString(" tb")
	}
	if a.FastAccum {
		b.WriteString(" fast_accum")
	}
	if a.SMs > 0 {
		fmt.Fprintf(&b, " sms=%d", a.SMs)
	}
	if a.Causal {
		b.WriteString(" causal")
	}
	if a.Rows == 0 && a.First != 0 {
		fmt.Fprintf(&b, " from %d on", a.First)
	}
	if a.Rows != 0 {
		fmt.Fprintf(&b, " rows %d.. of %d", a.First, a.Rows)
	}
	return b.String()
}
