package contest

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// vLLM's benchmark_device_communicators.py prints one table for each number of ranks. Web pages quote several of
// these tables, below the names of machines, and with "TP=4" for the number of ranks:

var (
	tableColumns = regexp.MustCompile(`\s{2,}|\t`)
	tableShape   = regexp.MustCompile(`^\((\d+), *(\d+)\)$`)
	tableRanks   = regexp.MustCompile(`(?:\bTP ?= ?|World Size: )(\d+)`)
	tableType    = regexp.MustCompile(`Data Type: (\S+?),? `)
	// tableMachine matches a line with the name of a GPU: letters and digits, optionally after its
	// maker's name or a count.
	tableMachine = regexp.MustCompile(`(?i)^[#*\s]*(?:on )?(?:\d+ ?[x×] ?)?` +
		`(?:(?:NVIDIA|AMD|Intel|Tesla|GeForce|Instinct|DGX|HGX) )*` +
		`(RTX ?(?:PRO ?)?\d{3,4}[A-Z]{0,2}|[A-Z]{1,4}\d{1,4}[A-Z]{0,2})\b(?: [\w-]+){0,3}[:*#\s]*$`)
	// notMachine matches words of letters and digits that do not name a GPU.
	notMachine = regexp.MustCompile(`^(?:(?:BF|FP|F|TP|PP|DP|EP|INT|UINT|CU|SM|W|M|N|K|V)\d{1,2}[A-Z]*|` +
		`(?:RANK|STEP|TEST|FIG|GPU|CUDA|NCCL|ROCM).*|P[59]\d)$`)
)

// readVLLMTable returns the measurements in tables in the format of vLLM's benchmark; none for other text.
func readVLLMTable(text string) ([]Peer, error) {
	var list []Peer
	var columns []string
	machine, dtype, ranks, n := "", "bf16", 0, 0
	lines := map[Peer]int{} // the line of each measurement, by the measurement without its time
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		cells := tableColumns.Split(line, -1)
		if name := machineIn(line); name != "" {
			machine, ranks = name, 0
		}
		if m := tableRanks.FindStringSubmatch(line); m != nil {
			ranks, _ = strconv.Atoi(m[1])
		}
		if m := tableType.FindStringSubmatch(line + " "); m != nil {
			var ok bool
			if dtype, ok = vllmTypes[m[1]]; !ok {
				return nil, Usagef("line %d: a table of vLLM's benchmark with type %q", n, m[1])
			}
		}
		if cells[0] == "Tensor Shape" {
			columns = cells
			if len(cells) < 3 || cells[1] != "Tensor Size" {
				return nil, Usagef("line %d: the table lacks the column Tensor Size, or has no times", n)
			}
			continue
		}
		m := tableShape.FindStringSubmatch(cells[0])
		if columns == nil || m == nil {
			continue
		}
		rows, err1 := strconv.ParseInt(m[1], 10, 64)
		hidden, err2 := strconv.ParseInt(m[2], 10, 64)
		if err1 != nil || err2 != nil || rows < 1 || rows > mostHidden || hidden < 1 || hidden > mostHidden {
			return nil, Usagef("line %d: the shape %s in a table of vLLM's benchmark is not supported", n, cells[0])
		}
		if ranks < 1 {
			return nil, Usagef("line %d: the number of ranks of this table is unknown: put a line such as TP=4 or "+
				"World Size: 4 above it", n)
		}
		if best := strings.HasPrefix(columns[len(columns)-1], "Best"); len(cells) != len(columns) &&
			!(best && len(cells) == len(columns)-1) {
			return nil, Usagef("line %d has %d cells, but the table has %d columns: copy whole lines", n, len(cells),
				len(columns))
		}
		for i := 2; i < len(cells); i++ {
			if strings.HasPrefix(columns[i], "Best") || cells[i] == "N/A" || cells[i] == "-" {
				continue
			}
			ms, err := strconv.ParseFloat(strings.TrimSuffix(cells[i], " ms"), 64)
			p := Peer{Op: "all_reduce", Name: columns[i], Ranks: ranks, Bytes: rows * hidden * 2, DType: dtype,
				Issued: "graph",
				Micros: math.Round(ms*1e6) / 1e3, Machine: machine}
			if err != nil || !p.whole() {
				return nil, Usagef("line %d: %q is not a time of %s", n, cells[i], columns[i])
			}
			of := p
			of.Micros = 0
			if first, twice := lines[of]; twice {
				return nil, Usagef("line %d: a second table has %s of the shape %s on %d ranks%s, as line %d has: "+
					"put a line with the name of the GPU, such as B200, above each table", n, columns[i], cells[0],
					ranks, ofMachine(machine), first)
			}
			lines[of] = n
			list = append(list, p)
		}
	}
	return list, nil
}

// machineIn returns the name of the GPU in a heading, in capitals; "" for other lines.
func machineIn(line string) string {
	m := tableMachine.FindStringSubmatch(strings.Trim(tableRanks.ReplaceAllString(line, ""), " ,;:()-"))
	if m == nil {
		return ""
	}
	name := strings.ToUpper(strings.ReplaceAll(m[1], " ", ""))
	if notMachine.MatchString(name) {
		return ""
	}
	return name
}

func ofMachine(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

// vllmTypes are the element types of vLLM's benchmark, by torch's names.
var vllmTypes = map[string]string{"torch.bfloat16": "bf16", "torch.float16": "f16"}

// PeerMachines lists the machines that the measurements name, in order of occurrence.
func PeerMachines(list []Peer) []string {
	var names []string
	seen := map[string]bool{}
	for _, p := range list {
		if p.Machine != "" && !seen[p.Machine] {
			seen[p.Machine] = true
			names = append(names, p.Machine)
		}
	}
	return names
}
