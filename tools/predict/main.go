// Command predict judges predictions for layers. It reads tables of measurements, and prints the errors of the
// predictions in them and the time that is lost by the choices of the strategy auto:
//
//	predict ../docs/measured/predictions.tsv
//	predict ../docs/measured/nodes.tsv
//
// Each row of predictions.tsv has two predictions. The column predicted_us is the prediction of auto, from the
// machine's description and the table of algorithms; with -again it is computed anew with the current model. The
// column alone_us is the prediction of the same model from the measured times of the layer's GEMM and collective
// alone, whole and in parts.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"

	"hocket.example/hocket/ir"
)

var ops = map[string]ir.Op{"ag-gemm": ir.OpAllGather, "gemm-rs": ir.OpReduceScatter, "gemm-ar": ir.OpAllReduce}

func main() {
	again := flag.String("again", "", "a `DESCRIPTION` by which to predict anew, a file or a name: h100x2")
	flag.Parse()
	if err := judge(os.Stdout, flag.Args(), *again); err != nil {
		log.Fatal(err)
	}
}

// row is one line of a table, by column.
type row map[string]string

// read reads tables, each with its columns in the first line.
func read(files []string) (rows []row, err error) {
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		var head []string
		for lines.Scan() {
			cells := strings.Split(lines.Text(), "\t")
			switch {
			case head == nil:
				head = cells
				continue
			case slices.Equal(head, cells):
				continue // another table follows in the same file
			case len(cells) != len(head):
				return nil, fmt.Errorf("%s: %d cells, want %d: %q", file, len(cells), len(head), lines.Text())
			}
			r := row{}
			for i, c := range head {
				r[c] = cells[i]
			}
			rows = append(rows, r)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("predict FILE …: no rows")
	}
	return rows, nil
}
