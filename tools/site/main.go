// Command site writes the pages of the repository as a site of HTML files. The site loads nothing from a network,
// and works from a folder as well as from a server.
//
//	go run ./site -out DIR
//
// docs/README.md is the front page. The pages of the site are all Markdown files that can be reached by links from
// there. A page of docs that no link leads to is an error, and so is a link to a file or a heading that does not
// exist.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	out := flag.String("out", "", "the folder to write the site to; files in it that have other names are left alone")
	root := flag.String("root", "..", "the root of the repository")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*root, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// write writes the site of the repository at root to a folder.
func write(root, out string) error {
	files, err := build(os.DirFS(root))
	if err != nil {
		return err
	}
	for name, content := range files {
		file := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%d files in %s; open %s\n", len(files), out, filepath.Join(out, "index.html"))
	return nil
}
