// Package stablehlo reads programs in StableHLO's text, as jax.jit(f).lower(…).as_text() prints them, into a graph of
// tensor operations (package graph).
//
//   - parse.go, pretty.go, attr.go and sharding.go read the text, in MLIR's generic form and in the pretty forms of
//     StableHLO, CHLO, func and Shardy.
//   - build.go builds the graph. It translates the operations of the function main, inlines called functions, and
//     unrolls loops whose trip counts are known. elementwise.go, shape.go, contract.go, index.go and reduce.go
//     translate the operations.
//   - layout.go converts Shardy's shardings to layouts. manual.go translates manual_computation, in which each device
//     computes on its own data: each value gets an additional first dimension for the devices.
package stablehlo

import (
	"errors"
	"fmt"
	"strings"

	"hocket.example/hocket/internal/graph"
)

var (
	// ErrMalformed is wrapped by errors about text that is not valid StableHLO.
	ErrMalformed = errors.New("malformed StableHLO")
	// ErrUnsupported is wrapped by errors about programs that cannot be converted to a graph.
	ErrUnsupported = errors.New("not supported")
)

// Options configures how a text is read.
type Options struct {
	// Ranks is the number of ranks over which the program is distributed; 0 means the size of the text's mesh.
	Ranks int
}

// Is reports whether a text is StableHLO. It examines only the first word.
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

// Read makes a graph from the function main of a text, or from its only public function. Errors use name as the name of
// the text. They wrap ErrMalformed or ErrUnsupported.
//
// The graph's inputs have the names of main's parameters. Inputs and results of type i1 become i32, with 0 for false.
func Read(name, text string, o Options) (*graph.Graph, error) {
	b, err := read(name, text, o, func(b *builder) {})
	if err != nil {
		return nil, err
	}
	return b.g, nil
}

// ReadTest makes a graph from a test of StableHLO's interpreter. The graph has two outputs for each check: the result
// and its expected value. If given is set, constants of main become inputs, with the constants as their Data, so that
// the results are not known before the graph is evaluated.
func ReadTest(name, text string, given bool) (*graph.Graph, []Check, error) {
	b, err := read(name, text, Options{}, func(b *builder) { b.given = given })
	if err != nil {
		return nil, nil, err
	}
	return b.g, b.checks, nil
}

// read parses the text and runs a builder on it.
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

// entry returns the function at which the program begins.
func (m *module) entry(name string) *function {
	if f := m.funcs["main"]; f != nil {
		return f
	}
	if len(m.order) == 1 {
		return m.order[0]
	}
	panic(failure{fmt.Errorf("%s: %w: it has no function main", name, ErrMalformed)})
}
