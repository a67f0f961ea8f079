package nvfuser

func (t *translator) inferIndices() {}
