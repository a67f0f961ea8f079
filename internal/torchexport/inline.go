package torchexport

import (
	"slices"

	"hocket.example/hocket/internal/graph"
)

// maxDepth is the largest depth to which graphs may be nested in calls.
const maxDepth = 16

// inline translates a call that has a graph as an argument: it reads that graph in place of the call. Torch exports
// such calls for code that enables or disables gradients or automatic conversions of types. Neither changes the
// results of inference. The positional arguments after the graph are the inputs of the graph.
func (c *call) inline() error {
	ins := c.node.Inputs
	at := slices.IndexFunc(ins, func(a namedArg) bool { return a.Arg.kind == "as_graph" })
	if err := c.node.transparent(at); err != nil {
		return err
	}
	switch {
	case at < 0:
		return malformed("the call has no graph as an argument")
	case c.depth == maxDepth:
		return unsupported("graphs that are nested in calls more than %d deep", maxDepth)
	}
	var named struct {
		Graph subgraph `json:"graph"`
	}
	if err := ins[at].Arg.into(&named); err != nil {
		return err
	}
	sub := newBuilder(c.Graph, c.archive, &named.Graph)
	sub.depth, sub.numbers = c.depth+1, c.numbers
	group := map[string]string{} // maps the group of a name in the nested graph to a group of the enclosing graph
	if err := c.enter(sub, ins[at+1:], group); err != nil {
		return err
	}
	if err := sub.nodes(); err != nil {
		return err
	}
	return c.leave(sub, group)
}

// transparent returns an error unless the call only runs the graph that is its argument at, which is negative if there
// is none.
func (n *node) transparent(at int) error {
	ins := n.Inputs
	switch n.base() {
	case "higher_order.wrap_with_set_grad_enabled":
		return nil
	case "higher_order.wrap_with_autocast": // device, type, enabled, cache
		var enabled bool
		if at >= 0 && at < 3 || len(ins) < 3 || ins[2].Arg.kind != "as_bool" {
			return malformed("the call has no argument that says whether conversions are enabled")
		}
		if err := ins[2].Arg.into(&enabled); err != nil {
			return err
		}
		if enabled {
			return unsupported("automatic conversion of types (torch.autocast); convert the model to the type in " +
				"which it runs, and export it without autocast")
		}
		return nil
	}
	return unsupported("hocket has no such operator; operators with parts of the program as arguments, such as loops " +
		"and conditions, are not supported")
}

// enter assigns the arguments of a call to the inputs of the graph of sub. Arguments that share memory also share it in
// that graph.
func (c *call) enter(sub *builder, args []namedArg, group map[string]string) error {
	if len(args) != len(sub.text.Inputs) {
		return malformed("its graph has %d inputs, but it is called with %d", len(sub.text.Inputs), len(args))
	}
	for i := range args {
		inner, err := sub.text.Inputs[i].tensor()
		if err != nil {
			return unsupported("input %d of its graph: %w", i, err)
		}
		outer, err := args[i].Arg.tensor()
		if err != nil {
			return unsupported("argument %d of its graph: %w", i, err)
		}
		if inner == "" || outer == "" || sub.env[inner] != nil {
			return malformed("input %d of its graph is None, or is listed twice", i)
		}
		sub.env[inner] = c.lookup(outer)
		if c.err != nil {
			return c.err
		}
		g := c.storage[outer]
		sub.share(inner, g)
		sub.outer[g], group[g] = true, g
	}
	return nil
}

// leave names the results of the graph of sub as results of the call. Results that share memory with each other, or
// with an argument, also share it in the enclosing graph.
func (c *call) leave(sub *builder, group map[string]string) error {
	outs := sub.text.Outputs
	if len(outs) != len(c.outs) {
		return malformed("its graph has %d results, not %d", len(outs), len(c.outs))
	}
	results := make([]*graph.Value, len(outs))
	groups := make([]string, len(outs))
	for i := range outs {
		name, err := outs[i].tensor()
		if err != nil {
			return unsupported("result %d of its graph: %w", i, err)
		}
		if results[i] = sub.env[name]; results[i] == nil {
			return malformed("no call computes result %d of its graph", i)
		}
		groups[i] = sub.storage[name]
	}
	if err := c.define(results); err != nil {
		return err
	}
	for i, name := range c.outs {
		if name == "" {
			continue
		}
		if _, known := group[groups[i]]; !known {
			group[groups[i]] = name
		}
		c.share(name, group[groups[i]])
	}
	return nil
}
