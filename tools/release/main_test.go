package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

func TestArchive(t *testing.T) {
	when := time.Unix(1800000000, 0)
	files := []file{{"hocket", bytes.Repeat([]byte("program"), 10000)}, {"LICENSE", []byte("text")}}
	packed, err := archive("hocket-1.2.3-linux", when, files)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for i, want := range files {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || h.Name != "hocket-1.2.3-linux/"+want.name || !bytes.Equal(got, want.data) || !h.ModTime.Equal(when) ||
			h.Uid != 0 || (h.Mode == 0o755) != (i == 0) {
			t.Errorf("entry %d is %+v with %d bytes, %v", i, h, len(got), err)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("after the last entry: %v", err)
	}
}

func TestChanges(t *testing.T) {
	const text = "# Changelog\n\n## [Unreleased]\n\n%s## [0.2.0] - 2027-01-01\n\n- second\n\n## [0.1.0] - 2026-12-01\n\n### Added\n\n- first\n"
	fresh := strings.Replace(text, "%s", "- new\n\n", 1)
	released := strings.Replace(text, "%s", "", 1)
	for _, tc := range []struct {
		text, version, body string
		own, fails          bool
	}{
		{fresh, "0.1.0", "### Added\n\n- first", true, false},
		{fresh, "0.2.0", "- second", true, false},
		{fresh, "0.3.0", "- new", false, false},
		{released, "0.2.0", "- second", true, false},
		{released, "0.3.0", "", false, true}, // nothing is unreleased
	} {
		body, own, err := changes(tc.text, tc.version)
		if body != tc.body || own != tc.own || (err != nil) != tc.fails {
			t.Errorf("notes of %s: %q, %t, %v; want %q, %t", tc.version, body, own, err, tc.body, tc.own)
		}
	}
}

func TestEqual(t *testing.T) {
	a := withSums([]file{{"b", []byte("1")}, {"a", []byte("2")}})
	if err := equal(a, withSums([]file{{"a", []byte("2")}, {"b", []byte("1")}})); err != nil {
		t.Error(err)
	}
	err := equal(a, withSums([]file{{"a", []byte("2")}, {"b", []byte("0")}}))
	if err == nil || err.Error() != "two builds of one commit differ in b, SHA256SUMS" {
		t.Errorf("%v, want b and SHA256SUMS", err)
	}
	want := "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35  a\n" +
		"6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b  b\n"
	if got := string(a[2].data); got != want {
		t.Errorf("checksums are\n%swant\n%s", got, want)
	}
}

func TestLicenceFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"LICENSE", "PATENTS", "main.go", "license.go/x.go", "THIRD_PARTY_LICENSES/Sun-LICENSE", "graph/testdata/LICENSE"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, err := licenceFiles(dir)
	var names []string
	for _, f := range list {
		names = append(names, f.name)
	}
	if got, want := strings.Join(names, " "), "LICENSE PATENTS THIRD_PARTY_LICENSES/Sun-LICENSE"; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestIdentify(t *testing.T) {
	for text, want := range map[string]string{
		"  Apache License\n   Version 2.0, January 2004\n":                                                               "Apache-2.0",
		"MIT License\n\nPermission is hereby granted, free of charge, to any person\nTHE SOFTWARE IS PROVIDED \"AS IS\"": "MIT",
		"* Redistributions in binary\nform must\n   * Neither the name of Google":                                        "BSD-3-Clause",
		"* Redistributions in binary form must":                                                                          "",
		"GNU GENERAL PUBLIC LICENSE":                                                                                     "",
	} {
		got, err := identify(&dependency{path: "example.org/m", texts: []file{{"PATENTS", []byte("MIT")}, {"LICENSE.txt", []byte(text)}}})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := identify(&dependency{path: "example.org/m"}); err == nil {
		t.Error("a module without a licence is accepted")
	}
}

// TestBill: each binary depends on the modules that its linker recorded, and no others.
func TestBill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("1"), 0o755); err != nil {
		t.Fatal(err)
	}
	info := func(deps ...*debug.Module) *buildinfo.BuildInfo {
		return &buildinfo.BuildInfo{GoVersion: "go1.26.0", Path: "hocket.example/hocket/cmd/hocket", Deps: deps,
			Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}}}
	}
	b := &builder{version: "1.2.3", commit: "4f2c", when: time.Unix(1800000000, 0).UTC(), built: []binary{
		{"linux-arm64", path, info(&debug.Module{Path: "example.org/a"}, &debug.Module{Path: "example.org/b"})},
		{"linux-arm64-static", path, info(&debug.Module{Path: "example.org/b"})}}}
	text, err := b.bill([]*dependency{{path: "example.org/a", version: "v1", licence: "MIT"}, {path: "example.org/b", version: "v2", licence: "MIT"},
		{path: standard, version: "1.26.0", licence: "BSD-3-Clause"}})
	if err != nil {
		t.Fatal(err)
	}
	var got bill
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	depends := map[string]string{}
	for _, r := range got.Dependencies {
		depends[r.Ref] = strings.Join(r.DependsOn, " ")
	}
	for ref, want := range map[string]string{
		"hocket":                    "binary:linux-arm64 binary:linux-arm64-static",
		"binary:linux-arm64":        "pkg:golang/example.org/a@v1 pkg:golang/example.org/b@v2 pkg:golang/std@1.26.0",
		"binary:linux-arm64-static": "pkg:golang/example.org/b@v2 pkg:golang/std@1.26.0",
	} {
		if depends[ref] != want {
			t.Errorf("%s depends on %q, want %q", ref, depends[ref], want)
		}
	}
	if n := len(got.Components); n != 5 || got.Components[0].Hashes[0].Content != "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b" {
		t.Errorf("%d components, want 5: %s", n, text)
	}
}
