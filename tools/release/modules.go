package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// dependency is a module, or Go's standard library, that a binary contains.
type dependency struct {
	path, version, sum string
	licence            string // the licence's identifier in the list of SPDX
	texts              []file
}

func (d *dependency) purl() string { return "pkg:golang/" + d.path + "@" + d.version }

const standard = "std" // the path of the standard library, as in package URLs

// modules returns the modules that the binaries contain, according to the records of Go's linker, sorted by path.
// It adds their licences from the module cache.
func (b *builder) modules() ([]*dependency, error) {
	var list []*dependency
	for _, built := range b.built {
		for _, m := range built.info.Deps {
			if m.Replace != nil {
				return nil, fmt.Errorf("%s contains %s, which is replaced", built.name, m.Path)
			}
			if !slices.ContainsFunc(list, func(d *dependency) bool { return d.path == m.Path }) {
				list = append(list, &dependency{path: m.Path, version: m.Version, sum: m.Sum})
			}
		}
	}
	list = append(list, &dependency{path: standard, version: strings.TrimPrefix(b.built[0].info.GoVersion, "go")})
	slices.SortFunc(list, func(a, b *dependency) int { return strings.Compare(a.path, b.path) })
	for _, d := range list {
		args := []string{"list", "-m", "-f", "{{.Dir}}", d.path}
		if d.path == standard {
			args = []string{"env", "GOROOT"}
		}
		dir, err := b.output(nil, "go", args...)
		if err != nil {
			return nil, err
		}
		if d.texts, err = licenceFiles(dir); err != nil {
			return nil, err
		}
		if d.licence, err = identify(d); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// licenceName matches the files of a module that state rights. They are at the root of the module, or in a folder
// for licences of others.
var licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([.-][^/]*)?$|^third_party_licen[cs]es/`)

func licenceFiles(dir string) ([]file, error) {
	var list []file
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && !licenceName.MatchString(filepath.ToSlash(name)+"/") {
				return filepath.SkipDir
			}
			return nil
		}
		if !licenceName.MatchString(filepath.ToSlash(name)) {
			return nil
		}
		text, err := os.ReadFile(path)
		list = append(list, file{filepath.ToSlash(name), text})
		return err
	})
	return list, err
}

// identify returns the SPDX identifier of a module's licence. If the licence is not a known one, it returns an
// error, so that a person reads the licence before the release.
func identify(d *dependency) (string, error) {
	for _, f := range d.texts {
		if base, _, _ := strings.Cut(strings.ToLower(f.name), "."); base != "license" && base != "licence" && base != "copying" {
			continue
		}
		text := strings.Join(strings.Fields(string(f.data)), " ")
		has := func(s string) bool { return strings.Contains(text, s) }
		switch {
		case has("Apache License Version 2.0"):
			return "Apache-2.0", nil
		case has("Permission is hereby granted, free of charge") && has("THE SOFTWARE IS PROVIDED"):
			return "MIT", nil
		case has("Redistributions in binary form") && has("Neither the name"):
			return "BSD-3-Clause", nil
		}
		return "", fmt.Errorf("the licence of %s %s is none of Apache-2.0, MIT and BSD-3-Clause: read it, and add it to identify", d.path, d.version)
	}
	return "", fmt.Errorf("%s %s has no licence", d.path, d.version)
}

// texts returns the licences of all dependencies.
func texts(list []*dependency) []byte {
	var out bytes.Buffer
	fmt.Fprintln(&out, "hocket contains these modules. Their licences follow; hocket's own is in LICENSE.")
	fmt.Fprintln(&out)
	for _, d := range list {
		fmt.Fprintf(&out, "  %s %s (%s)\n", d.path, d.version, d.licence)
	}
	for _, d := range list {
		for _, f := range d.texts {
			line := strings.Repeat("=", 80)
			fmt.Fprintf(&out, "\n%s\n%s %s: %s\n%s\n\n%s\n", line, d.path, d.version, f.name, line, bytes.TrimSpace(f.data))
		}
	}
	return out.Bytes()
}

// These types are the parts of CycloneDX 1.6 that the bill of materials uses.
type (
	bill struct {
		Format       string      `json:"bomFormat"`
		Spec         string      `json:"specVersion"`
		Version      int         `json:"version"`
		Metadata     metadata    `json:"metadata"`
		Components   []component `json:"components"`
		Dependencies []relation  `json:"dependencies"`
	}
	metadata struct {
		Timestamp string    `json:"timestamp"`
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Ref        string     `json:"bom-ref"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		Hashes     []hash     `json:"hashes,omitempty"`
		Licenses   []licensed `json:"licenses,omitempty"`
		PURL       string     `json:"purl,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	hash struct {
		Algorithm string `json:"alg"`
		Content   string `json:"content"`
	}
	licensed struct {
		License struct {
			ID string `json:"id"`
		} `json:"license"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	relation struct {
		Ref       string   `json:"ref"`
		DependsOn []string `json:"dependsOn"`
	}
)

func licence(id string) []licensed {
	l := make([]licensed, 1)
	l[0].License.ID = id
	return l
}

// bill returns the software bill of materials: each binary with its checksum, the modules that Go's linker recorded in
// it, and its settings.
func (b *builder) bill(modules []*dependency) ([]byte, error) {
	own := component{Type: "application", Ref: "hocket", Name: "hocket", Version: b.version, Licenses: licence("Apache-2.0"),
		Properties: []property{{"vcs.revision", b.commit}}}
	out := bill{Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata: metadata{Timestamp: b.when.Format(time.RFC3339), Component: own}}
	whole := relation{Ref: own.Ref}
	for _, built := range b.built {
		data, err := os.ReadFile(built.path)
		if err != nil {
			return nil, err
		}
		kind, name := "application", "hocket"
		if built.name == "libhocket.so" {
			kind, name = "library", built.name
		}
		c := component{Type: kind, Ref: "binary:" + built.name, Name: name, Version: b.version, Licenses: licence("Apache-2.0"),
			Hashes:     []hash{{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(data))}},
			Properties: []property{{"go.version", built.info.GoVersion}, {"go.path", built.info.Path}}}
		for _, s := range built.info.Settings {
			c.Properties = append(c.Properties, property{"go.build." + s.Key, s.Value})
		}
		out.Components = append(out.Components, c)
		whole.DependsOn = append(whole.DependsOn, c.Ref)
		r := relation{Ref: c.Ref}
		for _, d := range modules {
			uses := d.path == standard
			for _, m := range built.info.Deps {
				uses = uses || m.Path == d.path
			}
			if uses {
				r.DependsOn = append(r.DependsOn, d.purl())
			}
		}
		out.Dependencies = append(out.Dependencies, r)
	}
	out.Dependencies = slices.Insert(out.Dependencies, 0, whole)
	for _, d := range modules {
		c := component{Type: "library", Ref: d.purl(), Name: d.path, Version: d.version, PURL: d.purl(), Licenses: licence(d.licence)}
		if d.sum != "" {
			c.Properties = []property{{"go.sum", d.sum}}
		}
		out.Components = append(out.Components, c)
	}
	text, err := json.MarshalIndent(out, "", "  ")
	return append(text, '\n'), err
}
