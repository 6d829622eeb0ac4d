"""Claim: sparsification and quantization are tunable, at high throughput."""

from __future__ import annotations

from reproduce.page import table

from ..bench import Bench
from ..charts import Panel, draw
from ..claim import HOLDS, IN_PART, Claim, Context, Json, Shown
from ..commands import ON_RECORDED, RESNET9

CHART = "fft-tunable.svg"
THETAS, BITS = (0.5, 0.7, 0.85, 0.95, 0.99), (6, 8, 10, 12)
SPEEDS = {"fft": "fft", "fft θ=0.95": "fft:theta=0.95", "dqsg": "dqsg", "topk": "topk"}
# A core must be faster than the link to gain there: 10 Gbit per second.
LINK_GBPS = 1.25


def measure(bench: Bench) -> Json:
    """Keeps ratio and error per bits and theta; GB/s of encode, decode and memcpy per method."""
    recording = bench.record("resnet9", RESNET9)
    points = {}
    for bits in BITS:
        specs = [f"fft:feedback=off,theta={theta},bits={bits}" for theta in THETAS]
        runs = bench.codec(recording, *specs)
        points[bits] = [[one["ratio"], one["nmse"]] for one in runs]
    arguments = ("--floats", "12800000", "--steps", "5", "--shapes", "none")
    runs = bench.ask("bench", "codec", *arguments, methods=tuple(SPEEDS.values()))
    fields = ("encode_gbps", "decode_gbps", "memcpy_gbps")
    speed = {name: [one[field] for field in fields] for name, one in zip(SPEEDS, runs)}
    return {"points": points, "speed": speed}


def show(found: Json, context: Context) -> Shown:
    panel = Panel(
        title="resnet9, recorded gradients",
        x="gradient / payload",
        y="squared error / energy",
        x_scale="log",
        y_scale="log",
    )
    lines = []
    for bits, points in found["points"].items():
        panel.lines[f"{bits} bits"] = ([p[0] for p in points], [p[1] for p in points])
        lines.append([str(bits), *(f"1/{ratio:.1f}, {error:.3f}" for ratio, error in points)])
    draw(context.charts / CHART, panel)
    speeds = [[name, *(f"{gbps:.2f}" for gbps in row)] for name, row in found["speed"].items()]
    text = f"""
Payload relative to the gradient, and squared error relative to its energy, over the fraction θ that is dropped and the bits per coefficient; no feedback:

{table(["bits", *(f"θ = {theta}" for theta in THETAS)], lines)}

GB of gradient per second on one core, 12.8 M floats of noise (the worst case):

{table(["method", "encode, GB/s", "decode, GB/s", "memcpy, GB/s"], speeds)}
"""
    ratios = [ratio for points in found["points"].values() for ratio, _ in points]
    encode, decode, memcpy = found["speed"]["fft"]
    figure = (
        f"θ and bits choose payloads of 1/{min(ratios):.1f} to 1/{max(ratios):.0f} of the gradient; "
        f"a core encodes {encode:.1f} GB/s and decodes {decode:.1f} GB/s (memcpy {memcpy:.1f})"
    )
    verdict = HOLDS if min(encode, decode) > LINK_GBPS else IN_PART
    return Shown(verdict, figure, text, (CHART,))


CLAIM = Claim(
    name="fft-tunable",
    system="FFT",
    claim="sparsification and quantization can both be tuned during a training, and the throughput is high",
    commands=(ON_RECORDED, "thinreduce bench codec --floats 12800000 --shapes none --method fft"),
    measure=measure,
    show=show,
    seconds=40,
    rule="""
The claim holds if a core encodes and decodes more than 1.25 GB/s, the bytes of a link of 10 Gbit/s; otherwise it holds in part.
""",
)
