// Package machine describes machines: how long a GEMM, a copy between two devices or a collective takes, and how much
// they slow each other down when they run at the same time. With a description, a schedule can be chosen and examined
// without the machine.
package machine

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/jsontext"
)

// Description describes one kind of machine. All times are in microseconds. Tables consist of points [size in bytes,
// microseconds], by ascending size.
type Description struct {
	Name string `json:"name"`
	// Source names the origin of the numbers.
	Source string `json:"source"`
	// GPU is the model and architecture of the devices, in the form with which the identity of a world begins. GPU is
	// empty for other devices. Dispatch tables that were measured on these GPUs apply to the description.
	GPU string `json:"gpu,omitempty"`
	// Ranks is the number of devices on which the machine was measured, or 0 if the number has no influence.
	// Predictions for other numbers are extrapolated.
	Ranks int `json:"ranks,omitempty"`
	// Error describes how much the predictions differed from measured times.
	Error *Error `json:"error,omitempty"`
	// Launch is the fixed time that every operation takes in addition to its work.
	Launch float64 `json:"launch_us"`
	// Memory is the bandwidth of a device's own memory in GB/s, for an elementwise operation.
	Memory float64 `json:"memory_gbps"`
	// Reduce is the bandwidth of a device's own memory in GB/s, for a sum over a dimension. For H200, Reduce was
	// measured with 2 and 4 slots of 2048 and 4096 rows, without the time of a launch (docs/measured/gemm.md).
	Reduce float64 `json:"reduce_gbps"`
	// GEMM describes the speed of matrix products.
	GEMM GEMM `json:"gemm"`
	// Copy holds the times of copies to a peer's memory, by size.
	Copy []Point `json:"copy"`
	// Signal is the time from a signal to the end of the peer's wait. Barrier is the time of a barrier.
	Signal  float64 `json:"signal_us"`
	Barrier float64 `json:"barrier_us"`
	// Wait is the time that a stream needs to continue after another stream of its device has reached the point it
	// waits for, and the time of a wait for a counter that is already high enough. For H200 the two times are 2.6 to
	// 3.8 µs and 3.5 to 4.6 µs, each including the record of an event (docs/measured/studies.tsv).
	Wait float64 `json:"wait_us,omitempty"`
	// AllReduce, AllGather and ReduceScatter are the times of the collectives by the bytes that each rank must receive
	// (plan.Coll.Moved). These tables are used if Times has no measurement.
	AllReduce     []Point `json:"all_reduce"`
	AllGather     []Point `json:"all_gather"`
	ReduceScatter []Point `json:"reduce_scatter"`
	// GEMMBesideCopy is the factor by which a GEMM takes longer while copies arrive. GEMMBesideCollective is the
	// factor while a collective runs; the collective is slower by the same factor. With a factor of 2, overlap saves
	// no time.
	GEMMBesideCopy       float64 `json:"gemm_beside_copy"`
	GEMMBesideCollective float64 `json:"gemm_beside_collective"`
	// KernelBesideGEMM is the factor by which a GEMM takes longer if a collective that Times knows starts while the
	// GEMM runs; 0 means no difference. The thread blocks of the collective get multiprocessors one by one as the
	// blocks of the GEMM end. The thread blocks of the collective occupy these multiprocessors while they wait for each
	// other and for the blocks of the peers.
	KernelBesideGEMM float64 `json:"kernel_beside_gemm,omitempty"`

	// Across describes the network between nodes. If Across is nil, the network is unknown, and collectives between
	// nodes are predicted as if they were within a node.
	Across *Across `json:"across,omitempty"`
	// Nodes holds the node of each rank, if there are several nodes. Nodes belongs to the prediction and is not a part
	// of the description.
	Nodes []int `json:"-"`

	// Times, unless nil, provides times of collectives that are used in place of the tables above. Times is not a part
	// of the description. Times contains further measurements of the machine for which the description is used.
	Times Times `json:"-"`
}

// Error describes the distribution of prediction errors, as fractions of the measured times.
type Error struct {
	// The field Of describes the measured layers, and the field Layers is their number.
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

// GEMM is a table of measured matrix products.
type GEMM struct {
	// Peak is the best throughput in TFLOP/s, by dtype. The entry "f8e4m3 blocks" is for 8-bit operands with scales by
	// blocks, "f8e4m3 fast_accum" for those with fast accumulation, and "f8e4m3" for all others.
	Peak map[string]float64 `json:"peak_tflops"`
	// Measured holds [m, n, k, microseconds] of matrix products with the dtype Of.
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
		return nil, fmt.Errorf("unknown machine %q; the machines are %s, or a file NAME.json", name, strings.Join(Names(), ", "))
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
	if err := jsontext.Decode(data, d); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}
