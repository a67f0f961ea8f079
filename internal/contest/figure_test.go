package contest

import "testing"

func TestFigure(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    Figure
	}{
		{nil, Figure{}},
		{[]float64{3}, Figure{3, 0}},
		{[]float64{4, 1}, Figure{2.5, 1.5}},
		{[]float64{100, 1, 3, 2, 4}, Figure{3, 2}}, // an outlier affects neither
	} {
		if got := FigureOf(c.samples); got != c.want {
			t.Errorf("%v: got %v, want %v", c.samples, got, c.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		diff Figure
		want string
	}{
		{Figure{-5, 4}, "faster"}, {Figure{5, 4}, "slower"},
		{Figure{-4, 4}, "no difference beyond the spread"}, {Figure{0, 0}, "no difference beyond the spread"},
	} {
		if got := Verdict(c.diff); got != c.want {
			t.Errorf("%v: %s", c.diff, got)
		}
	}
	if d := FigureOf(Differences([]float64{10, 21, 29}, []float64{11, 20, 30})); d != (Figure{-1, 1}) {
		t.Errorf("paired differences: %v", d)
	}
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB"} {
		if got := BytesText(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
