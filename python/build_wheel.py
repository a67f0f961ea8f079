"""Makes the wheel: build_wheel.py LIBRARY COMMAND FOLDER [LICENCES] puts hocket-VERSION-py3-none-….whl into FOLDER.

The version is that of the library. LICENCES is a file with the licences of what the library contains, which `make
release` collects. A wheel is a zip file with a list of its files' hashes (PEP 427), so nothing is needed but Python.
The same files give the same bytes: times, modes and the order of entries are fixed.
"""

import base64
import ctypes
import hashlib
import json
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).parent
GLIBC = 2, 34  # of the oldest systems on which the wheel runs
METADATA = """Metadata-Version: 2.4
Name: hocket
Version: {version}
Summary: Multi-GPU host programs: proved, overlapped, and run with fast collectives
Requires-Python: >=3.9
License-Expression: Apache-2.0
"""
# torch.compile finds its backends there.
ENTRY_POINTS = """[torch_dynamo_backends]
hocket = hocket:compile_backend
"""


def build_of(library, command):
    """The version with the commit, which the library and the command must have in common."""
    get = ctypes.CDLL(str(pathlib.Path(library).resolve())).hocket_build
    get.restype = ctypes.c_char_p
    build = get().decode()
    text = subprocess.run([pathlib.Path(command).resolve(), "version", "--json"], check=True, capture_output=True).stdout
    if (other := json.loads(text)["hocket"]) != build:
        sys.exit(f"{library} is of hocket {build}, and {command} of {other}: build both from one commit")
    return build


def main(library, command, folder, licences=None):
    build = build_of(library, command)
    version = build.partition("+")[0]
    tag = "py3-none-manylinux_{}_{}_{}".format(*GLIBC, platform.machine())
    files = {f"hocket/{p.name}": p.read_bytes() for p in sorted((HERE / "hocket").glob("*.py"))}
    files["hocket/_build.py"] = f'"""Written by build_wheel.py."""\n\nVERSION = "{version}"\nBUILD = "{build}"\n'.encode()
    files["hocket/libhocket.so"] = pathlib.Path(library).read_bytes()
    newest = max((int(a), int(b)) for a, b in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", files["hocket/libhocket.so"]))
    if newest > GLIBC:
        sys.exit("{} needs glibc {}.{}, and the wheel's tag promises {}.{}: build it on an older system".format(
            library, *newest, *GLIBC))
    info = f"hocket-{version}.dist-info"
    script = f"hocket-{version}.data/scripts/hocket"  # pip puts it where commands are
    files[script] = pathlib.Path(command).read_bytes()
    metadata = METADATA.format(version=version)
    for path in filter(None, (HERE.parent / "LICENSE", licences and pathlib.Path(licences))):
        metadata += f"License-File: {path.name}\n"
        files[f"{info}/licenses/{path.name}"] = path.read_bytes()
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: hocket\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = ENTRY_POINTS.encode()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    out = pathlib.Path(folder) / f"hocket-{version}-{tag}.whl"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if name == script else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    print(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
