"""Writes archives as torch.export.save does, of a small model, for tests where there is no torch 2.

    python3 pt2.py FILE

The model has three layers, each x + down(silu(up(x))), and keeps in a buffer the sum of all their results, which it returns
times the result.
"""

import json
import struct
import sys
import zipfile

TOKENS, HIDDEN, INNER, LAYERS = 2, 4, 8, 3
_F32 = 7  # torch's number of float32


def _meta(shape):
    strides, n = [], 1
    for e in reversed(shape):
        strides.insert(0, {"as_int": n})
        n *= e
    return {"dtype": _F32, "sizes": [{"as_int": e} for e in shape], "strides": strides, "storage_offset": {"as_int": 0},
            "layout": 7, "device": {"type": "cpu", "index": None}, "requires_grad": False}


def weights():
    """The weights of the model, as lists of numbers by name, each with its shape."""
    all_weights = {}
    for layer in range(LAYERS):
        for name, shape in ((f"layers.{layer}.up.weight", (INNER, HIDDEN)), (f"layers.{layer}.down.weight", (HIDDEN, INNER))):
            n = shape[0] * shape[1]
            all_weights[name] = shape, [((7 * i + 3 * layer + len(name)) % 11 - 5) / 8 for i in range(n)]
    return all_weights


def write(path, state=True, blank=False):
    """Writes the model, without the buffer if state is false, and with zeros for weights if blank."""
    values, nodes = {}, []

    def tensor(name, shape):
        values[name] = _meta(shape)
        return {"as_tensor": {"name": name}}

    def node(op, out, shape, module, **operands):
        nodes.append({"target": f"torch.ops.aten.{op}.default" if "." not in op else f"torch.ops.aten.{op}",
                      "inputs": [{"name": k, "arg": v, "kind": 1} for k, v in operands.items()],
                      "outputs": [tensor(out, shape)],
                      "metadata": {"nn_module_stack": f"L__self__,,Model;L__self___{module},{module},torch.nn.Linear",
                                   "stack_trace": f'File "model.py", line {len(nodes) + 10}, in forward'}})
        return nodes[-1]["outputs"][0]

    params = {name: tensor("p_" + name.replace(".", "_"), shape) for name, (shape, _) in weights().items()}
    specs = [{"parameter": {"arg": arg["as_tensor"], "parameter_name": name}} for name, arg in params.items()]
    rows, inner = (TOKENS, HIDDEN), (TOKENS, INNER)
    if state:
        total = tensor("b_total", rows)
        specs.append({"buffer": {"arg": total["as_tensor"], "buffer_name": "total", "persistent": True}})
    x = tensor("x", rows)
    specs.append({"user_input": {"arg": x}})
    for i in range(LAYERS):
        up = node("linear", f"up{i}", inner, f"layers.{i}.up", input=x, weight=params[f"layers.{i}.up.weight"])
        act = node("silu", f"silu{i}", inner, f"layers.{i}", self=up)
        down = node("linear", f"down{i}", rows, f"layers.{i}.down", input=act, weight=params[f"layers.{i}.down.weight"])
        x = node("add.Tensor", f"add{i}", rows, f"layers.{i}", self=x, other=down)
    outputs = []
    if state:
        total = node("add.Tensor", "add_total", rows, "total", self=total, other=x)
        x = node("mul.Tensor", "mul", rows, "total", self=x, other=total)
        outputs.append({"buffer_mutation": {"arg": total["as_tensor"], "buffer_name": "total"}})
    outputs.append({"user_output": {"arg": x}})
    args = [next(iter(s.values()))["arg"] for s in specs]
    program = {
        "graph_module": {
            "graph": {"inputs": [a if "as_tensor" in a else {"as_tensor": a} for a in args],
                      "outputs": [{"as_tensor": o["user_output"]["arg"]["as_tensor"]} if "user_output" in o else
                                  {"as_tensor": o["buffer_mutation"]["arg"]} for o in outputs],
                      "nodes": nodes, "tensor_values": values},
            "signature": {"input_specs": specs, "output_specs": outputs}},
        "schema_version": {"major": 8, "minor": 17}}
    files = {"models/model.json": json.dumps(program), "byteorder": "little", "archive_format": "pt2"}
    config = {}
    for i, (name, (shape, numbers)) in enumerate(weights().items()):
        config[name] = {"path_name": f"weight_{i}", "is_param": True, "use_pickle": False, "tensor_meta": _meta(shape)}
        files[f"data/weights/weight_{i}"] = struct.pack(f"<{len(numbers)}f", *([0] * len(numbers) if blank else numbers))
    if state:
        config["total"] = {"path_name": "weight_total", "is_param": False, "use_pickle": False, "tensor_meta": _meta(rows)}
        files["data/weights/weight_total"] = struct.pack(f"<{TOKENS * HIDDEN}f", *([1.0] * TOKENS * HIDDEN))
    files["data/weights/model_weights_config.json"] = json.dumps({"config": config})
    files["data/constants/model_constants_config.json"] = json.dumps({"config": {}})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        for name, data in files.items():
            z.writestr(zipfile.ZipInfo("model/" + name, (2020, 1, 1, 0, 0, 0)), data,
                       zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED)


if __name__ == "__main__":
    write(sys.argv[1])
