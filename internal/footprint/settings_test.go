package footprint

import (
	"strings"
	"testing"
)

// TestSettings checks the effect of each setting of PYTORCH_CUDA_ALLOC_CONF, compared with the default. Sizes are in
// MiB.
func TestSettings(t *testing.T) {
	reserved := func(text string, sizes ...int64) int64 {
		t.Helper()
		_, s, err := ParsePolicy("caching" + text)
		if err != nil {
			t.Fatal(err)
		}
		a := &Allocator{settings: s}
		for _, mib := range sizes { // each block is freed before the next is allocated
			b, _ := a.Alloc(mib<<20, 0)
			a.Free(b, 0, 0)
		}
		return a.Reserved >> 20
	}
	for _, c := range []struct {
		settings string
		sizes    []int64
		want     int64
	}{
		// By default a free block of 100 MiB serves a request for 30 MiB. With max_split_size_mb:64, blocks of 64 MiB
		// and more are not split.
		{"", []int64{100, 30}, 100},
		{",max_split_size_mb:64", []int64{100, 30}, 100 + 30},
		// the free block is less than 20 MiB larger, so it is used whole
		{",max_split_size_mb:64", []int64{100, 90}, 100},
		{",max_split_size_mb:64", []int64{100, 70}, 100 + 70}, // the free block is 30 MiB larger, so it is not used
		// For 30 MiB and then 50 MiB, two segments are reserved, or one segment grows in pages of 20 MiB, first to 40
		// and then to 60 MiB.
		{"", []int64{30, 50}, 30 + 50},
		{",expandable_segments:True", []int64{30, 50}, 60},
		{",expandable_segments:True", []int64{50, 30}, 60},
		{",expandable_segments:False", []int64{30, 50}, 30 + 50},
		// Half of 200 MiB may be reserved. When a segment of 90 MiB is requested, the older of the two free segments
		// (60 and 80 MiB) is returned to the device.
		{"", []int64{60, 80, 90}, 60 + 80 + 90},
		{",garbage_collection_threshold:0.5,memory_mb:200", []int64{60, 80, 90}, 80 + 90},
		{",garbage_collection_threshold:0.9,memory_mb:200", []int64{60, 80, 90}, 60 + 80 + 90},
	} {
		if got := reserved(c.settings, c.sizes...); got != c.want {
			t.Errorf("%q, %v: %d MiB reserved, want %d", c.settings, c.sizes, got, c.want)
		}
	}
}

// TestSettingsDoNotFreeWhatWaits checks that no setting frees memory that waits for other streams, which nvFuser's
// issue 4466 asks.
func TestSettingsDoNotFreeWhatWaits(t *testing.T) {
	p := forumPlan(t, 8)
	plain, err := Simulate(p, "deferred-free", Speed{})
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []string{",expandable_segments:True", ",max_split_size_mb:64",
		",garbage_collection_threshold:0.6,memory_mb:3000"} {
		s, err := Simulate(p, "deferred-free"+settings, Speed{})
		if err != nil {
			t.Fatal(err)
		}
		if s.Waiting != plain.Waiting || s.ReservedPeak < plain.ReservedPeak {
			t.Errorf("%s: %d reserved, %d waiting; without the setting %d and %d", settings, s.ReservedPeak, s.Waiting,
				plain.ReservedPeak, plain.Waiting)
		}
	}
}

func TestWrongPolicies(t *testing.T) {
	for text, want := range map[string]string{
		"lazy":                              `there is no policy "lazy"`,
		"caching,roundup:1":                 `there is no setting "roundup"`,
		"caching,max_split_size_mb:20":      `max_split_size_mb cannot be "20"`,
		"caching,expandable_segments:maybe": `expandable_segments cannot be "maybe"`,
		"caching,garbage_collection_threshold:1.5,memory_mb:1": `garbage_collection_threshold cannot be "1.5"`,
		"caching,garbage_collection_threshold:0.5":             "set memory_mb",
		"caching,memory_mb:NaN":                                `memory_mb cannot be "NaN"`,
	} {
		if _, _, err := ParsePolicy(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", text, want, err)
		}
	}
}
