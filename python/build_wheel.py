"""Makes the wheel: build_wheel.py LIBRARY COMMAND FOLDER puts hocket-VERSION-py3-none-….whl into FOLDER.

A wheel is a zip file with a list of its files' hashes (PEP 427), so nothing is needed but Python.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

HERE = pathlib.Path(__file__).parent
METADATA = """Metadata-Version: 2.1
Name: hocket
Version: {version}
Summary: Multi-GPU host programs: proved, overlapped, and run with fast collectives
Requires-Python: >=3.9
"""
# torch.compile finds its backends there.
ENTRY_POINTS = """[torch_dynamo_backends]
hocket = hocket:compile_backend
"""


def main(library, command, folder):
    version = re.search(r'__version__ = "(.*)"', (HERE / "hocket" / "__init__.py").read_text()).group(1)
    tag = f"py3-none-manylinux_2_34_{platform.machine()}"  # hocket.so needs no newer glibc
    files = {f"hocket/{p.name}": p.read_bytes() for p in sorted((HERE / "hocket").glob("*.py"))}
    files["hocket/libhocket.so"] = pathlib.Path(library).read_bytes()
    info = f"hocket-{version}.dist-info"
    script = f"hocket-{version}.data/scripts/hocket"  # pip puts it where commands are
    files[script] = pathlib.Path(command).read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version).encode()
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
