package plan

// Rank holds the commands of one rank, in issue order, before they are matched with the commands of other ranks.
// Some fields have another meaning than in a Plan. The field Stream is an index in the rank's own streams, of which
// main is the first. Event is an index in the rank's own events. Coll is an index in Joins. The Pair of a group's
// entry is an index in Ends.
type Rank struct {
	Rank    int32
	Streams []Stream
	Events  int
	Cmds    []Cmd
	Joins   []Join
	Ends    []End
	// Inputs and Outputs are the rank's blocks of the plan's Inputs and Outputs.
	Inputs, Outputs []Ref
}

// Join is a rank's part of a collective: the next one that the rank issues to the given team.
type Join struct {
	Team []int // ranks in team order
	Coll Coll  // description of the collective, without Channel, Seq and Parts
	Part CollPart
}

// End is one side of a transfer: the next send, or the next recv, between two ranks along an axis of a mesh.
type End struct {
	Axis string
	Peer int32
	Ref  Ref
}
