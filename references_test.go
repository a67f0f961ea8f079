package hocket_test

import (
	"bytes"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// foreignNames are names in backticks that this repository does not contain, and why pages may mention them.
var foreignNames = []struct {
	name *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`^(jax|lax|torch|cuda)\.\w+(\.\w+)*$|^set_grad_enabled$|^PYTORCH_\w+$|^custom_all_reduce\.cuh$|^HostIrEvaluator$|^StreamParallelType$|^ShareMemHandle$|^istreamIdx12$|^bS3$`), "JAX, PyTorch, vLLM and nvFuser"},
	{regexp.MustCompile(`^(cu(da|blas)?|nccl|nvml)[A-Z]\w+$|^NCCL_\w+$|^SM_COUNT_TARGET$|^nvdisasm$`), "CUDA, cuBLASLt and NCCL"},
	{regexp.MustCompile(`^griddepcontrol(\.wait)?$|^w?g?mma(\.sync)?$|^mbarrier$|^mul\.rn$`), "instructions of PTX"},
	{regexp.MustCompile(`^atan2$|^select_and_scatter$`), "operations of StableHLO that are refused"},
	{regexp.MustCompile(`^(reduce_tbg|reducescatter_pkt|allgather_ring|reduce_nvls_pipeline|(relaxed_)?signal_wait_fuse|ReduceOperation\.shift_buffers)$`), "programs of MSCCL++, which are not kept here"},
	{regexp.MustCompile(`^RingAllgatherBasedPipelining\w+$`), "a test of nvFuser"},
	{regexp.MustCompile(`^SOCK_SEQPACKET$|^libpython3$`), "the operating system"},
	{regexp.MustCompile(`^(GoogleTest|MiniMalloc|DeepSeek|MoE|GitHub)$`), "other projects"},
	{regexp.MustCompile(`^out1$`), "a result by its number"},
}

// tree holds the names to which comments and pages can refer.
type tree struct {
	words    map[string]bool            // words in code and literals of Go, and in all other files except pages
	packages map[string]map[string]bool // by package name: identifiers in the code of packages of that name
	named    map[string]string          // by folder: the name of the package in it
	files    map[string]bool            // paths, base names and folders
	comments []note
	pages    []note
}

// note is a text that may contain names, such as a comment.
type note struct {
	file string
	line int
	text string
}

var (
	word      = regexp.MustCompile(`[A-Za-z_]\w*`)
	backticks = regexp.MustCompile("`([^`]+)`")
	dotted    = regexp.MustCompile(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?$`)
	see       = regexp.MustCompile(`(^|[(.;:,] ?)([Ss]ee (?:the (?:method|function|type) |package )?` + "`?" + `)([A-Za-z_][\w./-]*\w)(.?)`)
	plain     = regexp.MustCompile(`\b([A-Z][a-z0-9]+[A-Z]\w*|[a-z][a-z0-9]+[A-Z]\w+|[a-z]\w*\.[A-Z]\w*(\.\w+)*)\b`)
	english   = regexp.MustCompile(`^[a-z]+$`)
)

// readTree reads the files that git would track: all except hidden folders, testdata and build outputs.
func readTree(t *testing.T) *tree {
	r := &tree{map[string]bool{}, map[string]map[string]bool{}, map[string]string{}, map[string]bool{}, nil, nil}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if path != "." && (strings.HasPrefix(name, ".") && d.IsDir() && name != ".github" && name != ".ci") {
			return filepath.SkipDir
		}
		r.files[path], r.files[name] = true, true
		if d.IsDir() || !d.Type().IsRegular() {
			return nil
		}
		switch ext := filepath.Ext(name); ext {
		case ".go", ".md", ".py", ".sh", ".hkt", ".yml", ".h", ".c", ".cu", ".cuh", ".toml", ".tsv", "":
			text, err := os.ReadFile(path)
			if err != nil || bytes.IndexByte(text, 0) >= 0 {
				return err
			}
			switch {
			case ext == ".go":
				r.readGo(path, text)
			case ext == ".md":
				r.readPage(path, string(text))
			default:
				r.add(r.words, string(text))
				if ext == ".py" && strings.HasPrefix(path, "python/") { // the module hocket
					r.add(r.identifiers("hocket"), string(text))
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// add puts the words of text into a set.
func (r *tree) add(set map[string]bool, text string) {
	for _, w := range word.FindAllString(text, -1) {
		set[w] = true
	}
}

// identifiers returns the set of identifiers of a package.
func (r *tree) identifiers(name string) map[string]bool {
	if r.packages[name] == nil {
		r.packages[name] = map[string]bool{}
	}
	return r.packages[name]
}

// readGo collects identifiers, literals and comments. Comments on successive lines are one note.
func (r *tree) readGo(path string, text []byte) {
	fset := token.NewFileSet()
	file := fset.AddFile(path, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	idents, named := map[string]bool{}, ""
	for last := token.ILLEGAL; ; {
		pos, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			named = strings.TrimSuffix(named, "_test")
			r.named[filepath.Dir(path)] = named
			own := r.identifiers(named)
			for id := range idents {
				own[id], r.words[id] = true, true
			}
			return
		case tok == token.COMMENT:
			line := file.Line(pos)
			body := strings.TrimSpace(strings.TrimPrefix(lit, "//"))
			if n := len(r.comments) - 1; n >= 0 && r.comments[n].file == path && last == token.COMMENT &&
				r.comments[n].line+strings.Count(r.comments[n].text, "\n")+1 == line {
				r.comments[n].text += "\n" + body
			} else {
				r.comments = append(r.comments, note{path, line, body})
			}
		case tok == token.IDENT:
			if last == token.PACKAGE && named == "" {
				named = lit
			}
			idents[lit] = true
		case tok == token.STRING:
			r.add(r.words, lit)
		}
		if tok != token.SEMICOLON || lit != "\n" {
			last = tok
		}
	}
}

// readPage collects the lines of a page outside of code blocks.
func (r *tree) readPage(path, text string) {
	code := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		} else if !code {
			r.pages = append(r.pages, note{path, i + 1, line})
		}
	}
}

// resolves reports whether a name in a file of the given folder refers to something in the repository.
func (r *tree) resolves(dir, name string) bool {
	name = strings.TrimSuffix(name, "()")
	if r.files[name] || r.files[filepath.Join(dir, name)] || r.files[filepath.Clean(name)] {
		return true
	}
	parts := strings.Split(name, ".")
	if p := r.packages[parts[0]]; p != nil && len(parts) > 1 {
		return p[parts[1]] || p[parts[len(parts)-1]]
	}
	for _, p := range parts {
		if !r.words[p] {
			return false
		}
	}
	return true
}

// inFolder reports whether a lower-case name is a package, or an identifier of the package in a folder.
func (r *tree) inFolder(dir, name string) bool {
	return r.packages[name] != nil || r.packages[r.named[dir]][name]
}

// TestReferences resolves the names in comments and pages: those in backticks that have the form of an identifier or a
// path, those in mixed case or with a package, and those after "see". The change log is exempt, because it names
// removed things.
func TestReferences(t *testing.T) {
	r := readTree(t)
	foreign := func(name string) bool {
		for _, e := range foreignNames {
			if e.name.MatchString(name) {
				return true
			}
		}
		return false
	}
	names := 0
	for _, n := range slices.Concat(r.comments, r.pages) {
		if n.file == "CHANGELOG.md" {
			continue
		}
		dir := filepath.Dir(n.file)
		for _, m := range backticks.FindAllStringSubmatch(n.text, -1) {
			if dotted.MatchString(m[1]) {
				names++
				if !r.resolves(dir, m[1]) && !foreign(m[1]) {
					t.Errorf("%s:%d: `%s` is not in the code", n.file, n.line, m[1])
				}
			}
		}
		for _, name := range plain.FindAllString(n.text, -1) {
			names++
			if !r.resolves(dir, name) && !foreign(name) {
				t.Errorf("%s:%d: %s is not in the code", n.file, n.line, name)
			}
		}
		for _, m := range see.FindAllStringSubmatch(strings.ReplaceAll(n.text, "\n", " "), -1) {
			lead, name, after := m[2], m[3], m[4]
			switch {
			case name == "below" || name == "above" || name == "the":
				continue
			case english.MatchString(name) && !strings.Contains(lead, "the ") && !strings.Contains(").;,", after):
				continue // an English sentence
			}
			names++
			if !r.resolves(dir, name) || english.MatchString(name) && !r.inFolder(dir, name) {
				t.Errorf("%s:%d: \"see %s\": %s is not in the code", n.file, n.line, name, name)
			}
		}
	}
	if names < 1000 {
		t.Errorf("only %d names found", names)
	}
}
