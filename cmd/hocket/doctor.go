package main

import (
	"fmt"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"hocket.example/hocket/internal/device"
	report "hocket.example/hocket/internal/device/cuda/doctor"
	cudaprocess "hocket.example/hocket/internal/device/cuda/process"
	"hocket.example/hocket/internal/hostmem"
	"hocket.example/hocket/internal/tensor"
	"hocket.example/hocket/internal/tune"
)

// doctor describes the environment in which hocket runs.
type doctor struct {
	Go       string    `json:"go"`
	OS       string    `json:"os"`
	Arch     string    `json:"arch"`
	CPUs     int       `json:"cpus"`
	Threads  int       `json:"gomaxprocs"`
	Memory   int64     `json:"memory_available,omitempty"` // bytes
	Machines []machine `json:"machines"`
	// Tuned lists the tables that hocket tune has stored.
	Tuned []tune.KeptTable `json:"tuned,omitempty"`
}

// machine reports whether -m NAME works in this environment, and if it does not, what is missing.
type machine struct {
	Name    string   `json:"name"`
	OK      bool     `json:"ok"`
	Modes   []string `json:"modes,omitempty"`
	Missing string   `json:"missing,omitempty"`
	Help    string   `json:"help,omitempty"`
	// CUDA lists the components of CUDA that were found. CUDA is set only for the machine cuda.
	CUDA *report.Report `json:"cuda,omitempty"`
}

// defaultMachine is the default value of -m and of --machine.
const defaultMachine = "cpu"

// machineNames lists the values that -m accepts.
var machineNames = machinesThat(func(device.Kind) bool { return true })

// machinesThat lists the names of the machines that satisfy the predicate.
func machinesThat(is func(device.Kind) bool) (names []string) {
	for _, k := range device.Kinds() {
		if is(k) {
			names = append(names, k.Name)
		}
	}
	return names
}

// needs lists the values of -m that support a feature, in words for a usage error or the help of a flag.
func needs(is func(device.Kind) bool) string {
	return "-m " + strings.Join(machinesThat(is), " or -m ")
}

func recordsGraphs(k device.Kind) bool { return k.Graphs }

func isProfiled(k device.Kind) bool { return k.Profiles }

func drawsOrder(k device.Kind) bool { return k.OpenScheduled != nil }

// machineNamed reports whether a machine works in this environment. If try is set, it also tests whether the machine's
// GPUs can access each other's memory.
func machineNamed(name string, try bool) machine {
	if kind, err := device.KindNamed(name); err == nil && kind.OnHost {
		return machine{Name: name, OK: true, Modes: []string{"concurrent", "scheduled (--schedules)"}}
	}
	found := cudaprocess.Examine(try)
	m := machine{Name: name, OK: found.Missing == "", Modes: []string{fmt.Sprintf("%d %s", len(found.GPUs), plural(len(found.GPUs), "GPU"))}, CUDA: &found}
	if !m.OK {
		m.Modes, m.Missing, m.Help = nil, found.Missing, "use -m "+defaultMachine
	}
	return m
}

func machines() []machine {
	var list []machine
	for _, name := range machineNames {
		list = append(list, machineNamed(name, true))
	}
	return list
}

func examine() *doctor {
	return &doctor{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		CPUs: runtime.NumCPU(), Threads: runtime.GOMAXPROCS(0),
		Memory: hostmem.Available(), Machines: machines(), Tuned: tune.KeptTables(),
	}
}

func (a *app) doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:        "doctor [--json]",
		SuggestFor: []string{"devices", "gpus", "info", "env"},
		Short:      "Show what this machine can run, and what is missing",
		Example:    "  hocket doctor",
		Args:       nothing,
		RunE: func(*cobra.Command, []string) error {
			a.out.Doctor = examine()
			return a.printDoctor(a.out.Doctor)
		},
	}
	c.Flags().BoolVar(&a.json, "json", a.json, "print one JSON object")
	return c
}

func (a *app) printDoctor(d *doctor) error {
	w := tabwriter.NewWriter(a.text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "hocket\t%s\n", version())
	fmt.Fprintf(w, "go\t%s %s/%s\n", d.Go, d.OS, d.Arch)
	fmt.Fprintf(w, "cpus\t%d, of which Go uses %d\n", d.CPUs, d.Threads)
	if d.Memory > 0 {
		fmt.Fprintf(w, "memory\t%s available\n", tensor.Size(d.Memory))
	} else {
		fmt.Fprintf(w, "memory\tunknown on %s\n", d.OS)
	}
	for _, m := range d.Machines {
		if !m.OK {
			fmt.Fprintf(w, "%s\t%s; %s\n", m.Name, m.Missing, m.Help)
		} else {
			fmt.Fprintf(w, "%s\tok: %s\n", m.Name, strings.Join(m.Modes, ", "))
		}
		if m.CUDA != nil {
			for _, line := range m.CUDA.Lines() {
				fmt.Fprintf(w, "  %s\t%s\n", line[0], line[1])
			}
		}
	}
	for _, k := range d.Tuned {
		fmt.Fprintf(w, "tuned\t%s\n", k)
	}
	return w.Flush()
}
