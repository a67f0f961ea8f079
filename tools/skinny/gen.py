# Writes kernels.cu, the kernels that bench.cu times, and variants.h, what it needs to know of them.
# gen.py SRC [designs]: SRC is internal/kernels/src; "designs" adds those that were compared.
import pathlib, sys

src, designs = pathlib.Path(sys.argv[1]), "designs" in sys.argv[2:]
here = pathlib.Path(__file__).parent
text = "".join((src / f"{f}.cuh").read_text() for f in ["prelude", "map", "warp", "skinny"])
table = []


def add(name, body, design, rows, cols, smem, threads=256, gated=0, residents=2, args="SkinnyArgs"):
    global text
    text += f'extern "C" __global__ void __launch_bounds__({threads}, {residents}) {name}(const {args} a) {{ {body}(a); }}\n'
    table.append(f'{{"{name}", \'{design}\', {rows}, {cols}, {threads}, {smem}, {gated}, 1}},')


def skinny(rows, tiles, steps, gated=0, late=None, name=None, warps=8):
    smem = warps * steps * (tiles * 1024 + rows * 128)
    alone = smem > 112 << 10
    late = alone if late is None else late
    epilogue = ["skinnyStore", "skinnySiluMul"][gated]
    add(name or f"{epilogue}_r{rows}t{tiles}s{steps}", f"skinny<bf16, {rows}, {tiles}, {warps}, {steps}, {'true' if late else 'false'}, {epilogue}, 1>",
        "FG"[gated], rows, 8 * tiles >> gated, smem, 32 * warps, gated, 1 if alone else 2)


# The forms that hocket's planner chooses among (internal/kernels/skinny.go).
for form in [(8, 4, 5), (8, 2, 4), (8, 2, 4, 1), (16, 3, 5), (16, 2, 3), (16, 2, 3, 1)]:
    skinny(*form)

if designs:
    text += (here / "designs.cuh").read_text()
    for rows, tiles, steps in [(8, 2, 4), (8, 4, 5), (8, 4, 4), (8, 3, 5), (16, 2, 3), (16, 3, 5), (16, 3, 4), (16, 4, 4)]:
        for late in (0, 1):
            skinny(rows, tiles, steps, late=late, name=f"F_r{rows}t{tiles}w8s{steps}l{late}")
    for rows, unroll in [(8, 2), (16, 2)]:
        add(f"A_r{rows}u{unroll}w8", f"regs<bf16, {rows}, {unroll}, 8>", "A", rows, 16, 0, args="DesignArgs")
    for rows, tiles, steps in [(8, 1, 4), (16, 2, 2)]:
        add(f"C_r{rows}t{tiles}s{steps}", f"bulked<bf16, {rows}, {tiles}, {steps}>", "C", rows, 16 * tiles, steps * (tiles * 16 + rows) * 1040 + steps * 16, 288, args="DesignArgs")
(here / "kernels.cu").write_text(text)
(here / "variants.h").write_text("\n".join(table) + "\n")
