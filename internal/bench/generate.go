package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/contest"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/ir"
	"hocket.example/hocket/ir/checker"
)

// GenerateOptions select the prompts and batches for which the generation of tokens is measured.
type GenerateOptions struct {
	// Prompt is the dim that counts a run's tokens, with the lengths of prompts: "T=128,512". Without a dim, as in
	// "128,512", a run has one token, and a prompt is as many runs.
	Prompt string
	// Batch is the dim that counts sequences, with its values: "B=1,8". If it is empty, the binding sets the batch.
	Batch string
	// Tokens is the number of tokens to generate after the first. 0 measures only the first.
	Tokens int
}

// Bind sets the dims that the options vary to their least values, so that a program whose dims have no defaults can be
// bound. Without a prompt it does nothing.
func (o *GenerateOptions) Bind(p *hocket.Program, dims map[string]int64) error {
	if o.Prompt == "" {
		return nil
	}
	prompt, batch, err := o.sweeps()
	if err != nil {
		return err
	}
	info, ds := checker.Check(p.IR())
	if err := ds.Err(); err != nil {
		return err
	}
	for i, s := range []sweep{prompt, batch} {
		switch _, given := dims[s.dim]; {
		case s.dim == "":
			continue
		case given:
			flag := [...]string{"prompt", "batch"}[i]
			return contest.Usagef("--dim %s and --%s set the same dim", s.dim, flag)
		case info.Dims[s.dim] == nil && i == 0:
			return contest.Usagef("--prompt: the program has no dim %s that counts the tokens of a run; its dims are "+
				"%s. For a program that takes one token a run, give the lengths alone: --prompt %s; export a model with "+
				"a dynamic dimension of tokens to run prompts at once", s.dim, dimsOf(info), joined(s.values, ","))
		case info.Dims[s.dim] == nil:
			return contest.Usagef("--batch: the program has no dim %s; its dims are %s", s.dim, dimsOf(info))
		}
		dims[s.dim] = s.values[0]
	}
	return nil
}

// sweeps parses the options.
func (o *GenerateOptions) sweeps() (prompt, batch sweep, err error) {
	if prompt, err = parseSweep("prompt", o.Prompt); err != nil || o.Batch == "" {
		return prompt, sweep{values: []int64{0}}, err
	}
	if batch, err = parseSweep("batch", o.Batch); err != nil {
		return prompt, batch, err
	}
	switch {
	case batch.dim == "":
		return prompt, batch, contest.Usagef("--batch %q: the dim is missing; want a dim and its values, such as B=1,8",
			o.Batch)
	case batch.dim == prompt.dim:
		return prompt, batch, contest.Usagef("--prompt and --batch both vary %s", batch.dim)
	}
	return prompt, batch, nil
}

func dimsOf(info *ir.Info) string {
	return strings.Join(slices.Sorted(maps.Keys(info.Dims)), ", ")
}

func joined(values []int64, sep string) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(values), " ", sep), "[]")
}

// Generation is the measurement of a program that generates tokens.
type Generation struct {
	Func string `json:"func"`
	// Dims are the dims that all cases share. PromptDim and BatchDim vary; they are empty if no dim does.
	Dims      map[string]int64 `json:"dims"`
	PromptDim string           `json:"prompt_dim,omitempty"`
	BatchDim  string           `json:"batch_dim,omitempty"`
	// Tokens is the number of tokens after the first. It is 0 if only the first is measured.
	Tokens int              `json:"tokens"`
	State  []string         `json:"device_tensors,omitempty"`
	Rates  machine.Rates    `json:"rates"`
	At     string           `json:"description"`
	Fits   bool             `json:"description_fits"`
	Cases  []GenerationCase `json:"cases"`
}

// GenerationCase is the measurement for one length of prompts and one batch. Times are microseconds.
type GenerationCase struct {
	Prompt int64 `json:"prompt"`
	Batch  int64 `json:"batch"`
	// FirstBound and TokenBound are lower bounds of the times to the first token and per token; see Step.Bound.
	FirstBound float64           `json:"first_token_bound_us"`
	TokenBound float64           `json:"per_token_bound_us,omitempty"`
	Ways       []GenerationTimes `json:"ways"`
	Peers      []GenerationPeer  `json:"peers,omitempty"`

	value int64 // of the batch's dim
}

// GenerationTimes are the times of one strategy.
type GenerationTimes struct {
	Strategy string `json:"strategy"`
	Issued   string `json:"issued"`            // "eager" or "graph"
	Refused  string `json:"refused,omitempty"` // the reason why it cannot be measured; empty if it can
	// First is the time to the first token, and Token the time of each further token; nil if only the first is
	// measured. TokensPerSecond is the number of tokens that the whole batch gets per second after the first.
	First           contest.Figure  `json:"first_token_us"`
	Token           *contest.Figure `json:"per_token_us,omitempty"`
	TokensPerSecond float64         `json:"tokens_per_second,omitempty"`
	Guesses         []string        `json:"guesses,omitempty"` // see StrategyTimes.Guesses
}

// GenerationPeer holds the times of another program, nil where they are unknown. A spread of 0 is unknown. A ratio is
// the peer's time divided by that of hocket's first strategy; 0 if one of them is unknown.
type GenerationPeer struct {
	Name       string          `json:"name"`
	Issued     string          `json:"issued"`
	First      *contest.Figure `json:"first_token_us,omitempty"`
	FirstRatio float64         `json:"first_token_ratio,omitempty"`
	Token      *contest.Figure `json:"per_token_us,omitempty"`
	TokenRatio float64         `json:"per_token_ratio,omitempty"`
}

// The values of contest.Peer.Op for the generation of tokens.
const (
	peerFirst = "first_token"
	peerToken = "per_token"
)

// comparePeers adds the figures of other programs to the cases.
func (g *generator) comparePeers() {
	fits := false
	for i := range g.result.Cases {
		c := &g.result.Cases[i]
		for _, p := range g.job.Peers {
			if p.Ranks != g.job.Ranks || p.Prompt != c.Prompt || p.Batch != c.Batch ||
				p.Op != peerFirst && p.Op != peerToken {
				continue
			}
			at := slices.IndexFunc(c.Peers,
				func(q GenerationPeer) bool { return q.Name == p.Name && q.Issued == p.Issued })
			if at < 0 {
				at = len(c.Peers)
				c.Peers = append(c.Peers, GenerationPeer{Name: p.Name, Issued: p.Issued})
			}
			c.add(&c.Peers[at], p)
			fits = true
		}
	}
	notes := len(g.report.Method)
	if !fits {
		g.lackPeers(peerFirst, nil)
	}
	if !fits && len(g.job.Peers) > 0 && len(g.report.Method) == notes {
		g.method("peers: there are no measurements of these prompts and batches")
	}
}

// add sets a time of a peer, and its ratio to that of the first strategy.
func (c *GenerationCase) add(to *GenerationPeer, p contest.Peer) {
	ours, theirs := c.Ways[0], &contest.Figure{Median: p.Micros, Spread: p.Spread}
	if p.Op == peerFirst {
		to.First, to.FirstRatio = theirs, quotientOf(p.Micros, ours.First.Median)
	} else if to.Token = theirs; ours.Token != nil {
		to.TokenRatio = quotientOf(p.Micros, ours.Token.Median)
	}
}
