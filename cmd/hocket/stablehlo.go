package main

import (
	"hocket.example/hocket"
	"hocket.example/hocket/internal/exported"
	"hocket.example/hocket/internal/modelprogram"
	"hocket.example/hocket/internal/stablehlo"
)

// importStableHLO imports a StableHLO program. ranks is the number of ranks; 0 means the size of the program's mesh.
func (a *programs) importStableHLO(name, src string, ranks int) (*modelprogram.Model, error) {
	g, err := stablehlo.Read(name, src, stablehlo.Options{Ranks: ranks})
	var m *modelprogram.Model
	if err == nil {
		m, err = modelprogram.Make(name, g, modelprogram.Options{Ranks: ranks})
	}
	if err != nil {
		return nil, ofExport(err)
	}
	a.export = exported.Of(m)
	return m, nil
}

// parseStableHLO is like parseProgram for a StableHLO text.
func (a *programs) parseStableHLO(name, src string, b *hocket.Binding) (*hocket.Program, error) {
	m, err := a.importStableHLO(name, src, b.Ranks)
	if err != nil {
		return nil, err
	}
	return a.programOf(m)
}
