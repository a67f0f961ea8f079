// Package devicetest is the suite that every machine must pass. The suite tests the behaviour that package device
// documents, and uses only that package's interfaces.
//
// Results are compared with plain arithmetic in float64 in this package, so the suite shares no code with the code
// under test. Features that a machine lacks (according to Caps, or an error that wraps device.ErrUnsupported) are
// skipped with the reason.
package devicetest

import (
	"testing"

	"hocket.example/hocket/internal/device"
)

// Run runs the whole suite. Each test calls the function open. The calls may return different machines, which must
// behave alike.
func Run(t *testing.T, open func(t *testing.T) device.Machine) {
	run(t, open, contents)
	run(t, open, orders)
}

// RunBeside is like Run, but runs the tests of memory and kernels concurrently, each in separate worlds. Use it for
// machines that take long to prepare kernels.
func RunBeside(t *testing.T, open func(t *testing.T) device.Machine) {
	run(t, open, orders)
	for _, test := range contents {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(&rig{T: t, m: open(t), beside: true})
		})
	}
}

// RunOrders runs the tests whose outcome may depend on the order in which streams continue. Packages with a machine
// that draws the order at random call it once for each seed.
func RunOrders(t *testing.T, open func(t *testing.T) device.Machine) { run(t, open, orders) }

type test struct {
	name string
	run  func(*rig)
}

func run(t *testing.T, open func(t *testing.T) device.Machine, tests []test) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.run(&rig{T: t, m: open(t)})
		})
	}
}

// contents is the list of the tests of memory, kernels and refused operations.
var contents = []test{
	{"Worlds", testWorlds},
	{"Memory", testMemory},
	{"Borrow", testBorrow},
	{"HostCopies", testHostCopies},
	{"Copies", testCopies},
	{"OverlappingCopies", testOverlappingCopies},
	{"Moves", testMoves},
	{"BadViews", testBadViews},
	{"Elementwise", testElementwise},
	{"Functions", testFunctions},
	{"Halves", testHalves},
	{"Expand", testExpand},
	{"Cast", testCast},
	{"Axes", testAxes},
	{"Softmax", testSoftmax},
	{"Norms", testNorms},
	{"Attention", testAttention},
	{"NormGrads", testNormGrads},
	{"AttentionGrad", testAttentionGrad},
	{"AttentionWithLSE", testAttentionWithLSE},
	{"IndexAdd", testIndexAdd},
	{"Lengths", testLengths},
	{"IndexCopy", testIndexCopy},
	{"KeptInGraph", testKeptInGraph},
	{"Rope", testRope},
	{"Ropes", testRopes},
	{"Argmax", testArgmax},
	{"Iota", testIota},
	{"Grouped", testGrouped},
	{"Scaled", testScaled},
	{"Sorted", testSorted},
	{"TakeAlong", testTakeAlong},
	{"Bincount", testBincount},
	{"Embedding", testEmbedding},
	{"BadIDs", testBadIDs},
	{"Uneven", testUneven},
	{"BadCounts", testBadCounts},
	{"BadCountsInGraph", testBadCountsInGraph},
	{"Concat", testConcat},
	{"Slots", testSlots},
	{"Linear", testLinear},
	{"Matmul", testMatmul},
	{"Reductions", testReductions},
	{"InPlace", testInPlace},
	{"Chains", testChains},
	{"NotNumbers", testNotNumbers},
	{"IntegersWrap", testIntegersWrap},
	{"BadKernels", testBadKernels},
	{"BadEvents", testBadEvents},
	{"BadCounters", testBadCounters},
	{"Closed", testClosed},
}

// orders is the list of the tests of streams, events, counters and the end of worlds.
var orders = []test{
	{"SameBits", testSameBits},
	{"Events", testEvents},
	{"EventsAcrossRanks", testEventsAcrossRanks},
	{"EventAgain", testEventAgain},
	{"EventElsewhere", testEventElsewhere},
	{"Counters", testCounters},
	{"CounterThresholds", testCounterThresholds},
	{"Observer", testObserver},
	{"Syncs", testSyncs},
	{"Deadlock", testDeadlock},
	{"Abort", testAbort},
	{"Deadline", testDeadline},
	{"OpenContext", testOpenContext},
	{"Fault", testFault},
	{"Braid", testBraid},
	{"Graph", testGraph},
	{"MovesOrdered", testMovesOrdered},
	{"GraphObserved", testGraphObserved},
	{"BadGraphs", testBadGraphs},
}
