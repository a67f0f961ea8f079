package main

import (
	"io"

	"github.com/spf13/cobra"

	"hocket.example/hocket"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/ir"
)

// htmlFlags are what opt --html adds.
type htmlFlags struct{ html string }

func (o *htmlFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&o.html, "html", "", "write a page with a column per pass to `FILE` instead; click a value to follow it")
}

// check refuses flags that do not go together.
func (o *htmlFlags) check(c *cobra.Command) error {
	if c.Flags().Changed("html") && o.html == "" {
		return usagef("--html names no file")
	}
	return nil
}

// alone reports whether the page is all that is asked for.
func (o *optFlags) alone() bool { return o.html != "" && o.after == "" && o.out == "" && !o.explain }

// page writes the page of --html: with predictions where they can be made, and
// else with the reason.
func (a *app) page(p *hocket.Program, file string, opts hocket.LowerOptions) error {
	l, err := p.Lower(opts)
	if err != nil {
		return ofHocket(err)
	}
	var page hocket.HTMLOptions
	if page.Explanation, err = p.Explain(opts); err != nil {
		page.Unexplained = firstMessage(err)
	}
	err = files.Write(file, func(w io.Writer) error { return l.WriteHTML(w, page) })
	if err != nil {
		return &failure{code: exitUsage, kind: "output", err: err}
	}
	return nil
}

// firstMessage is an error in one sentence.
func firstMessage(err error) string {
	for _, d := range findings(err) {
		if d.Severity == ir.Error {
			return d.Message
		}
	}
	return err.Error()
}
