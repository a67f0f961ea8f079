// Package stablehlo reads programs in StableHLO's text, as jax.jit(f).lower(…).as_text() prints them, into a graph of
// tensor operations (package graph).
//
//   - parse.go, pretty.go, attr.go and sharding.go read the text, in MLIR's generic form and in the pretty forms of
//     StableHLO, CHLO, func and Shardy.
//   - build.go makes the graph: it walks the function main, puts functions in the place of their calls, and runs loops
//     whose counters are known. elementwise.go, shape.go, contract.go, index.go and reduce.go have the operations.
//   - layout.go makes layouts of Shardy's shardings, and manual.go a global view of what each device computes in
//     manual_computation: a value there has a dimension for the devices in front.
package stablehlo

import (
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/graph"
)

var (
	// ErrMalformed is wrapped by errors about text that is no StableHLO.
	ErrMalformed = errors.New("malformed StableHLO")
	// ErrUnsupported is wrapped by errors about programs that there is no graph for.
	ErrUnsupported = errors.New("not supported")
)

// Options choose how a text is read.
type Options struct {
	// Ranks is the number of ranks to lay the program out for, 0 for as many as the text's mesh has.
	Ranks int
}

// Is reports whether a text is StableHLO's, by its first word.
func Is(text string) bool {
	for {
		text = strings.TrimLeft(text, " \t\r\n")
		rest, comment := strings.CutPrefix(text, "//")
		alias := strings.HasPrefix(text, "#")
		if !comment && !alias {
			break
		}
		_, text, _ = strings.Cut(rest, "\n")
	}
	for _, w := range []string{"module ", "module{", "builtin.module", `"builtin.module"`, "func.func", `"func.func"`,
		"sdy.mesh"} {
		if strings.HasPrefix(text, w) {
			return true
		}
	}
	return false
}

// Read makes a graph of the function main of a text, or of its only public function. name is that of the text in
// errors, which wrap ErrMalformed or ErrUnsupported.
//
// Inputs are named after main's parameters. Those of type i1 are i32, 0 for false; so are results.
func Read(name, text string, o Options) (*graph.Graph, error) {
	b, err := read(name, text, o, func(b *builder) {})
	if err != nil {
		return nil, err
	}
	return b.g, nil
}

// ReadTest makes a graph of a test of StableHLO's interpreter. For each check it has two outputs, the result and what
// it should be. With given, constants of main are inputs, which have them as Data: then the results are not known
// before the graph is computed.
func ReadTest(name, text string, given bool) (*graph.Graph, []Check, error) {
	b, err := read(name, text, Options{}, func(b *builder) { b.given = given })
	if err != nil {
		return nil, nil, err
	}
	return b.g, b.checks, nil
}

// read runs a builder.
func read(name, text string, o Options, with func(*builder)) (b *builder, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			b, err = nil, f.err
		}
	}()
	b = &builder{}
	b.name, b.module, b.g = name, newParser(name, text).file(), &graph.Graph{File: name}
	b.folder = &graph.Folder{Elems: maxElems}
	with(b)
	b.main(o)
	return b, nil
}

// entry is the function that a text begins with.
func (m *module) entry(name string) *function {
	if f := m.funcs["main"]; f != nil {
		return f
	}
	if len(m.order) == 1 {
		return m.order[0]
	}
	panic(failure{fmt.Errorf("%s: %w: it has no function main", name, ErrMalformed)})
}
