package acceptance_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/device/cuda"
	"hocket.example/hocket/internal/device/devicetest"
)

// These tests run all collectives between nodes, with all element types and with sizes from 0 to 64 MiB. The processes
// are on one host, divided into two nodes. Expected results are computed here.

// TestNodeCollectives runs all collectives with one and with two processes per node. With -cuda the processes run on
// two GPUs, each of which two processes share if there are four.
func TestNodeCollectives(t *testing.T) {
	if w := ofWorld(t); w != nil {
		runNodeCollectives(t, w)
		return
	}
	args := []string{"-test.run=^TestNodeCollectives$", "-test.v", fmt.Sprint("-cuda=", *onCUDA),
		fmt.Sprint("-test.short=", testing.Short())}
	if *onCUDA {
		m, err := cuda.New(cuda.Options{})
		have := 0
		if err == nil {
			have = m.Caps().MaxRanks
		}
		devicetest.NeedGPUs(t, have, 2, err)
	}
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d processes", n), func(t *testing.T) {
			nodes := onNodes(t, 2, n)
			processes := launch(t, n, t.TempDir(), t.Name(), func(rank int, p *process) {
				nodes(rank, p)
				p.Env = append(p.Env, fmt.Sprint("HOCKET_RANKS_PER_GPU=", n/2))
			}, args...)
			for rank, p := range processes {
				if err := p.wait(t); err != nil {
					t.Errorf("process %d: %v\n%s", rank, err, failures(p.out.String()))
				} else if ran := strings.Count(p.out.String(), "--- PASS: "); ran != 1+len(nodeTypes) {
					t.Errorf("process %d: %d tests passed\n%s", rank, ran, p.out.String())
				} else if rank == 0 {
					t.Log(failures(p.out.String()))
				}
			}
		})
	}
}

// nodeTypes are the types of elements.
var nodeTypes = []struct {
	name string
	size int64
	long bool // on GPUs test up to 64 MiB; otherwise up to 4 MiB
}{{"f32", 4, true}, {"bf16", 2, true}, {"f16", 2, false}, {"f64", 8, false}, {"i32", 4, false}, {"i64", 8, false}}

// nodeOp is one collective of n ranks. Each rank has n rows.
type nodeOp struct {
	text string // the statement, which reads %x and writes %y
	rows int    // rows of the result
	wide int    // number of blocks of columns in a row of the result
	// want returns the expected element in the result of rank me, given the row, the block of columns, and the column
	// within the block.
	want func(me, row, block, col int) float64
}

// nodeElement returns an element of rank's operand, a small integer.
func nodeElement(rank, row, col int) float64 {
	h := uint32(rank*2654435761+row*40503+col*97) * 0x9e3779b1
	return float64(int(h>>20)%31 - 15)
}

// nodeOps returns the collectives of n ranks, where n is even, for an element type.
func nodeOps(n int, dtype string) []nodeOp {
	real, f32 := dtype[0] != 'i', dtype == "f32"
	reduced := func(red string, row, col int) float64 {
		v := nodeElement(0, row, col)
		for r := 1; r < n; r++ {
			switch x := nodeElement(r, row, col); red {
			case "max":
				v = max(v, x)
			case "min":
				v = min(v, x)
			default:
				v += x
			}
		}
		if red == "avg" {
			if v /= float64(n); !real {
				v = math.Trunc(v)
			}
		}
		return v
	}
	inOrder := func(row, col int) (v float64) {
		for r := range n {
			if v += third(dtype, nodeElement(r, row, col)); f32 {
				v = float64(float32(v))
			}
		}
		return v
	}
	last := n - 1
	var ops []nodeOp
	add := func(rows, wide int, text string, want func(me, row, block, col int) float64) {
		ops = append(ops, nodeOp{text: text, rows: rows, wide: wide, want: want})
	}
	at := func(on bool, v float64) float64 { // zero for the other ranks
		if on {
			return v
		}
		return 0
	}
	for _, red := range []string{"sum", "max", "min", "avg", "sum, order=any"} {
		name, _, _ := strings.Cut(red, ",")
		add(n, 1, "all_reduce %x into %y, over=d, op="+red,
			func(_, row, _, col int) float64 { return reduced(name, row, col) })
		add(1, 1, "reduce_scatter %x into %y, over=d, axis=0, op="+red,
			func(me, _, _, col int) float64 { return reduced(name, me, col) })
		add(n, 1, fmt.Sprintf("reduce %%x into %%y, over=d, root=%d, op=%s", last, red),
			func(me, row, _, col int) float64 { return at(me == last, reduced(name, row, col)) })
	}
	add(n*n, 1, "all_gather %x into %y, over=d, axis=0",
		func(_, row, _, col int) float64 { return nodeElement(row/n, row%n, col) })
	add(n, n, "all_gather %x into %y, over=d, axis=1",
		func(_, row, block, col int) float64 { return nodeElement(block, row, col) })
	add(n, 1, "all_to_all %x into %y, over=d, split=0, concat=0",
		func(me, row, _, col int) float64 { return nodeElement(row, me, col) })
	add(1, n, "all_to_all %x into %y, over=d, split=0, concat=1",
		func(me, _, block, col int) float64 { return nodeElement(block, me, col) })
	add(n, 1, "broadcast %x into %y, over=d, root=1",
		func(_, row, _, col int) float64 { return nodeElement(1, row, col) })
	add(n*n, 1, "gather %x into %y, over=d, root=0, axis=0",
		func(me, row, _, col int) float64 { return at(me == 0, nodeElement(row/n, row%n, col)) })
	add(1, 1, fmt.Sprintf("scatter %%x into %%y, over=d, root=%d, axis=0", last),
		func(me, _, _, col int) float64 { return nodeElement(last, me, col) })
	add(n, 1, fmt.Sprintf("barrier over=d\n  "+
		"permute %%x into %%y, over=d, to=(rank(d) + 1) mod %d, from=(rank(d) + %d) mod %[1]d", n, last),
		func(me, row, _, col int) float64 { return nodeElement((me+last)%n, row, col) })

	// all_gatherv gathers row r of each rank r. reduce_scatterv leaves row 0 to rank 0 and the
	// others to the last rank. all_to_allv sends two rows of rank r to each rank whose parity
	// differs from r's.
	gathered, scattered, sent := make([]string, n), make([]string, n), make([]string, n)
	var from [][2]int // the rank and row from which each row of the result is gathered
	for r := range n {
		gathered[r], scattered[r], sent[r] = fmt.Sprint(r), "0", fmt.Sprintf("2 * ((rank(d) + %d) mod 2)", r)
		for row := range r {
			from = append(from, [2]int{r, row})
		}
	}
	scattered[0], scattered[last] = "1", fmt.Sprint(last)
	add(n*n, 1, "all_gatherv %x into %y, over=d, counts=("+strings.Join(gathered, ", ")+")",
		func(_, row, _, col int) float64 {
			if row >= len(from) {
				return 0
			}
			return nodeElement(from[row][0], from[row][1], col)
		})
	add(n, 1, "reduce_scatterv %x into %y, over=d, op=sum, counts=("+strings.Join(scattered, ", ")+")",
		func(me, row, _, col int) float64 {
			switch {
			case me == 0 && row == 0:
				return reduced("sum", 0, col)
			case me == last && row < last:
				return reduced("sum", 1+row, col)
			}
			return 0
		})
	add(n, 1, "all_to_allv %x into %y, over=d, counts=("+strings.Join(sent, ", ")+")",
		func(me, row, _, col int) float64 {
			r := row/2*2 + (me+1)%2 // the sending rank
			return nodeElement(r, me/2*2+row%2, col)
		})
	if dtype == "f32" || dtype == "f64" {
		add(n, 1, "all_reduce %z into %y, over=d, op=sum",
			func(_, row, _, col int) float64 { return inOrder(row, col) })
		add(1, 1, "reduce_scatter %z into %y, over=d, axis=0, op=sum",
			func(me, _, _, col int) float64 { return inOrder(me, col) })
		add(n, 1, "reduce %z into %y, over=d, root=0, op=sum",
			func(me, row, _, col int) float64 { return at(me == 0, inOrder(row, col)) })
	}
	return ops
}

// third returns v/3, rounded as dtype.
func third(dtype string, v float64) float64 {
	if dtype == "f32" {
		return float64(float32(v) / 3)
	}
	return v / 3
}

// nodeProgram returns a program that executes the collectives ops one after another, for each number of columns.
func nodeProgram(n int, dtype string, ops []nodeOp, columns []int) string {
	var params, types, names []string
	var body strings.Builder
	for i, columns := range columns {
		for _, name := range []string{"x", "z"} {
			params = append(params, fmt.Sprintf("%%%s%d: %s[%d/d, %d]", name, i, dtype, n*n, columns))
		}
		for k, op := range ops {
			y := fmt.Sprintf("y%d.%d", i, k)
			types = append(types, fmt.Sprintf("%s[%d/d, %d]", dtype, op.rows*n, op.wide*columns))
			names = append(names, "%"+y)
			fmt.Fprintf(&body, "  %%%s = alloc %s[%d, %d] zero\n  %s\n", y, dtype, op.rows, op.wide*columns,
				strings.NewReplacer("%x", fmt.Sprintf("%%x%d", i), "%z", fmt.Sprintf("%%z%d", i), "%y",
					"%"+y).Replace(op.text))
		}
	}
	return fmt.Sprintf("mesh d[%d]\nfunc f(%s) -> (%s) {\n%s  return %s\n}\n", n, strings.Join(params, ", "),
		strings.Join(types, ", "), body.String(), strings.Join(names, ", "))
}

// nodePeriod is the number of columns after which a row repeats. The period is a prime, so no two blocks of a tensor
// are equal.
const nodePeriod = 8191

// nodeRow returns n columns as bytes.
func nodeRow(dtype string, n int, v func(col int) float64) []byte {
	var b []byte
	for col := range min(n, nodePeriod) {
		switch x := v(col); dtype {
		case "f32":
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case "bf16": // the values are exact in bf16
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(x))>>16))
		case "f16": // the values are exact in f16, and not subnormal
			bits := math.Float32bits(float32(x))
			half := uint16(bits >> 16 & 0x8000)
			if x != 0 {
				half |= uint16((bits>>23&0xff-112)<<10 | bits>>13&0x3ff)
			}
			b = binary.LittleEndian.AppendUint16(b, half)
		case "f64":
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		case "i32":
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(x)))
		case "i64":
			b = binary.LittleEndian.AppendUint64(b, uint64(int64(x)))
		}
	}
	if n <= nodePeriod {
		return b
	}
	whole := bytes.Repeat(b, (n+nodePeriod-1)/nodePeriod)
	return whole[:len(b)/nodePeriod*n]
}

// runNodeCollectives is the part of TestNodeCollectives that each process executes.
func runNodeCollectives(t *testing.T, w *hocket.World) {
	options := hocket.MachineOptions{World: w}
	if *onCUDA {
		options.Name = "cuda"
	}
	m, err := hocket.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if w.Nodes() != 2 {
		t.Fatalf("%d nodes", w.Nodes())
	}
	n, me := w.Size(), w.Rank()
	ran := map[string]int{}
	for _, dt := range nodeTypes {
		t.Run(dt.name, func(t *testing.T) {
			columns := func(bytes int64, units int) int { return int(bytes/dt.size) / units }
			small := []int{0, 1, 1023, columns(64<<10, n)}
			if *onCUDA {
				small = append(small, columns(4<<20, n))
			}
			ops := nodeOps(n, dt.name)
			run := func(ops []nodeOp, columns []int) {
				text := nodeProgram(n, dt.name, ops, columns)
				p, err := hocket.Parse("collectives.hkt", text)
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
				if err != nil {
					t.Fatal(err)
				}
				checkNodeOps(t, model, ops, dt.name, n, me, columns, ran)
				if err := model.Close(); err != nil {
					t.Fatal(err)
				}
			}
			run(ops, small)
			if !*onCUDA || !dt.long {
				return
			}
			// The larger of a rank's operand and result has 64 MiB.
			groups := map[int][]nodeOp{} // ops by the larger number of rows: of the operand or of the result
			for _, op := range ops {
				units := max(n, op.rows*op.wide)
				groups[units] = append(groups[units], op)
			}
			for _, units := range slices.Sorted(maps.Keys(groups)) {
				run(groups[units], []int{columns(64<<20, units)})
			}
		})
	}
	t.Logf("process %d of %d: %v", me, n, ran)
	if ran["across"] == 0 {
		t.Errorf("no collective ran by algorithm across: %v", ran)
	}
}

// checkNodeOps runs the program of ops and columns, twice unless it is large, and checks all
// results of this rank. It counts runs by algorithm.
func checkNodeOps(t *testing.T, model *hocket.Model, ops []nodeOp, dtype string, n, me int, columns []int,
	ran map[string]int) {
	t.Helper()
	ports, err := model.Inputs(nil)
	if err != nil {
		t.Fatal(err)
	}
	args := hocket.Args{InLocal: map[string]map[int]*hocket.Tensor{}}
	runs := 2
	for i, columns := range columns {
		if columns > 1<<20 {
			runs = 1
		}
		for name, v := range map[string]func(x float64) float64{
			"x": func(x float64) float64 { return x },
			"z": func(x float64) float64 { return third(dtype, x) },
		} {
			x := &hocket.Tensor{DType: ports[0].DType, Shape: []int64{int64(n), int64(columns)}}
			for row := range n {
				x.Data = append(x.Data, nodeRow(dtype, columns,
					func(col int) float64 { return v(nodeElement(me, row, col)) })...)
			}
			args.InLocal[fmt.Sprint(name, i)] = map[int]*hocket.Tensor{me: x}
		}
	}
	reports, err := model.RunBatch(t.Context(), slices.Repeat([]hocket.Args{args}, runs))
	if err != nil {
		t.Fatalf("%s of %d columns: %v", dtype, columns, err)
	}
	for _, o := range reports[0].Overlap {
		ran[o.Algorithm]++
	}
	for i, columns := range columns {
		for k, op := range ops {
			var want []byte
			for row := range op.rows {
				for block := range op.wide {
					want = append(want, nodeRow(dtype, columns,
						func(col int) float64 { return op.want(me, row, block, col) })...)
				}
			}
			for run, r := range reports {
				got := r.OutLocal[fmt.Sprintf("y%d.%d", i, k)][me]
				if got == nil {
					t.Fatalf("%s: no result on rank %d", op.text, me)
				}
				if bytes.Equal(got.Data, want) {
					continue
				}
				at, size := 0, max(len(want)/max(op.rows*op.wide*columns, 1), 1)
				for at < min(len(want), len(got.Data)) && got.Data[at] == want[at] {
					at++
				}
				at = at / size * size
				t.Errorf("%s of %s, %d columns, run %d of rank %d: %d bytes, want %d; from element %d on % x, want % x",
					op.text, dtype, columns, run, me, len(got.Data), len(want), at/size,
					got.Data[at:min(at+size, len(got.Data))], want[at:min(at+size, len(want))])
			}
		}
	}
}
