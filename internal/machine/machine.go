// Package machine describes machines: how long a GEMM, a copy between two devices or a collective takes, and how much
// they slow each other down when they run at the same time. With a description, a schedule can be chosen and examined
// without the machine.
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

// Description is one kind of machine. All times are in microseconds. Tables are points [size in bytes, microseconds],
// by ascending size.
type Description struct {
	Name string `json:"name"`
	// Source is the source of the numbers.
	Source string `json:"source"`
	// GPU is the model and architecture of the devices, in the form in which the identity of a world starts. It is empty
	// for other devices. Dispatch tables that were measured on these GPUs fit.
	GPU string `json:"gpu,omitempty"`
	// Ranks is the number of devices on which it was measured, or 0 if that does not matter. Predictions for other numbers
	// are extrapolated.
	Ranks int `json:"ranks,omitempty"`
	// Error says how far its predictions were from measured times.
	Error *Error `json:"error,omitempty"`
	// Launch is the time of an operation before it does anything.
	Launch float64 `json:"launch_us"`
	// Memory is the bandwidth of a device's own memory in GB/s, for an elementwise operation.
	Memory float64 `json:"memory_gbps"`
	// Reduce is the same for a sum over a dimension. For H200 it was measured with 2 and 4 slots of 2048 and 4096 rows,
	// without the time of a launch (docs/measured/gemm.md).
	Reduce float64 `json:"reduce_gbps"`
	// GEMM says how fast matrices are multiplied.
	GEMM GEMM `json:"gemm"`
	// Copy is the time to copy this many bytes into the memory of a peer.
	Copy []Point `json:"copy"`
	// Signal is the time from a signal to the end of the peer's wait. Barrier is the time of a barrier.
	Signal  float64 `json:"signal_us"`
	Barrier float64 `json:"barrier_us"`
	// Wait is the time that a stream needs to continue after another stream of its device has reached the point it waits
	// for, and the time of a wait for a counter that is already high enough. For H200 these are 2.6 to 3.8 and 3.5 to 4.6,
	// each including a mark (docs/measured/studies.tsv).
	Wait float64 `json:"wait_us,omitempty"`
	// AllReduce, AllGather and ReduceScatter are the times of the collectives by the bytes that each rank must receive
	// (plan.Coll.Moved). They are used if Times has no measurement.
	AllReduce     []Point `json:"all_reduce"`
	AllGather     []Point `json:"all_gather"`
	ReduceScatter []Point `json:"reduce_scatter"`
	// GEMMBesideCopy is how many times longer a GEMM takes while copies arrive. GEMMBesideCollective is the same while a
	// collective runs, and the collective slows down as much. At 2 there is nothing to gain.
	GEMMBesideCopy       float64 `json:"gemm_beside_copy"`
	GEMMBesideCollective float64 `json:"gemm_beside_collective"`
	// KernelBesideGEMM is the same for a collective that Times knows and that starts while a GEMM runs; 0 means no
	// difference. The blocks of the collective get multiprocessors one by one as the blocks of the GEMM end. They hold
	// them while they wait for each other and for the blocks of the peers.
	KernelBesideGEMM float64 `json:"kernel_beside_gemm,omitempty"`

	// Across is the connection between nodes. If it is nil, nothing is known about it, and collectives between nodes are
	// predicted as if they were inside a node.
	Across *Across `json:"across,omitempty"`
	// Nodes are the nodes of the ranks, if there are several. They belong to the prediction and are not a part of the
	// description.
	Nodes []int `json:"-"`

	// Times is asked about collectives before the tables above, unless it is nil. It is not a part of the description. It
	// holds further measurements of the machine that the description is used for.
	Times Times `json:"-"`
}

// Error is a range of errors, as fractions of the measured times.
type Error struct {
	// Of says which layers were measured, and Layers how many.
	Of     string `json:"of"`
	Layers int    `json:"layers"`
	// Half of the predictions had an error of at most Median, and nine of ten at most Most. Bias is the mean; it is
	// negative if predictions are too fast.
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
	// Measured are [m, n, k, microseconds] of products with the dtype Of.
	Measured [][4]float64 `json:"measured"`
	Of       string       `json:"of"`
}

//go:embed descriptions/*.json
var shipped embed.FS

// Names lists the built-in descriptions.
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

// descriptionMost is the largest size of a description, in bytes.
const descriptionMost = 1 << 20

// Load returns the built-in description with that name, or reads the file NAME.json.
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

// Parse reads a description. Errors use name for it.
func Parse(name string, data []byte) (*Description, error) {
	d := &Description{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: there is more text after the description, which ends at byte %d", name, dec.InputOffset())
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}
