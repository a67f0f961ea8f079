// Package machine describes machines: how long a GEMM, a copy between two devices or a collective takes, and how much
// concurrent ones slow each other down. With a description, a schedule can be chosen and examined without the machine.
package machine

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"hocket.example/hocket/internal/files"
)

// Description is one kind of machine. All times are in microseconds; tables
// are points [size in bytes, microseconds], by ascending size.
type Description struct {
	Name string `json:"name"`
	// Source says where the numbers come from.
	Source string `json:"source"`
	// GPU is the model and architecture of the devices, as the identities of worlds
	// of them begin; empty for others. Dispatch tables that were measured on such fit.
	GPU string `json:"gpu,omitempty"`
	// Ranks is on how many devices it was measured; 0 where that does not matter. Of other
	// numbers what is predicted is extrapolated.
	Ranks int `json:"ranks,omitempty"`
	// Error is how far predictions with it were from what was measured.
	Error *Error `json:"error,omitempty"`
	// Launch is what an operation costs before it does anything.
	Launch float64 `json:"launch_us"`
	// Memory is the bandwidth of a device's own memory, in GB/s, as an
	// elementwise operation sees it.
	Memory float64 `json:"memory_gbps"`
	// Reduce is the same of a sum over a dimension. Of H200: that of 2 and 4 slots of
	// 2048 and 4096 rows, less a launch (docs/measured/gemm.md).
	Reduce float64 `json:"reduce_gbps"`
	// GEMM says how fast matrices are multiplied.
	GEMM GEMM `json:"gemm"`
	// Copy is the time to put that many bytes into a peer's memory.
	Copy []Point `json:"copy"`
	// Signal is the time from a signal to the end of the peer's wait, Barrier
	// that of a barrier.
	Signal  float64 `json:"signal_us"`
	Barrier float64 `json:"barrier_us"`
	// Wait is what a stream takes to go on when another of its device has come to where it
	// waited for it, and what the wait for a counter takes that is high enough already.
	// H200: 2.6 to 3.8 and 3.5 to 4.6, each with a mark (docs/measured/studies.tsv).
	Wait float64 `json:"wait_us,omitempty"`
	// AllReduce, AllGather and ReduceScatter are the times of the collectives
	// by the bytes that each rank receives at the least (plan.Coll.Moved), where Times
	// say nothing.
	AllReduce     []Point `json:"all_reduce"`
	AllGather     []Point `json:"all_gather"`
	ReduceScatter []Point `json:"reduce_scatter"`
	// GEMMBesideCopy is how many times longer a GEMM takes while copies come
	// in; GEMMBesideCollective while a collective runs, which slows the
	// collective as much. At 2 there is nothing to be gained.
	GEMMBesideCopy       float64 `json:"gemm_beside_copy"`
	GEMMBesideCollective float64 `json:"gemm_beside_collective"`
	// KernelBesideGEMM is the same of a collective that Times know and that starts while a GEMM
	// runs; 0 for no difference. Its blocks get multiprocessors one by one as the GEMM's blocks end,
	// and hold them while they wait for each other and for the peers' blocks.
	KernelBesideGEMM float64 `json:"kernel_beside_gemm,omitempty"`

	// Across is the tier between nodes; nil where nothing is known of it: then what crosses is taken to be inside.
	Across *Across `json:"across,omitempty"`
	// Nodes are the ranks' nodes, where they are on several: of what is predicted, and no part of a description.
	Nodes []int `json:"-"`

	// Times, where not nil, are asked of collectives before the tables above. They are
	// no part of a description, but of what is known besides of the machine that it is
	// used for.
	Times Times `json:"-"`
}

// Error is a band of errors, as parts of what was measured.
type Error struct {
	// Of says which layers were measured, Layers how many.
	Of     string `json:"of"`
	Layers int    `json:"layers"`
	// Half of the predictions were within Median, nine of ten within Most. Bias is the mean,
	// negative where predictions are too fast.
	Median float64 `json:"median"`
	Most   float64 `json:"most"`
	Bias   float64 `json:"bias"`
}

// Point is [size in bytes, microseconds].
type Point [2]float64

// GEMM is a table of measured products.
type GEMM struct {
	// Peak is the best throughput in TFLOP/s, by dtype.
	Peak map[string]float64 `json:"peak_tflops"`
	// Measured are [m, n, k, microseconds] of products in Of.
	Measured [][4]float64 `json:"measured"`
	Of       string       `json:"of"`
}

//go:embed descriptions/*.json
var shipped embed.FS

// Names lists the machines whose descriptions are shipped.
func Names() []string {
	entries, err := shipped.ReadDir("descriptions")
	if err != nil {
		return nil // the directory is part of the binary
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".json"))
	}
	return names
}

// descriptionMost is how large a description may be, in bytes.
const descriptionMost = 1 << 20

// Load returns the description of that name, or reads the file NAME.json.
func Load(name string) (*Description, error) {
	if slices.Contains(Names(), name) {
		data, err := shipped.ReadFile("descriptions/" + name + ".json")
		if err != nil {
			return nil, err
		}
		return Parse(name, data)
	}
	if !strings.HasSuffix(name, ".json") {
		return nil, fmt.Errorf("there is no machine %q; there are %s, or a file NAME.json", name, strings.Join(Names(), ", "))
	}
	data, err := files.Read(name, descriptionMost)
	if err != nil {
		return nil, err
	}
	return Parse(name, data)
}

// Parse reads a description; name stands for it in errors.
func Parse(name string, data []byte) (*Description, error) {
	d := &Description{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: there is something behind the description, which ends at byte %d", name, dec.InputOffset())
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}
