package verify

func lostOverlap(ix *index) []Finding { return nil }

func redundantWaits(ix *index) []Finding { return nil }
