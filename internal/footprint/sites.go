package footprint

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"hocket.example/hocket/internal/pickle"
)

// SiteBytes is the number and total size of the blocks that one call site allocated.
type SiteBytes struct {
	// Site is the call site in the program, for example "train.py:31 forward". Site is empty if the snapshot does not
	// contain the call site.
	Site   string `json:"site"`
	Bytes  int64  `json:"bytes"`
	Blocks int    `json:"blocks"`
}

// Name returns the call site, or a text that says that the call site is unknown.
func (s *SiteBytes) Name() string {
	return cmp.Or(s.Site, "unknown: recorded without stacks, or allocated before the record")
}

// mostFrames is the maximum number of frames of a stack that are searched for a frame of the program.
const mostFrames = 256

// siteOf returns the innermost frame of a stack that belongs to the program: a frame in a Python file that belongs
// neither to torch nor to Python's standard library. If there is no such frame, it returns the innermost Python frame.
// If there is no Python frame, it returns the first frame.
func (d *snapshotReader) siteOf(v any) string {
	l, ok := v.(*pickle.List)
	if !ok || len(l.Items) == 0 {
		return ""
	}
	if site, ok := d.sites[l]; ok { // torch writes a stack only once for all events that share it
		return site
	}
	site, rank := "", 0
	for _, x := range l.Items[:min(len(l.Items), mostFrames)] {
		m, ok := x.(*pickle.Dict)
		if !ok {
			continue
		}
		file, _ := m.Get("filename").(string)
		name, _ := m.Get("name").(string)
		line, _ := m.Get("line").(int64)
		now := 1
		if strings.HasSuffix(file, ".py") || strings.HasPrefix(file, "<") && line > 0 {
			now = 2
			if !ofLibrary(file) {
				now = 3
			}
		}
		if now > rank {
			site, rank = fmt.Sprintf("%s:%d %s", path.Base(strings.ReplaceAll(file, `\`, "/")), line, name), now
			if now == 1 && line == 0 {
				site = name
			}
		}
	}
	if len(site) > 200 {
		site = site[:200]
	}
	if d.sites == nil {
		d.sites = map[*pickle.List]string{}
	}
	d.sites[l] = site
	return site
}

// ofLibrary reports whether a file belongs to torch or to Python's standard library.
func ofLibrary(file string) bool {
	file = strings.ReplaceAll(file, `\`, "/")
	return strings.Contains(file, "/torch/") || strings.Contains(file, "/lib/python") &&
		!strings.Contains(file, "site-packages")
}

// ledger tracks the blocks that wait for other streams, by the call site that allocated them.
type ledger struct {
	site    map[int64]string // by address of a block: the block's call site
	waiting map[string]SiteBytes
}

func newLedger(s *Snapshot) *ledger {
	l := &ledger{site: map[int64]string{}, waiting: map[string]SiteBytes{}}
	held := map[int64]string{} // blocks that were allocated before the trace and that no event of the trace mentions
	for _, g := range s.Segments {
		at := g.Addr
		for _, b := range g.Blocks {
			held[at] = b.Site
			at += b.Bytes
		}
	}
	maps.Copy(l.site, held)
	return l
}

// event applies one step of the allocator.
func (l *ledger) event(e *Event) {
	switch e.Action {
	case "alloc":
		l.site[e.Addr] = e.Site
	case "free_requested":
		l.add(l.site[e.Addr], e.Bytes, 1)
	case "free_completed":
		l.add(l.site[e.Addr], -e.Bytes, -1)
	}
}

func (l *ledger) add(site string, bytes int64, blocks int) {
	w := l.waiting[site]
	w.Site, w.Bytes, w.Blocks = site, w.Bytes+bytes, w.Blocks+blocks
	l.waiting[site] = w
}

// bySite returns the waiting bytes of each call site, the largest number first.
func (l *ledger) bySite() []SiteBytes {
	var list []SiteBytes
	for _, w := range l.waiting {
		if w.Bytes > 0 {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b SiteBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Site, b.Site))
	})
	return list
}
