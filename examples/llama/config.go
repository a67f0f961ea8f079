package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// config holds the fields of a checkpoint's config.json that this program uses.
type config struct {
	Hidden    int64   `json:"hidden_size"`
	Inner     int64   `json:"intermediate_size"`
	Layers    int64   `json:"num_hidden_layers"`
	Heads     int64   `json:"num_attention_heads"`
	KVHeads   int64   `json:"num_key_value_heads"`
	HeadDim   int64   `json:"head_dim"`
	Vocab     int64   `json:"vocab_size"`
	Eps       float64 `json:"rms_norm_eps"`
	Theta     float64 `json:"rope_theta"`
	Tied      bool    `json:"tie_word_embeddings"`
	Type      string  `json:"model_type"`
	Act       string  `json:"hidden_act"`
	AttnBias  bool    `json:"attention_bias"`
	MLPBias   bool    `json:"mlp_bias"`
	DType     string  `json:"dtype"`
	TorchType string  `json:"torch_dtype"`
	Scaling   *rope   `json:"rope_scaling"`
	Rope      *rope   `json:"rope_parameters"` // transformers 5 has both here
}

type rope struct {
	Type     string  `json:"rope_type"`
	OldType  string  `json:"type"` // what rope_type was called
	Theta    float64 `json:"rope_theta"`
	Factor   float64 `json:"factor"`
	Low      float64 `json:"low_freq_factor"`
	High     float64 `json:"high_freq_factor"`
	Original float64 `json:"original_max_position_embeddings"`
}

// readConfig reads the config.json of a checkpoint.
func readConfig(dir string) (*config, error) {
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &config{Eps: 1e-6, Act: "silu"}
	if err = json.Unmarshal(text, c); err == nil {
		err = c.settle()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// settle sets the defaults of missing fields, and returns an error if the program does not support the model.
func (c *config) settle() error {
	c.KVHeads = cmp.Or(c.KVHeads, c.Heads)
	c.HeadDim = cmp.Or(c.HeadDim, c.Hidden/max(c.Heads, 1))
	c.Rope = cmp.Or(c.Rope, c.Scaling, &rope{})
	c.Rope.Type = cmp.Or(c.Rope.Type, c.Rope.OldType, "default")
	c.Rope.Theta = cmp.Or(c.Rope.Theta, c.Theta, 10000)
	c.DType = cmp.Or(c.DType, c.TorchType)
	switch {
	case c.Type != "llama":
		return fmt.Errorf("a model of type %q; this program runs llama", c.Type)
	case min(c.Hidden, c.Inner, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.Vocab) < 1:
		return fmt.Errorf("sizes are missing: %+v", *c)
	case c.Heads%c.KVHeads != 0 || c.HeadDim%2 != 0:
		return fmt.Errorf("%d query heads of %d elements for %d key-value heads", c.Heads, c.HeadDim, c.KVHeads)
	case c.Act != "silu":
		return fmt.Errorf("the activation %q", c.Act)
	case c.AttnBias || c.MLPBias:
		return fmt.Errorf("linear layers with a bias")
	case c.Rope.Type != "default" && c.Rope.Type != "llama3":
		return fmt.Errorf("rope of type %q", c.Rope.Type)
	case dtypes[c.DType] == "":
		return fmt.Errorf("weights of type %q", c.DType)
	}
	return nil
}

var dtypes = map[string]string{"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

// text returns llama.hkt with the sizes and constants of the model.
func (c *config) text() string {
	angles := fmt.Sprintf("theta=%v", c.Rope.Theta)
	if c.Rope.Type == "llama3" {
		angles += fmt.Sprintf(", factor=%v, low=%v, high=%v, original=%v",
			c.Rope.Factor, c.Rope.Low, c.Rope.High, c.Rope.Original)
	}
	eps := fmt.Sprintf("eps=%v", c.Eps)
	return strings.NewReplacer("f32[", dtypes[c.DType]+"[", "eps=1e-5", eps, "theta=10000", angles).Replace(program)
}

// dims returns the values of the program's dims, without the dims that differ between runs.
func (c *config) dims(tp int) map[string]int64 {
	return map[string]int64{"V": c.Vocab, "H": c.Hidden, "L": c.Layers, "Q": c.Heads, "KV": c.KVHeads, "D": c.HeadDim,
		"F": c.Inner, "P": int64(tp)}
}

// ofSize returns a small Llama with about the given number of weights, such as "15M".
func ofSize(text string) (*config, error) {
	var n float64
	var unit string
	_, err := fmt.Sscanf(text, "%f%1s", &n, &unit)
	weights := n * map[string]float64{"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}[unit]
	if err != nil || !(weights > 0 && weights < 1e12) {
		return nil, fmt.Errorf("-random %s: want a number of weights, such as 15M", text)
	}
	c := &config{Type: "llama", Act: "silu", Eps: 1e-5, DType: "float32", Layers: 4, HeadDim: 16, KVHeads: 4,
		Vocab: 512,
		Rope:  &rope{Type: "llama3", Theta: 5e5, Factor: 8, Low: 1, High: 4, Original: 8192}}
	c.Heads = 4 * int64(max(1, math.Round(math.Sqrt(weights/44)/64))) // a layer has about 11·Hidden² weights
	c.Hidden, c.Inner = 16*c.Heads, 48*c.Heads
	return c, c.settle()
}
