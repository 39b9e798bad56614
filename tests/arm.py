"""Compare the kernel's ARM version (NEON) with the reference, on any Linux machine.

    make arm      needs a cross-compiler and an emulator (Debian, Ubuntu: apt install g++-aarch64-linux-gnu qemu-user)

The kernel and tests/attention/run_kernel.cpp are compiled for ARM and run by qemu-aarch64. qemu checks the values; it
says nothing about speed.
"""

import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import torch

from debertakit.attention import Layout, RelativePositions, reference
from tests.attention.tables import with_tables

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
NAMES = ("out", "d_q", "d_k", "d_v", "d_pos_k", "d_pos_q")
NEAR = RelativePositions(span=256, buckets=256, max_position=512)
FAR = RelativePositions(span=8, buckets=8, max_position=30)
SKIPS = RelativePositions(span=16, buckets=16, max_position=12)
# (lengths, distances between positions, heads, head size, rule, dropout)
CASES = [
    ((1,), 1, 1, 8, NEAR, 0.0),
    ((37, 5, 90), 1, 3, 24, NEAR, 0.1),
    ((64,), 1, 2, 64, FAR, 0.0),
    ((40, 19), 3, 2, 16, FAR, 0.3),  # positions with gaps
    ((50,), 1, 1, 16, SKIPS, 0.0),
    ((700,), 1, 1, 32, FAR, 0.0),  # tiles beyond the last bucket; backward in parts
    ((300, 280), 1, 2, 16, NEAR, 0.1),
]


def main() -> None:
    if missing := [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]:
        print(f"make arm: skipped, {' and '.join(missing)} not found (apt install g++-aarch64-linux-gnu qemu-user)")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = Path(__file__).parent / "attention" / "run_kernel.cpp"
        flags = ["-std=c++17", "-O2", "-ffp-contract=fast", "-static", "-pthread", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([COMPILER, *flags, str(source), "-o", str(folder / "run_kernel")], check=True)
        for seed, case in enumerate(CASES):
            torch.manual_seed(seed)
            compare(folder, *case)
            print(f"make arm: {case[0]} passed")


def compare(
    folder: Path,
    lengths: tuple[int, ...],
    gap: int,
    heads: int,
    d: int,
    relative: RelativePositions,
    dropout: float,
) -> None:
    layout = Layout.from_lengths(torch.tensor(lengths, dtype=torch.int32))
    positions = layout.q_positions * gap
    layout = Layout(layout.q_offsets, layout.k_offsets, positions, positions, layout.max_q, layout.max_k, 0)
    total, rows, scale = sum(lengths), 2 * relative.span, (3 * d) ** -0.5
    q, k, v = (torch.randn(total, heads, d, requires_grad=True) for _ in range(3))
    pos_k, pos_q = (torch.randn(rows, heads, d, requires_grad=True) for _ in range(2))
    d_out, seed = torch.randn(total, heads, d), torch.tensor(7)
    out, _ = with_tables(reference.attend)(q, k, v, pos_k, pos_q, layout, relative, scale, dropout, seed)
    expected = [out, *torch.autograd.grad(out, [q, k, v, pos_k, pos_q], d_out)]

    lookup = relative.lookup()
    sizes = (len(lengths), heads, d, total, total, rows, lookup.shape[0] // 2)
    record = struct.pack("=7q2d2q", *sizes, scale, dropout, int(dropout * 2**32), int(seed))
    floats = [t.detach().numpy().tobytes() for t in (q, k, v, pos_k, pos_q, d_out)]
    vectors = (layout.q_offsets, layout.k_offsets, positions, positions, lookup)
    (folder / "in").write_bytes(b"".join([record, *floats, *(t.int().numpy().tobytes() for t in vectors)]))
    command = [EMULATOR, str(folder / "run_kernel"), str(folder / "in"), str(folder / "out")]
    isa = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    assert isa == "neon", isa
    found = torch.frombuffer(bytearray((folder / "out").read_bytes()), dtype=torch.float32)
    pieces = found.split([t.numel() for t in expected])
    for name, ours, theirs in zip(NAMES, pieces, expected, strict=True):
        torch.testing.assert_close(
            ours.view_as(theirs), theirs.detach(), atol=2e-5, rtol=2e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


if __name__ == "__main__":
    main()
