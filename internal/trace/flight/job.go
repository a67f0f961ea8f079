package flight

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"hocket.example/hocket/internal/ranklist"
	"hocket.example/hocket/internal/trace"
)

// leastBetweenJobs is the smallest time between the end of a collective on one rank and its call on another rank that
// shows that the two records are of two jobs. The clocks of hosts differ by less.
const leastBetweenJobs = 10 * time.Second

// OneJob returns an error if records cannot be of one job: if a group has different ranks in two records, if a rank
// calls collectives of a group that it does not belong to, or if a collective has completed on one rank long before
// another rank calls it. names are the names of the records' files. Ranks that are not numbered yet are not checked.
func OneJob(records []*Record, names []string) error {
	const help = "they are of different jobs: give the records of one job"
	type owner struct {
		members []int
		of      int // index of the record
	}
	groups := map[string]owner{}
	for i, r := range records {
		for _, key := range slices.Sorted(maps.Keys(r.Groups)) {
			members := slices.Sorted(slices.Values(r.Groups[key].Members))
			if len(members) == 0 {
				continue
			}
			g, known := groups[key]
			if !known {
				groups[key] = owner{members, i}
			} else if !slices.Equal(g.members, members) {
				return fmt.Errorf("group %q has the ranks %s in %s, and %s in %s; %s", r.GroupName(key),
					ranklist.String(g.members), names[g.of], ranklist.String(members), names[i], help)
			}
		}
	}
	for i, r := range records {
		for _, e := range r.Entries {
			if g, known := groups[e.Group]; known && r.Rank >= 0 && !slices.Contains(g.members, r.Rank) {
				return fmt.Errorf("%s is of rank %d, and calls %s in group %q, whose ranks are %s in %s; %s, or mend the "+
					"rank in the file's name", names[i], r.Rank, e.Op, r.GroupName(e.Group), ranklist.String(g.members),
					names[g.of], help)
			}
		}
	}
	return checkTimes(records, names, help)
}

// checkTimes returns an error if a collective has completed on one rank long before another rank calls it. checkTimes
// considers only collectives that no rank leaves before all ranks have entered.
func checkTimes(records []*Record, names []string, help string) error {
	type call struct {
		group, op string
		seq       int64
	}
	type ended struct {
		at int64
		of int
	}
	first := map[call]ended{}
	each := func(do func(i int, k call, e *Entry)) {
		for i, r := range records {
			for j := range r.Entries {
				if e := &r.Entries[j]; !e.P2P && trace.EndsTogether(e.Op) {
					do(i, call{e.Group, e.Op, e.Seq}, e)
				}
			}
		}
	}
	each(func(i int, k call, e *Entry) {
		if at, known := first[k]; e.Completed > 0 && (!known || e.Completed < at.at) {
			first[k] = ended{e.Completed, i}
		}
	})
	var err error
	each(func(i int, k call, e *Entry) {
		f, known := first[k]
		if gap := time.Duration(e.Created - f.at); known && err == nil && gap > leastBetweenJobs {
			err = fmt.Errorf("call %d of group %q, %s, begins in %s %v after it has completed in %s, by the hosts' clocks; %s",
				k.seq, records[i].GroupName(k.group), k.op, names[i], gap.Round(time.Second), names[f.of], help)
		}
	})
	return err
}
