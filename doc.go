// Package hocket compiles and runs multi-GPU host programs: it hides communication under computation, plans memory
// before it runs, and drives all ranks of a node from one process.
//
// Parse reads a program, Open opens a machine, Machine.Load makes a Model, and Model.Run runs it:
//
//	p, err := hocket.Parse("mlp.hkt", src)
//	m, err := hocket.Open(ctx, hocket.MachineOptions{})
//	defer m.Close()
//	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
//	report, err := model.Run(ctx, hocket.Args{In: inputs})
//
// Model.Bind keeps weights on the devices from run to run. A DeviceTensor keeps on the devices data that runs update
// or pass to other runs. With Model.BindDevice, plans read and write a DeviceTensor directly. Model.Prepare loads a
// plan before the first run. A run whose context ends leaves its plan loaded, unless the run continues for longer than
// LoadOptions.Grace. Machine.Stats has counters of runs and plans. docs/library.md builds a server. Sharded layers and
// explicit host programs are written in the same language (docs/language.md); package ir holds its syntax and checks.
// Errors in a program are Diagnostics, with positions and what to do about them.
package hocket
