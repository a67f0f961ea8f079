"""Writes recurrent.pt2 as torch.export.save does, for tests where there is no torch 2:

    python3 recurrent.py recurrent.pt2

The model keeps a row of HIDDEN numbers for each of SLOTS sequences and begins a sequence, at position 0, with zeros:

    class Recurrent(torch.nn.Module):
        def forward(self, ids, at, sees):
            kept = self.hidden * (at > 0).float()
            hidden = torch.tanh(self.step(kept) + self.table(ids).view(SLOTS, HIDDEN))
            self.hidden.copy_(hidden)
            return self.head(hidden).argmax(-1, keepdim=True)
"""

import json
import random
import struct
import sys
import zipfile

SLOTS, HIDDEN, VOCAB = 3, 8, 12
I64, F32, BOOL = 5, 7, 12
values, nodes = {}, []


def meta(dtype, shape):
    strides = [{"as_int": 1}] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = {"as_int": strides[i + 1]["as_int"] * shape[i + 1]}
    return {"dtype": dtype, "sizes": [{"as_int": n} for n in shape], "strides": strides, "storage_offset": {"as_int": 0},
            "layout": 7, "device": {"type": "cpu", "index": None}, "requires_grad": False}


def tensor(name, dtype, *shape):
    values[name] = meta(dtype, shape)
    return {"as_tensor": {"name": name}}


def node(op, out, kind, shape, **operands):
    nodes.append({"target": "torch.ops.aten." + op, "inputs": [{"name": k, "arg": v, "kind": 1} for k, v in operands.items()],
                  "outputs": [tensor(out, kind, *shape)], "metadata": {}})
    return nodes[-1]["outputs"][0]


def main(path):
    shapes = {"table.weight": (VOCAB, HIDDEN), "step.weight": (HIDDEN, HIDDEN), "head.weight": (VOCAB, HIDDEN)}
    params = {name: tensor("p_" + name.replace(".", "_"), F32, *shape) for name, shape in shapes.items()}
    state = tensor("b_hidden", F32, SLOTS, HIDDEN)
    inputs = [tensor(name, I64, SLOTS, 1) for name in ("ids", "at", "sees")]
    after = node("gt.Scalar", "after", BOOL, (SLOTS, 1), self=inputs[1], other={"as_int": 0})
    factor = node("_to_copy.default", "factor", F32, (SLOTS, 1), self=after, dtype={"as_scalar_type": F32})
    kept = node("mul.Tensor", "kept", F32, (SLOTS, HIDDEN), self=state, other=factor)
    moved = node("linear.default", "moved", F32, (SLOTS, HIDDEN), input=kept, weight=params["step.weight"])
    rows = node("embedding.default", "rows", F32, (SLOTS, 1, HIDDEN), weight=params["table.weight"], indices=inputs[0])
    flat = node("view.default", "flat", F32, (SLOTS, HIDDEN), self=rows, size={"as_ints": [SLOTS, HIDDEN]})
    both = node("add.Tensor", "both", F32, (SLOTS, HIDDEN), self=moved, other=flat)
    hidden = node("tanh.default", "hidden", F32, (SLOTS, HIDDEN), self=both)
    logits = node("linear.default", "logits", F32, (SLOTS, VOCAB), input=hidden, weight=params["head.weight"])
    following = node("argmax.default", "following", I64, (SLOTS, 1), self=logits, dim={"as_int": -1}, keepdim={"as_bool": True})
    specs = [{"parameter": {"arg": a["as_tensor"], "parameter_name": name}} for name, a in params.items()]
    specs.append({"buffer": {"arg": state["as_tensor"], "buffer_name": "hidden", "persistent": True}})
    specs += [{"user_input": {"arg": a}} for a in inputs]
    program = {
        "graph_module": {
            "graph": {"inputs": [*params.values(), state, *inputs], "outputs": [hidden, following], "nodes": nodes,
                      "tensor_values": values},
            "signature": {"input_specs": specs, "output_specs": [
                {"buffer_mutation": {"arg": hidden["as_tensor"], "buffer_name": "hidden"}}, {"user_output": {"arg": following}}]}},
        "schema_version": {"major": 8, "minor": 17}}
    files = {"models/model.json": json.dumps(program), "byteorder": "little", "archive_format": "pt2"}
    config, draw = {}, random.Random(1)
    for i, (name, shape) in enumerate({**shapes, "hidden": (SLOTS, HIDDEN)}.items()):
        n = shape[0] * shape[1]
        numbers = [0.0] * n if name == "hidden" else [draw.randint(-8, 8) / 8 for _ in range(n)]
        config[name] = {"path_name": f"weight_{i}", "is_param": name != "hidden", "use_pickle": False,
                        "tensor_meta": meta(F32, shape)}
        files[f"data/weights/weight_{i}"] = struct.pack(f"<{n}f", *numbers)
    files["data/weights/model_weights_config.json"] = json.dumps({"config": config})
    files["data/constants/model_constants_config.json"] = json.dumps({"config": {}})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for name, data in files.items():
            z.writestr(zipfile.ZipInfo("model/" + name, (2020, 1, 1, 0, 0, 0)), data,
                       zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED)


if __name__ == "__main__":
    main(sys.argv[1])
