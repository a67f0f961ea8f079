package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"hocket.example/hocket/internal/tensor"
)

// planCache holds the flags that configure the plan cache of run, as in hocket.LoadOptions.
type planCache struct {
	cache string
	hard  bool
	round []string

	bytes   int64 // size of the cache in bytes; negative if it is off
	buckets map[string][]int64
}

func (c *planCache) add(f *pflag.FlagSet) {
	f.StringVar(&c.cache, "cache", "", "how much memory the loaded plans may use together: bytes, such as 2G, or `off` to keep no plans loaded")
	f.BoolVar(&c.hard, "hard-cache", false, "make --cache a hard limit")
	f.StringArrayVar(&c.round, "bucket", nil, "round a dim up to the next of these values: `DIM=N,...`, such as T=64,256; repeatable")
}

// given reports whether any of the flags is given.
func (c *planCache) given() bool { return c.cache != "" || c.hard || len(c.round) > 0 }

// check parses and checks the flags.
func (c *planCache) check() error {
	switch c.cache {
	case "":
	case "off":
		c.bytes = -1
	default:
		n, err := tensor.ParseSize(c.cache)
		if err != nil {
			return usagef("--cache: %w", err)
		}
		c.bytes = n
	}
	if c.hard && c.bytes <= 0 {
		return usagef("--hard-cache requires --cache with a number of bytes")
	}
	c.buckets = map[string][]int64{}
	for _, text := range c.round {
		dim, values, _ := strings.Cut(text, "=")
		for _, v := range strings.Split(values, ",") {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil || n < 1 || dim == "" {
				return usagef("--bucket %s: write DIM=N,..., such as T=64,256", text)
			}
			c.buckets[dim] = append(c.buckets[dim], n)
		}
	}
	return nil
}

// known returns an error for buckets of dims that the program does not have.
func (c *planCache) known(dims map[string]int64) error {
	for _, dim := range slices.Sorted(maps.Keys(c.buckets)) {
		if _, ok := dims[dim]; !ok {
			return usagef("--bucket: the program has no dim %s", dim)
		}
	}
	return nil
}

// splitDims separates the dims with which the model is loaded from the dims that have buckets and are set for each run.
func (c *planCache) splitDims(dims map[string]int64) (fixed, rounded map[string]int64) {
	fixed, rounded = maps.Clone(dims), maps.Clone(dims)
	maps.DeleteFunc(fixed, func(dim string, _ int64) bool { return c.buckets[dim] != nil })
	maps.DeleteFunc(rounded, func(dim string, _ int64) bool { return c.buckets[dim] == nil })
	return fixed, rounded
}
