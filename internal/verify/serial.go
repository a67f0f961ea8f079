package verify

import "hocket.example/hocket/internal/plan"

// serialHang simulates the plan with each rank's commands executed one by one in issue order. A machine executes
// commands in this order if its streams share a hardware queue or if kernel launches block. If this order deadlocks,
// serialHang returns a warning that describes where; otherwise it returns nil. A program that does not deadlock in this
// order does not deadlock on any machine.
func serialHang(ix *index) *Finding {
	byRank := make([][]int32, ix.p.Ranks)
	for i := range ix.p.Cmds {
		r := ix.p.Cmds[i].Rank
		byRank[r] = append(byRank[r], int32(i))
	}
	s := newSimOn(ix, nil, laning{of: func(c *plan.Cmd) int32 { return c.Rank }, cmds: byRank})
	s.run()
	f := s.deadlock()
	if f == nil {
		return nil
	}
	f.Warning, f.Kind = true, KindSerial
	f.Message = "the program depends on streams that run concurrently: if each rank's ops run one by one in issue order, " + place(ix, f.Acts[0]) + " " + f.Acts[0].What
	f.Help = "issue the ops for which others wait first; otherwise the program hangs if the launch queue is full, " +
		"if launches block, or with CUDA_DEVICE_MAX_CONNECTIONS=1"
	return f
}
