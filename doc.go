// Package hocket compiles and runs multi-GPU host programs: it hides
// communication under computation, plans memory before it runs, and drives all
// ranks of a node from one process.
//
// Parse reads a program, Open opens a machine, Machine.Load makes a Model,
// Model.Run runs it:
//
//	p, err := hocket.Parse("mlp.hkt", src)
//	m, err := hocket.Open(ctx, hocket.MachineOptions{})
//	defer m.Close()
//	model, err := m.Load(p, hocket.Binding{}, hocket.LoadOptions{})
//	report, err := model.Run(ctx, hocket.Args{In: inputs})
//
// Model.Bind keeps weights on the devices from run to run, a DeviceTensor what runs change
// or leave for others, which Model.BindDevice has plans work in, and Model.Prepare loads
// ahead of the first run. A run whose context ends leaves its plan loaded, unless it goes
// on for longer than LoadOptions.Grace.
//
// A sharded layer and an explicit host program are the same language
// (docs/language.md); package ir holds its syntax and checks. Errors in a
// program are Diagnostics, with positions and what to do about them.
package hocket
