// Command llama generates tokens by a Llama whose weights are split over ranks. The weights are a checkpoint in Hugging
// Face's layout, or random. Each line of standard input is a prompt: a JSON array of token ids. All prompts are decoded
// greedily as one batch. For each prompt the command writes a line with a JSON array of the generated ids.
//
//	go run ./examples/llama -random 15M -tp 4 -n 8 <<< '[1, 2, 3]'
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"hocket.example/hocket"
	_ "hocket.example/hocket/cuda"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "llama:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (err error) {
	f := flag.NewFlagSet("llama", flag.ContinueOnError)
	dir := f.String("model", "", "directory of the checkpoint, with its config.json")
	random := f.String("random", "", "use random weights; the value is their approximate number: 15M")
	seed := f.Uint64("seed", 0, "seed of random weights")
	tp := f.Int("tp", 1, "ranks that the weights are split over")
	n := f.Int("n", 16, "new tokens of each prompt")
	width := f.Int("chunk", 32, "tokens of each prompt that are read at a time")
	machine := f.String("machine", "cpu", "where to run: cpu or cuda")
	strategy := f.String("strategy", "sequential", "how communication is overlapped")
	if err := f.Parse(args); err != nil {
		return err
	}
	if (*dir == "") == (*random == "") || *tp < 1 || *n < 0 || *width < 1 || f.NArg() > 0 {
		return errors.New("usage: llama -model DIR | -random 15M [-seed S] [-tp N] [-n N] [-chunk N] < prompts")
	}
	var c *config
	if *random != "" {
		c, err = ofSize(*random)
	} else {
		c, err = readConfig(*dir)
	}
	if err != nil {
		return err
	}
	prompts, longest, err := readPrompts(stdin)
	if err != nil || len(prompts) == 0 {
		return err
	}
	m, err := hocket.Open(ctx, hocket.MachineOptions{Name: *machine})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	l, err := load(m, c, *tp, hocket.LoadOptions{Strategy: *strategy})
	if err != nil {
		return err
	}
	if *random != "" {
		err = l.draw(*seed)
	} else {
		var unused []string
		if unused, err = l.bind(*dir); len(unused) > 0 {
			fmt.Fprintln(stderr, "not used:", strings.Join(unused, ", "))
		}
	}
	if err != nil {
		return err
	}
	b, err := l.open(ctx, len(prompts), int64(longest+*n))
	if err != nil {
		return err
	}
	out, err := b.generate(ctx, prompts, *n, *width)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(stdout)
	for _, ids := range out {
		if err := enc.Encode(append([]int32{}, ids...)); err != nil {
			return err
		}
	}
	return nil
}

// readPrompts reads one JSON array of ids from each line.
func readPrompts(r io.Reader) (prompts [][]int32, longest int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var ids []int32
		if err := json.Unmarshal(lines.Bytes(), &ids); err != nil || len(ids) == 0 {
			return nil, 0, fmt.Errorf("prompt %d: want a JSON array of token ids, such as [1, 2], not %.40q",
				len(prompts)+1, lines.Text())
		}
		prompts, longest = append(prompts, ids), max(longest, len(ids))
	}
	return prompts, longest, lines.Err()
}
