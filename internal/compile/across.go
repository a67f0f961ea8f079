package compile

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"hocket.example/hocket/internal/comm"
	"hocket.example/hocket/internal/device"
	"hocket.example/hocket/internal/files"
	"hocket.example/hocket/internal/machine"
	"hocket.example/hocket/internal/world"
)

// acrossPath returns the path of the file that stores the measured tier (the speed of the network) between the given
// number of nodes of a device machine.
func acrossPath(device string, nodes int) (string, error) {
	dir, err := comm.Folder()
	return filepath.Join(filepath.Dir(dir), "across", fmt.Sprintf("%s-%d.json", device, nodes)), err
}

// KeepAcross writes a measured tier to the file from which AgreeAcross reads it.
func KeepAcross(device string, nodes int, tier *machine.Across) error {
	path, err := acrossPath(device, nodes)
	if err != nil {
		return err
	}
	return files.WriteKept(path, func(w io.Writer) error { return json.NewEncoder(w).Encode(tier) })
}

// AgreeAcross reads the measured tier between nodes that is stored on the host of process 0. AgreeAcross returns nil if
// no tier is stored, if the stored tier cannot be used, or if all processes are on one node. All processes must call
// it, and all get the same result.
func AgreeAcross(ctx context.Context, dev device.Machine) (*machine.Across, error) {
	peers := dev.Peers()
	if peers == nil || peers.Nodes() == 1 {
		return nil, nil
	}
	var kept []byte
	if peers.Process() == 0 {
		if path, err := acrossPath(dev.Name(), peers.Nodes()); err == nil {
			kept, _ = files.ReadKept(path, world.MaxValue) // a value that cannot be read counts as absent
		}
	}
	all, err := peers.Agree(ctx, "the tier between nodes", kept)
	if err != nil {
		return nil, err
	}
	tier, err := machine.ParseAcross(all[0])
	if err != nil {
		return nil, nil
	}
	return tier, nil
}
