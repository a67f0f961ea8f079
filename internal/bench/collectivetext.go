package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"hocket.example/hocket/internal/device"
)

// collectives writes a line for each way of each size.
func (t *table) collectives(rows []Collective) {
	if len(rows) == 0 {
		return
	}
	peers := peerNames(rows)
	head := []string{"", "algorithm", "graph µs", "eager µs", "skew", "GB/s", "bound µs", "× bound", "NCCL/this", "wrong"}
	lines := [][]string{append(head, peers...)}
	for i := range rows {
		r := &rows[i]
		for k := range r.Ways {
			if r.Ways[k].Refused == "" {
				lines = append(lines, r.line(k, peers))
			}
		}
	}
	t.line("")
	t.rows(lines)
	t.summary(rows)
	t.refusals(rows)
}

// line is a way's: the chosen one has a star.
func (r *Collective) line(k int, peers []string) []string {
	w := &r.Ways[k]
	size, name := "", tuningText(w.Tuning)
	if k == 0 {
		size = bytesText(r.Bytes)
	}
	if w.By != "asked" {
		name += " *"
	}
	against := ""
	if n := r.nccl(); n > 0 && !strings.HasPrefix(w.Algorithm, "nccl") {
		against = fmt.Sprintf("%.2f", n/w.Best())
	}
	cells := []string{size, name, figureText(w.Graph), figureText(w.Eager), fmt.Sprintf("%.2f", w.Skew), fmt.Sprintf("%.1f", gbps(r.Bytes, w.Best())),
		fmt.Sprintf("%.1f", r.Bound), fmt.Sprintf("%.2f", w.Best()/r.Bound), against, fmt.Sprint(w.Wrong)}
	for _, p := range peers {
		cell := ""
		if us, ok := r.Peers[p]; ok && k == 0 {
			cell = fmt.Sprintf("%.2f", us)
		}
		cells = append(cells, cell)
	}
	return cells
}

// nccl is the best time of NCCL's ways in this run; 0 where there are none.
func (r *Collective) nccl() float64 {
	best := 0.0
	for i := range r.Ways {
		w := &r.Ways[i]
		if us := w.Best(); us > 0 && strings.HasPrefix(w.Algorithm, "nccl") && (best == 0 || us < best) {
			best = us
		}
	}
	return best
}

// bestPeer is the least time of others, NCCL's in this run among them.
func (r *Collective) bestPeer() float64 {
	best := r.nccl()
	for name, us := range r.Peers {
		if !strings.HasSuffix(name, ", eager") && (best == 0 || us < best) {
			best = us
		}
	}
	return best
}

// summary says how the chosen ways stand to the best of the others.
func (t *table) summary(rows []Collective) {
	logs, n, won := 0.0, 0, 0
	for i := range rows {
		r := &rows[i]
		us, peer := r.Ways[0].Best(), r.bestPeer()
		if us <= 0 || peer <= 0 {
			continue
		}
		logs += math.Log(peer / us)
		if n++; us < peer {
			won++
		}
	}
	if n > 0 {
		t.line("chosen against the best of the others: geometric mean %.2f×, faster at %d of %d sizes", math.Exp(logs/float64(n)), won, n)
	}
}

// refusals says of each algorithm once why it was not measured.
func (t *table) refusals(rows []Collective) {
	said := map[string]bool{}
	for _, r := range rows {
		for _, w := range r.Ways {
			if w.Refused != "" && !said[w.Refused] {
				said[w.Refused] = true
				t.refusal(bytesText(r.Bytes)+" by "+w.Algorithm, w.Refused)
			}
		}
	}
}

func figureText(f *Figure) string {
	if f == nil {
		return ""
	}
	return f.text(2)
}

// tuningText is an algorithm and how it is launched: "staged-push 64×512 u4".
func tuningText(t device.Tuning) string {
	s := t.Algo
	if t.Blocks > 0 {
		s += fmt.Sprintf(" %d×%d", t.Blocks, t.Threads)
	}
	if t.Unroll > 0 {
		s += fmt.Sprintf(" u%d", t.Unroll)
	}
	return s
}

// WriteVLLM writes collectives as vLLM's benchmark_device_communicators.py
// prints them: milliseconds a call by graph, a line for each number of rows of
// 8192 elements, the speedup over NCCL. It is for reports of Options.Rows.
func (r *Report) WriteVLLM(w io.Writer) error {
	rows := r.Collectives
	if len(rows) == 0 {
		return usagef("the form of vLLM is for collectives")
	}
	var names []string
	for _, c := range rows {
		for _, x := range c.Ways {
			if n := vllmName(&x); x.Refused == "" && !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		for n := range c.Peers {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	t := &table{w: w}
	rule := strings.Repeat("=", 130)
	dtype := map[string]string{"bf16": "torch.bfloat16", "f16": "torch.float16"}[rows[0].DType]
	t.line("\n%s\nDevice Communicator Benchmark Results\nWorld Size: %d, Data Type: %s, Hidden Size: 8192\n%s", rule, r.Ranks, dtype, rule)
	head := pad("Tensor Shape", 20) + pad("Tensor Size", 15)
	for _, n := range names {
		head += pad(n, 20)
	}
	head += pad("Best (Speedup vs PyNccl)", 30)
	t.line("%s\n%s", head, strings.Repeat("-", utf8.RuneCountInString(head)))
	for i := range rows {
		t.line("%s", rows[i].vllm(names))
	}
	t.line("%s\nAll times are in milliseconds (ms) per %s operation\nSpeedup column shows: fastest_algorithm (speedup_vs_pynccl)", rule, strings.ReplaceAll(rows[0].Op, "_", ""))
	return t.err
}

// vllmName is a way's column: NCCL has the name that it has there, and what
// hocket chooses is hocket.
func vllmName(w *Way) string {
	switch {
	case w.By != "asked":
		return "hocket"
	case w.Algorithm == "nccl":
		return "pynccl"
	}
	return w.Algorithm
}

func (c *Collective) vllm(names []string) string {
	times := map[string]float64{}
	for name, us := range c.Peers {
		times[name] = us
	}
	for i := range c.Ways {
		if w := &c.Ways[i]; w.Refused == "" {
			times[vllmName(w)] = w.Best()
		}
	}
	line := pad(fmt.Sprintf("(%d, 8192)", (c.Bytes+rowBytes/2)/rowBytes), 20) + pad(fmt.Sprintf("%.2f MB", float64(c.Bytes)/(1<<20)), 15)
	best := ""
	for _, n := range names {
		us, ok := times[n]
		if !ok || us <= 0 {
			line += pad("N/A", 20)
			continue
		}
		line += pad(fmt.Sprintf("%.3f", us/1e3), 20)
		if best == "" || us < times[best] {
			best = n
		}
	}
	if nccl := times["pynccl"]; nccl > 0 && best != "" {
		best += fmt.Sprintf(" (%.2fx)", nccl/times[best])
	}
	return line + pad(best, 30)
}

// pad fills s with spaces to a width.
func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}
